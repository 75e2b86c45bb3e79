# SPDX-License-Identifier: Apache-2.0
"""Kernels that CuTe DSL compiles for sm_90a: its layouts, descriptors and fragments, in both engines.

Threads write shared memory through CuTe's layouts and read fragments through its partitions, so that the
places of elements are CuTe's word; small whole numbers have exact sums, which int64 knows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cutlass
import pytest
import torch
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from gdnbench import sim
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.run import ENGINES
from tests.seeds import drawn
from tests.sim.kernels.compiling import NUMERIC, fake
from tests.sim.kernels.wgmma_gemm import Gemm, Pipelined

K, MN = OperandMajorMode.K, OperandMajorMode.MN
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def whole_numbers(seed: int, *shape: int) -> torch.Tensor:
    """-3 to 3: sums of 512 products fit fp8's 13 bits and f16 exactly (512 * 9 + 4 < 2^13)."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


@cache
def compiled(dtype: torch.dtype, result: torch.dtype, n: int, k: int, groups: int, **choices: Any) -> Any:
    work = Gemm(NUMERIC[dtype], n, k, groups, NUMERIC[result], **choices)
    return sim.compile(
        work,
        fake(dtype, (work.m, k)),
        fake(dtype, (n, k)),
        fake(result, (work.m, n)),
        make_fake_stream(),
        arch="sm_90a",
    )


def check(engine: str, dtype: torch.dtype, n: int, k: int, result: torch.dtype = F32, **choices: Any) -> None:
    groups = choices.pop("groups", 1)
    program = compiled(dtype, result, n, k, groups, **choices)
    seed = drawn("wgmma cute", 30)
    a, b = whole_numbers(seed, 64 * groups, k), whole_numbers(seed + 1, n, k)
    c = whole_numbers(seed + 2, 64 * groups, n).to(result)
    want = a.double() @ b.double().T + (c.double() if choices.get("accumulate") else 0)
    sim.launch(program, a.to(dtype), b.to(dtype), c, engine=engine)
    assert torch.equal(c.double(), want), f"seed {seed}"


@pytest.mark.every(3)
@pytest.mark.parametrize("swizzle", ["INTER", "SW32", "SW64", "SW128"])
@pytest.mark.parametrize(("a_major", "b_major"), [(K, K), (MN, K), (K, MN), (MN, MN)])
def test_layouts_in_shared_memory(swizzle: str, a_major: Any, b_major: Any) -> None:
    check("compiled", BF16, 64, 64, swizzle=swizzle, a_major=a_major, b_major=b_major)


@pytest.mark.every(2)
@pytest.mark.parametrize("swizzle", ["INTER", "SW32", "SW64", "SW128"])
def test_byte_layouts_in_shared_memory(swizzle: str) -> None:
    check("compiled", torch.float8_e4m3fn, 32, 128, swizzle=swizzle)


@pytest.mark.every(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("dtype", "result"),
    [(BF16, F32), (F16, F32), (F16, F16), (torch.float8_e4m3fn, F32), (torch.float8_e5m2, F16)],
)
def test_a_in_registers(dtype: torch.dtype, result: torch.dtype, engine: str) -> None:
    check(engine, dtype, 40, 128, result, a_registers=True, accumulate=True, swizzle="SW64")


@pytest.mark.parametrize("engine", ENGINES)
def test_two_warpgroups(engine: str) -> None:
    check(engine, F16, 24, 64, groups=2)


@cache
def pipelined(a_registers: bool, wait: bool) -> Any:
    n, k = 32, cute.sym_int(32, divisibility=64)
    operand = [make_fake_tensor(cutlass.BFloat16, (m, k), (512, 1), assumed_align=16) for m in (64, n)]
    work = Pipelined(cutlass.BFloat16, n, a_registers=a_registers, wait=wait)
    return sim.compile(work, *operand, fake(F32, (64, n)), make_fake_stream(), arch="sm_90a")


def run_pipelined(program: Any, engine: str, schedule: str) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = whole_numbers(5, 64, 512).to(BF16)[:, :320], whole_numbers(6, 32, 512).to(BF16)[:, :320]
    c = torch.full((64, 32), float("nan"))
    sim.launch(program, a, b, c, engine=engine, schedule=schedule)
    return c.double(), a.double() @ b.double().T


@pytest.mark.every(3)
@pytest.mark.parametrize("a_registers", [False, True])
@pytest.mark.parametrize("schedule", ["late", "early", "random:5"])
@pytest.mark.parametrize("engine", ENGINES)
def test_products_over_several_iterations(a_registers: bool, schedule: str, engine: str) -> None:
    """Accumulators stay in flight around a loop, whose registers the compiler has given moves."""
    got, want = run_pipelined(pipelined(a_registers, True), engine, schedule)
    assert torch.equal(got, want)


@pytest.mark.parametrize("engine", ENGINES)
def test_shared_memory_overwritten_in_flight_shows(engine: str) -> None:
    """The twin without its wait: the late schedule reads what the next tile has put there."""
    got, want = run_pipelined(pipelined(False, False), engine, "late")
    assert not torch.equal(got, want)


@pytest.mark.parametrize("schedule", ["late", "early", "random:5"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_overwritten_in_flight_is_a_fault(engine: str, schedule: str) -> None:
    with pytest.raises(KernelFault, match="of A is written while") as caught:
        run_pipelined(pipelined(True, False), engine, schedule)
    assert caught.value.kind is FaultKind.WGMMA
