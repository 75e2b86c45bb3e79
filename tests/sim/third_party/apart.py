"""Runs other people's kernels in processes of their own: importing them changes CuTe DSL for a whole process.

A case is a function of `quack_cases` or `flashinfer_cases` that compiles a kernel of an installed package and
runs it on the simulator. Tensors go there and come back through a file.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

# Set where the packages are installed on purpose: a missing one is then a failure and not a skip.
REQUIRED = "GDNBENCH_THIRD_PARTY_REQUIRED"
TIMEOUT = 240
HERE = Path(__file__).parent

# Each of these packages asks the GPU for its architecture unless told.
ARCHITECTURE = {
    "CUTE_DSL_ARCH": "sm_100a",
    "QUACK_ARCH": "sm_100a",
    "QUACK_CACHE_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Apart:
    """The tensors of a case as it left them, and the simulator's report as text."""

    tensors: dict[str, torch.Tensor]
    report: str


def need(package: str) -> None:
    """Skips the test if `package` is not installed, or fails it where it has to be."""
    if importlib.util.find_spec(package) is not None:
        return
    reason = f"{package} is not installed: pip install 'gdnbench[third-party]'"
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason}, and {REQUIRED} is set")
    pytest.skip(reason)


def run_apart(cases: str, case: str, tensors: dict[str, torch.Tensor], folder: Path) -> Apart:
    """`case` of the module `cases`, given `tensors` by name; it writes some of them in place."""
    given, left = folder / "given.pt", folder / "left.pt"
    torch.save(tensors, given)
    child = subprocess.run(
        [sys.executable, str(HERE / "child.py"), cases, case, str(given), str(left)],
        env={**os.environ, **ARCHITECTURE},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return Apart(torch.load(left), child.stdout)
