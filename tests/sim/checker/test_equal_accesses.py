# SPDX-License-Identifier: Apache-2.0
"""Both engines report the same to a checker, for kernels that CuTe DSL compiles; the checker changes no
result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import pytest
import torch
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cute.runtime import make_fake_stream

from gdnbench import sim
from gdnbench.sim import simulate
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.run import run_ptx
from tests.sim.access_recording import Event, Recording
from tests.sim.kernels import simt, wgmma_gemm
from tests.sim.kernels.compiling import NUMERIC, compiled, fake
from tests.sim.kernels.ldmatrix_mma import LdmatrixMma
from tests.sim.kernels.persistent import PersistentGemm
from tests.sim.kernels.tcgen05_gemm import Gemm
from tests.sim.kernels.tma_copy import TmaStream
from tests.sim.kernels.tmem_operand import TmemOperand
from tests.subset import quick

F32, BF16, I32 = torch.float32, torch.bfloat16, torch.int32
K = OperandMajorMode.K


def rows(dtype: torch.dtype) -> Any:
    """A matrix of any extents, its rows side by side and aligned for TMA."""
    return fake(dtype, (None, None), divisible=128 // NUMERIC[dtype].width)


def whole_numbers(*shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).float()


Case = tuple[Any, list[torch.Tensor]]  # a kernel and its arguments, the last its output


def row_sums() -> Case:
    kernel = compiled(simt.row_sums, fake(BF16, (None, None), align=2), fake(F32, (None,), align=4))
    return kernel, [whole_numbers(3, 200).to(BF16), torch.zeros(3)]


def histogram() -> Case:
    """Atomics in shared and in global memory."""
    counts = fake(I32, (simt.BINS,), align=4)
    x = torch.arange(300, dtype=I32) * 7 % simt.BINS
    return compiled(simt.histogram, fake(I32, (None,), align=4), counts), [
        x,
        torch.zeros(simt.BINS, dtype=I32),
    ]


def tma_stream() -> Case:
    return compiled(TmaStream(), rows(BF16), rows(BF16)), [
        whole_numbers(300, 72).to(BF16),
        torch.zeros(300, 72).to(BF16),
    ]


def ldmatrix_mma() -> Case:
    kernel = compiled(LdmatrixMma(cutlass.BFloat16), rows(BF16), rows(BF16), fake(F32, (None, None), align=4))
    return kernel, [whole_numbers(20, 40).to(BF16), whole_numbers(24, 40).to(BF16), torch.zeros(20, 24)]


def tcgen05_gemm() -> Case:
    gemm = Gemm(cutlass.BFloat16, K, K, 64, 64, load_shape="16x256b")
    kernel = compiled(gemm, rows(BF16), rows(BF16), fake(F32, (None, None), align=4))
    return kernel, [whole_numbers(40, 40).to(BF16), whole_numbers(24, 40).to(BF16), torch.zeros(40, 24)]


def persistent_gemm() -> Case:
    kernel = compiled(
        PersistentGemm(cutlass.BFloat16, 1), rows(BF16), rows(BF16), fake(F32, (None, None), divisible=4)
    )
    return kernel, [whole_numbers(130, 72).to(BF16), whole_numbers(24, 72).to(BF16), torch.zeros(130, 24)]


def tmem_operand() -> Case:
    kernel = compiled(
        TmemOperand(cutlass.BFloat16), fake(BF16, (128, 64)), fake(BF16, (64, 64)), fake(F32, (128, 64))
    )
    return kernel, [whole_numbers(128, 64).to(BF16), whole_numbers(64, 64).to(BF16), torch.zeros(128, 64)]


def wgmma() -> Case:
    work = wgmma_gemm.Gemm(cutlass.BFloat16, 16, 64)
    fakes = [fake(BF16, (64, 64)), fake(BF16, (16, 64)), fake(F32, (64, 16))]
    kernel = sim.compile(work, *fakes, make_fake_stream(), arch="sm_90a")
    return kernel, [whole_numbers(64, 64).to(BF16), whole_numbers(16, 64).to(BF16), torch.zeros(64, 16)]


CASES = [row_sums, histogram, tma_stream, ldmatrix_mma, tcgen05_gemm, persistent_gemm, tmem_operand, wgmma]


def recorded(kernel: Any, args: list[torch.Tensor], engine: str) -> dict[tuple[int, int], list[Event]]:
    """What each warp of each CTA did, in its order."""
    checkers: list[tuple[int, Recording]] = []

    def checker(cta: Cta) -> Recording:
        checkers.append((cta.index, Recording({})))
        return checkers[-1][1]

    def run_observed(*run: Any, **options: Any) -> Any:
        return run_ptx(*run, **{**options, "checker": checker})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate, "run_ptx", run_observed)
        sim.launch(kernel, *args, engine=engine, threads=1)
    found: dict[tuple[int, int], list[Event]] = {}
    for cta, recording in checkers:
        for event in recording.events:
            found.setdefault((cta, event[0]), []).append(event)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(CASES, 0, 1, 3, 5, 7))
def test_engines_tell_the_same(case: Callable[[], Case]) -> None:
    kernel, args = case()
    out = args[-1]
    before = out.clone()
    sim.launch(kernel, *args)
    plain = out.clone()
    told = {}
    for engine in ("interpreter", "compiled"):
        out.copy_(before)
        told[engine] = recorded(kernel, args, engine)
        assert torch.equal(out, plain), engine
    assert told["compiled"].keys() == told["interpreter"].keys()
    for warp, events in told["interpreter"].items():
        assert told["compiled"][warp] == events, warp
    assert any(lanes for events in told["compiled"].values() for _, _, lanes in events)
