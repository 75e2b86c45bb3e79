# SPDX-License-Identifier: Apache-2.0
"""No text escapes as anything else than an error of the simulator: nobody meets a traceback, and LLVM
compiles nothing that is no program.

The texts are compiled and run in a process of their own, since LLVM ends a process in which it cannot go on.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.seeds import drawn


def check(program: str, seed: int, count: int, every: int) -> None:
    """Run one of the programs beside this file."""
    command = [sys.executable, "-m", f"tests.sim.compiler.{program}", *map(str, (seed, count, every))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    last = lines[-1] if lines else "nothing"
    assert ran.returncode == 0, f"seed {seed}: ended with {ran.returncode} at {last}\n{ran.stderr}"
    assert len(lines) >= count
    assert [line for line in lines if "escaped" in line] == [], f"seed {seed}"


def test_strange_operands_are_refused() -> None:
    check("strange_operands", drawn("strange operands"), 400, 20)


@pytest.mark.slow
def test_damaged_kernels_are_refused_or_stopped() -> None:
    check("damaged_kernels", drawn("damaged kernels"), 1000, 50)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_more_strange_operands() -> None:
    check("strange_operands", drawn("more strange operands"), 20_000, 100)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_more_damaged_kernels() -> None:
    check("damaged_kernels", drawn("more damaged kernels"), 20_000, 200)
