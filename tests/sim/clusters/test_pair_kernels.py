# SPDX-License-Identifier: Apache-2.0
"""A GEMM of two CTAs (`pair_kernels`): right as it is, and wrong with one thing changed.

The faults are those that people report of such kernels: FlashAttention's notes on two-CTA kernels
(transaction counts, parity, arrivals at CTAs that have exited), CUTLASS's `producer_tail`, PTX ISA 9.7.16.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from gdnbench.sim.checker.cluster_uses import EXIT
from gdnbench.sim.checker.cta_exit import TRANSACTIONS
from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.errors import FaultKind, KernelFault
from tests.messages import wording
from tests.sim.clusters import pair_kernels
from tests.sim.clusters.cluster_kernels import ENGINES, SCHEDULES
from tests.sim.clusters.pair_kernels import (
    A_BYTES,
    ALLOC,
    B_BYTES,
    DEALLOC,
    DONE,
    EMPTY,
    EXPECT,
    INSTRUCTION,
    LOAD,
    PAIR_GEMM,
    TAIL,
    WAIT_DONE,
    WAIT_EMPTY,
    K,
    M,
    N,
)
from tests.subset import quick

BYTES = 2 * (A_BYTES + B_BYTES)


@pytest.mark.parametrize(("engine", "schedule"), quick(product(ENGINES, SCHEDULES), 6))
def test_gemm(engine: str, schedule: str) -> None:
    c, expected, result = pair_kernels.run(PAIR_GEMM, engine=engine, schedule=schedule, profile=True)
    np.testing.assert_array_equal(c, expected)
    assert result.counters.mma_macs == M * N * K


@pytest.mark.parametrize(("engine", "schedule"), quick(product(ENGINES, ("late", "early")), 2))
def test_nothing_is_found(engine: str, schedule: str) -> None:
    assert pair_kernels.findings(PAIR_GEMM, engine=engine, schedule=schedule) == []


@dataclass(frozen=True)
class Change:
    """The kernel with `before` replaced by `after`: errors of these causes that the checker finds, or a
    fault."""

    before: str
    after: str
    causes: frozenset[object] = frozenset()
    fault: FaultKind | None = None
    says: str = ""
    schedule: str = "late"

    @property
    def text(self) -> str:
        assert PAIR_GEMM.count(self.before)
        return PAIR_GEMM.replace(self.before, self.after)


def found(before: str, after: str, *causes: object, schedule: str = "late") -> Change:
    return Change(before, after, frozenset(causes), schedule=schedule)


def faults(before: str, after: str, fault: FaultKind, says: str, schedule: str = "late") -> Change:
    return Change(before, after, fault=fault, says=says, schedule=schedule)


HANGS = wording("sim.machine.deadlock", where="the cluster")
CHANGES = {
    "bytes of both CTAs expected twice": faults(
        EXPECT, EXPECT.replace(str(BYTES), str(2 * BYTES)), FaultKind.DEADLOCK, HANGS
    ),
    "bytes of one CTA expected": faults(
        EXPECT, EXPECT.replace(str(BYTES), str(BYTES // 2)), FaultKind.DEADLOCK, HANGS, "early"
    ),
    "loads complete at the own CTA's mbarrier": faults(
        "and.b32 %at, %full, 0xFEFFFFFF;", "mov.b32 %at, %full;", FaultKind.DEADLOCK, HANGS
    ),
    "loads without .cta_group::2": faults(
        LOAD,
        LOAD.replace(".cta_group::2", ""),
        FaultKind.BARRIER,
        wording("sim.machine.cluster-other-mbarrier", target=1, barrier=0),
    ),
    "the peer's stages are not freed": faults(EMPTY, EMPTY.replace("%both", "1"), FaultKind.DEADLOCK, HANGS),
    "the peer is not told of the end": faults(DONE, DONE.replace("%both", "1"), FaultKind.DEADLOCK, HANGS),
    "a commit of one CTA": faults(
        DONE,
        DONE.replace("cta_group::2", "cta_group::1"),
        FaultKind.PAIR,
        wording("sim.machine.pair-mixed"),
    ),
    "alloc in one CTA": faults(
        ALLOC,
        f"and.pred %mma, %mma, %even;\n@!%even st.shared.b32 [slot], 0;\n{ALLOC}",
        FaultKind.DEADLOCK,
        wording("sim.machine.pair-waits", op="tcgen05.alloc", rank=1),
    ),
    "dealloc in one CTA": faults(
        DEALLOC,
        f"and.pred %mma, %mma, %even;\n{DEALLOC}",
        FaultKind.TMEM_LEAK,
        "the CTA exits without tcgen05.dealloc; allocated columns: 0..31",
    ),
    "another size in one CTA": faults(
        ALLOC,
        "and.pred %p, %mma, %even;\nnot.pred %q, %even;\nand.pred %q, %q, %mma;\n"
        f"{ALLOC.replace('%mma', '%p')}\n{ALLOC.replace('%mma', '%q').replace('32;', '64;')}",
        FaultKind.PAIR,
        wording("sim.machine.pair-differs", op="tcgen05.alloc"),
    ),
    "no tail": found(TAIL, "", EXIT),
    "wrong parity": found(
        WAIT_DONE,
        WAIT_DONE.replace("[done], 0", "[done], 1"),
        Cause.IN_FLIGHT,
        EXIT,
        Cause.PHASES.value,
        "uninitialised read",
    ),
    "the odd CTA loads without a free stage": found(
        WAIT_EMPTY,
        f"@!%even bra filled;\n{WAIT_EMPTY}\nfilled:",
        Cause.IN_FLIGHT,
        EXIT,
        TRANSACTIONS,
    ),
    "the peer loads tensor memory without a wait": found(
        WAIT_DONE, f"@!%even bra now;\n{WAIT_DONE}\nnow:", Cause.IN_FLIGHT, EXIT, "uninitialised read"
    ),
}


@pytest.mark.parametrize("name", quick(CHANGES, 1, 10))
def test_one_thing_changed(name: str) -> None:
    case = CHANGES[name]
    if case.fault is None:
        groups = pair_kernels.findings(case.text, schedule=case.schedule)
        assert {one.cause for one in groups if one.verdict is Verdict.ERROR} == case.causes
        return
    with pytest.raises(KernelFault, match=case.says) as caught:
        pair_kernels.run(case.text, schedule=case.schedule)
    assert caught.value.kind is case.fault


@pytest.mark.parametrize("engine", quick(ENGINES, 1))
def test_the_rows_of_one_cta(engine: str) -> None:
    """M = 128 has 16 columns of D in all lanes (layout B, PTX ISA 9.7.16.10.5.2) and not 32."""
    half = INSTRUCTION + (128 - M >> 4 << 24)
    (found_one,) = pair_kernels.findings(PAIR_GEMM.replace(str(INSTRUCTION), str(half)), engine)
    assert (found_one.cause, found_one.verdict) == ("uninitialised read", Verdict.ERROR)
    assert (found_one.memory, found_one.cell) == ("tmem", 16)


@pytest.mark.slow
def test_a_fence_left_out_is_reviewed() -> None:
    text = PAIR_GEMM.replace("tcgen05.fence::after_thread_sync;\nand.b32 %r0", "and.b32 %r0")
    assert text != PAIR_GEMM
    (found_one,) = pair_kernels.findings(text)
    assert (found_one.cause, found_one.verdict) == (Cause.TCGEN05_FENCE, Verdict.REVIEW)
