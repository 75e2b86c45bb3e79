# SPDX-License-Identifier: Apache-2.0
"""Every compiled kernel on every case of its grid and on every captured call, in the simulator."""

from __future__ import annotations

import pytest

from gdnbench_kernels.cases import Case
from tests.kernels.proving import GRIDS, Grid, Proof, Prover

pytestmark = pytest.mark.slow

KERNELS = [
    pytest.param(grid, kernel, id=f"{op}, {kernel}") for op, grid in GRIDS.items() for kernel in grid.compiled
]
CASES = [
    pytest.param(grid, kernel, case, id=f"{op}, {kernel}: {case.name}")
    for op, grid in GRIDS.items()
    for kernel in grid.compiled
    for case in grid.cases()
]


@pytest.mark.parametrize(("grid", "kernel", "case"), CASES)
def test_a_case_passes_with_the_same_bits_under_every_schedule(grid: Grid, kernel: str, case: Case) -> None:
    verdict, record = Prover(grid, kernel, "sim", grid.schedules).case(case)
    assert verdict == ("refused" if case.refused else "pass"), record.reason


@pytest.mark.parametrize(("grid", "kernel"), KERNELS)
def test_captured_calls_pass(grid: Grid, kernel: str) -> None:
    proofs: list[Proof] = []
    Prover(grid, kernel, "sim", grid.schedules).captured((), proofs.append)
    assert proofs
    assert [(name, record.reason) for name, verdict, record in proofs if verdict == "FAIL"] == []
