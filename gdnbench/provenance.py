# SPDX-License-Identifier: Apache-2.0
"""Where a record comes from: the caller's code, the packages, the machine. Collected once a process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = (
    "gdnbench",
    "torch",
    "transformers",
    "triton",
    "flash-linear-attention",
    "nvidia-cutlass-dsl",
    "flashinfer-python",
    "numpy",
    "vllm",
    "sglang",
    "sgl-flash-mla",
    "sgl-deep-gemm",
)
"""Whose versions are recorded where they are installed: this one, torch, frameworks and compilers."""
_GIT_SECONDS = 10.0
# Settings of a repository that make git run a program, or that lead it into a folder which only looks like a
# repository. Those of filters are added for each filter.
_GIT_SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "safe.bareRepository=explicit",
)
_GIT_ENVIRONMENT = {
    # `git status` would refresh the index file of a tree that is not ours, and then run a hook.
    "GIT_OPTIONAL_LOCKS": "0",
    # A partial clone fetches missing objects by a program that its configuration names. There is no protocol
    # "none".
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
}
_FILTER_SETTINGS = {"clean": "", "smudge": "", "process": "", "required": "false"}
_MOST_FILTERS = 100
# rank, world size, rank on the host: of torchrun, Open MPI and those that speak PMI. Without Slurm's own:
# below a batch script that starts its processes itself, each would have the numbers of the one task.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


def process_info() -> dict[str, Any]:
    """This process: pid, its parent's, rank among its peers (None where there are none), command line, host,
    time.
    """
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        **_ranks(),
        "argv": list(sys.orig_argv),
        "cwd": os.getcwd(),
        "host": socket.gethostname(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _ranks() -> dict[str, int | None]:
    """From torch.distributed once it is initialised, else from what its launchers set."""
    told = next((names for names in _LAUNCHERS if _integer(names[0]) is not None), _LAUNCHERS[0])
    rank, world, local = map(_integer, told)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = int(distributed.get_rank()), int(distributed.get_world_size())
    return {"rank": rank, "world_size": world, "local_rank": local}


def parallel_of(adapter: object) -> dict[str, Any]:
    """What the framework of `adapter` says of this process among its peers: `parallel`, which is
    {"tp": [rank, size], "pp": ..., "dp": ...}, to stand beside `process_info`. Empty where it does not say or
    fails to.
    """
    ask = getattr(adapter, "parallel", None)
    if ask is None:
        return {}
    try:
        found = {str(name): [int(rank), int(size)] for name, (rank, size) in ask().items()}
    except Exception:  # the framework's own, before its groups are there
        return {}
    return {"parallel": found} if found else {}


def _integer(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None


def provenance() -> dict[str, Any]:
    """Git state, packages, Python, operating system and CPU. Some 20 ms, more in a large working tree."""
    return {
        "git": git_state(),
        "packages": _package_versions(),
        "python": platform.python_version(),
        "os": platform.platform(),
        "cpu": cpu_model(),
    }


def git_state(place: Path | None = None) -> dict[str, Any] | None:
    """Commit and dirty flag of the working tree that the folder `place` lies in; by default of the one that
    the script lies in, else of the current folder's.

    None if there is no git or no working tree. The dirty flag is None if git could not tell, as when the
    only changes are in files with a filter, such as those of Git LFS: the current folder may be a store that
    a stranger made, with a `.git` in it, so git runs no program that a repository names.
    """
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    folders = [script.parent] if script is not None and script.is_file() else []
    for folder in (*folders, Path()) if place is None else (place,):
        sha = _git(folder, "rev-parse", "HEAD")
        if sha is not None:
            return {"sha": sha.strip(), "dirty": _dirty(folder)}
    return None


def _dirty(folder: Path) -> bool | None:
    """Whether `git status` shows a change, without the programs that it would run: filters of files, which
    it gives a changed file to, and `git status` in every submodule, which has settings of its own."""
    listed = _git(folder, "config", "-z", "--name-only", "--list")
    if listed is None:
        return None
    prefix = "filter."
    found = [name.removeprefix(prefix) for name in listed.split("\0") if name.startswith(prefix)]
    parts = [name.rpartition(".") for name in found]
    filters = {name for name, _, key in parts if name and key in _FILTER_SETTINGS}
    if len(filters) > _MOST_FILTERS or any("=" in name or "\n" in name for name in filters):
        return None  # `-c` cannot set them
    off = [f"filter.{name}.{key}={value}" for name in filters for key, value in _FILTER_SETTINGS.items()]
    status = ("status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=dirty")
    changes = _git(folder, *status, settings=off)
    if not changes:
        return None if changes is None else False
    if not filters:
        return True
    # "XY path", relative to the root of the tree
    changed = [change for change in changes.split("\0") if change]
    if any(not change.startswith(" M ") for change in changed):
        return True
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    paths = "\0".join(change[3:] for change in changed)
    attributes = _git(Path(top.removesuffix("\n")), "check-attr", "-z", "--stdin", "filter", given=paths)
    if attributes is None:
        return None
    # path, "filter", name of the filter for each path
    return None if filters.issuperset(attributes.split("\0")[2::3]) else True


def _git(folder: Path, *arguments: str, settings: Sequence[str] = (), given: str = "") -> str | None:
    """stdout of `git ARGUMENTS` in `folder`, which runs no program that the repository names; None if it
    fails."""
    try:
        done = subprocess.run(
            ["git", *(word for one in (*_GIT_SETTINGS, *settings) for word in ("-c", one)), *arguments],
            cwd=folder,
            input=given.encode(errors="surrogateescape"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            env={**os.environ, **_GIT_ENVIRONMENT},
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="surrogateescape")


def _package_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpu_provenance() -> dict[str, Any]:
    """GPU names, driver and CUDA. Empty unless the program has initialised CUDA: we must not do it for it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "driver": _driver_version(),
    }


def _driver_version() -> str | None:
    """From the kernel module's own file: `NVRM version: NVIDIA UNIX ... Kernel Module  580.82.07  ...`."""
    try:
        line = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    return next((word for word in line.split() if word[0].isdigit() and "." in word), None)


class BackgroundProvenance:
    """Collects `provenance()` in a thread while the program loads its model."""

    def __init__(self) -> None:
        self._found: Mapping[str, Any] = {}
        self._thread = threading.Thread(target=self._collect, name="gdnbench-provenance", daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        self._found = provenance()

    def result(self) -> Mapping[str, Any]:
        """What was found; waits for a slow `git status`, but not for ever. A fork has its parent's."""
        self._thread.join(timeout=2 * _GIT_SECONDS)
        return self._found
