"""What can run on this machine, and why the rest cannot."""

from __future__ import annotations

import platform
import site
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from packaging.requirements import Requirement
from packaging.version import Version

from gdnbench.ops import operations
from gdnbench.version import __version__
from gdnbench_kernels.contract import KernelEntry

START_UP_LINE = "gdnbench_capture.pth"


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
    yield _gpu()
    yield _start_up_line()
    for operation in operations().values():
        for name, entry in operation.kernels.items():
            yield _kernel(f"{operation.name} --kernel {name}", entry)


def _packages() -> Iterator[Finding]:
    """Every requirement of this distribution that applies here, extras included: installed, and in range?"""
    try:
        requirements = metadata.requires("gdnbench") or []
    except metadata.PackageNotFoundError:
        yield Finding("gdnbench", False, "found on the path but not installed", "pip install gdnbench")
        return
    for text in requirements:
        requirement = Requirement(text)
        extra = "hf" if requirement.marker and "hf" in str(requirement.marker) else ""
        if requirement.name == "gdnbench" or (
            requirement.marker and not requirement.marker.evaluate({"extra": extra})
        ):
            continue
        yield _package(requirement, f"pip install 'gdnbench[{extra}]'" if extra else f"pip install '{text}'")


def _package(requirement: Requirement, remedy: str) -> Finding:
    wanted = str(requirement.specifier) or "any version"
    try:
        version = Version(metadata.version(requirement.name))
    except metadata.PackageNotFoundError:
        return Finding(requirement.name, False, f"not installed; {wanted} is needed", remedy)
    fits = requirement.specifier.contains(version.public, prereleases=True)
    return Finding(requirement.name, fits, str(version) if fits else f"{version}; {wanted} is needed", remedy)


def _gpu() -> Finding:
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
