# SPDX-License-Identifier: Apache-2.0
"""Runs other people's kernels in processes of their own: importing them changes CuTe DSL for a whole process.

A case is a function of `quack_cases` or `flashinfer_cases` that compiles a kernel of an installed package and
runs it on the simulator. Tensors go there and come back through files, names and reports through pipes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import torch

# A folder that the packages were installed to with `pip install --target`, apart from what other tests use.
# Where it is set, a missing package is a failure and not a skip.
FOLDER = "GDNBENCH_THIRD_PARTY"
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
REQUIREMENTS = HERE / "requirements.txt"
# A folder in that folder for Triton, of which the other packages must not know.
WITH_TRITON = "with-triton"
TRITON_REQUIREMENTS = HERE / "requirements_triton.txt"

# Each of these packages asks the GPU for its architecture unless told.
ARCHITECTURE = {
    "CUTE_DSL_ARCH": "sm_100a",
    "QUACK_ARCH": "sm_100a",
    "QUACK_CACHE_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The tensors of a case as it left them, and the simulator's report as text."""

    tensors: dict[str, Any]
    report: str


def triton_folder() -> str | None:
    """The folder with Triton, None if there is no folder of packages."""
    folder = os.environ.get(FOLDER)
    return os.path.join(folder, WITH_TRITON) if folder else None


def need(package: str, within: str = "", requirements: Path = REQUIREMENTS) -> None:
    """Skips the test if `package` is not installed, or fails it where it has to be. `within` is a folder in
    that of the packages."""
    folder = os.environ.get(FOLDER)
    if folder and within:
        folder = os.path.join(folder, within)
    if PathFinder.find_spec(package, [folder, *sys.path] if folder else sys.path) is not None:
        return
    how = f"pip install --no-deps --target ${os.path.join(FOLDER, within)} -r {requirements}"
    if folder:
        pytest.fail(f"{FOLDER} is set to {folder}, but {package} is not there: {how}")
    pytest.skip(f"{package} is not installed, {FOLDER} not set: {how}")


class Apart:
    """A process with the cases of one module; importing the packages takes longer than a case."""

    def __init__(self, cases: str, folder: Path, packages: str | None = None) -> None:
        """`packages`: the folder of the packages, by default that which `FOLDER` names."""
        self.folder = folder
        path = [path for path in (packages or os.environ.get(FOLDER), os.environ.get("PYTHONPATH")) if path]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sim.third_party.child", cases],
            cwd=ROOT,
            env={**os.environ, **ARCHITECTURE, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, case: str, tensors: dict[str, Any]) -> Outcome:
        """`case` with these arguments by name; it writes some of the tensors in place."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        given, left = self.folder / "given.pt", self.folder / "left.pt"
        torch.save(tensors, given)
        try:
            self.process.stdin.write(json.dumps([case, str(given), str(left)]) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        said = json.loads(answer) if answer else {"error": self.process.stderr.read()}
        assert "error" not in said, said["error"][-4000:]
        return Outcome(torch.load(left), said["report"])

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def apart(package: str, cases: str, folder: Path) -> Iterator[Apart]:
    """What a module's fixture yields from."""
    need(package)
    yield from _closed(Apart(cases, folder))


def apart_with_triton(cases: str, folder: Path) -> Iterator[Apart]:
    """The same for cases that need Triton."""
    need("triton", WITH_TRITON, TRITON_REQUIREMENTS)
    yield from _closed(Apart(cases, folder, triton_folder()))


def _closed(process: Apart) -> Iterator[Apart]:
    try:
        yield process
    finally:
        process.close()
