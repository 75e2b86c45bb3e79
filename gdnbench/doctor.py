# SPDX-License-Identifier: Apache-2.0
"""What can run on this machine, and why the rest cannot."""

from __future__ import annotations

import platform
import re
import site
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import Version

from gdnbench.missing import is_installed
from gdnbench.version import __version__

if TYPE_CHECKING:
    from gdnbench_kernels.contract import KernelEntry

START_UP_LINE = "gdnbench_capture.pth"
EXTRA = re.compile(r"""extra == ["']([\w-]+)["']""")
"""As the metadata of a distribution marks what only an extra needs."""
TESTS = "dev"
"""The extra for work on gdnbench itself; nothing that a user runs needs it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `remedy` says what to do where `works` is false."""

    what: str
    works: bool
    detail: str
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Everything `gdnbench doctor` reports, part by part."""
    yield Finding(
        "gdnbench", True, f"{__version__} on Python {platform.python_version()}, {platform.machine()}"
    )
    yield from _packages()
    yield _start_up_line()
    if not is_installed("torch"):
        yield Finding("kernels", False, "all need torch", "pip install 'gdnbench[capture]'")
        return
    from gdnbench.ops import operations

    yield _gpu()
    for operation in operations().values():
        for name, entry in operation.kernels.items():
            yield _kernel(f"{operation.name} --kernel {name}", entry)


def _packages() -> Iterator[Finding]:
    """Every requirement of this distribution that applies here: installed, and in range?

    An extra of which nothing is installed has one line. A package of several extras has a second line only
    for a range that its release is not in.
    """
    try:
        requirements = [Requirement(text) for text in metadata.requires("gdnbench") or []]
    except metadata.PackageNotFoundError:
        yield Finding("gdnbench", False, "found on the path but not installed", "pip install gdnbench")
        return
    by_extra: dict[str, list[Requirement]] = {}
    for requirement in requirements:
        marked = EXTRA.search(str(requirement.marker or ""))
        extra = marked[1] if marked else ""
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if applies and requirement.name != "gdnbench" and extra != TESTS:
            by_extra.setdefault(extra, []).append(requirement)
    told: dict[str, Requirement] = {}
    for extra, wanted in by_extra.items():
        if extra and not any(_installed(one.name) for one in wanted if one.name not in told):
            names = ", ".join(requirement.name for requirement in wanted)
            yield Finding(f"extra {extra}", False, f"needs {names}", f"pip install 'gdnbench[{extra}]'")
            continue
        for requirement in wanted:
            finding, known = _package(requirement, _pip(requirement, extra)), told.get(requirement.name)
            if known is None or (requirement.specifier != known.specifier and not finding.works):
                yield finding
            told[requirement.name] = requirement


def _pip(requirement: Requirement, extra: str) -> str:
    return f"pip install 'gdnbench[{extra}]'" if extra else f"pip install '{requirement}'"


def _package(requirement: Requirement, remedy: str) -> Finding:
    wanted = str(requirement.specifier) or "any version"
    try:
        version = Version(metadata.version(requirement.name))
    except metadata.PackageNotFoundError:
        return Finding(requirement.name, False, f"not installed; {wanted} is needed", remedy)
    fits = requirement.specifier.contains(version.public, prereleases=True)
    return Finding(requirement.name, fits, str(version) if fits else f"{version}; {wanted} is needed", remedy)


def _gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        built = (
            f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is a CPU build"
        )
        remedy = "only --on cuda needs one: an NVIDIA GPU, its driver and a CUDA build of torch"
        return Finding("GPU", False, f"none; {built}", remedy)
    major, minor = torch.cuda.get_device_capability()
    return Finding(
        "GPU", True, f"{torch.cuda.get_device_name()} (sm_{major}{minor}), CUDA {torch.version.cuda}"
    )


def _start_up_line() -> Finding:
    """Whether Python processes of this interpreter can be captured through the environment."""
    folders = {sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages()}
    for folder in sorted(folders):
        if (Path(folder) / START_UP_LINE).is_file():
            return Finding("capture", True, f"{START_UP_LINE} is in place")
    return Finding(
        "capture",
        False,
        f"{START_UP_LINE} is in no site-packages folder",
        "install gdnbench with pip, not by path",
    )


def _kernel(what: str, entry: KernelEntry) -> Finding:
    import torch

    missing = [name for name in entry.needs if not _installed(name)]
    places = [device for device in entry.devices if device != "cuda" or torch.cuda.is_available()]
    if missing:
        return Finding(what, False, f"needs {', '.join(missing)}", f"pip install {' '.join(missing)}")
    if not places:
        return Finding(what, False, f"runs on {', '.join(entry.devices)} alone", "use a machine that has it")
    return Finding(what, True, f"on {', '.join(places)}")


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
