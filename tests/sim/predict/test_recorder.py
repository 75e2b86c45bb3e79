# SPDX-License-Identifier: Apache-2.0
"""Traces of small kernels. What each warp does is read off the PTX by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.predict.recorder import TraceRecorder
from gdnbench.sim.predict.trace import (
    SECTOR,
    Accessed,
    Arrived,
    CtaTrace,
    Entered,
    Executed,
    Finished,
    Issued,
    Kind,
    Space,
    Waited,
)
from gdnbench.sim.ptx.ir import Kernel
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import run_ptx

HEAD = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .f32 %f<8>;
.shared .align 128 .b8 data[4096]; .shared .align 8 .b64 bar;
ld.param.u64 %d0, [out];
mov.u32 %r0, %tid.x;
"""
WARPS = 2


def traced(body: str, out: np.ndarray | None = None, ctas: int = 1) -> tuple[Kernel, list[CtaTrace]]:
    """The kernel of this body and the traces of its CTAs, of two warps each."""
    module = parse(f"{HEAD}{body}\nret;\n}}\n")
    recorders = []

    def begin(cta: Cta) -> TraceRecorder:
        recorders.append(TraceRecorder(cta))
        return recorders[-1]

    given = np.zeros(4096, np.float32) if out is None else out
    run_ptx(module, "k", (ctas, 1, 1), (32 * WARPS, 1, 1), [given], checker=begin, path=True, threads=1)
    return module.kernels["k"], [recorder.trace() for recorder in recorders]


def executed(kernel: Kernel, trace: CtaTrace, warp: int) -> Counter[str]:
    """How often the warp executed each opcode of the blocks that it entered."""
    found: Counter[str] = Counter()
    for step in trace.warps[warp]:
        if isinstance(step, Entered):
            found[kernel.instructions[step.pc].op] += 1
    return found


LOOP = """mov.u32 %r1, 0;
again: add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, 3;
@%p1 bra again;
setp.ge.u32 %p2, %r0, 32;
@%p2 bra end;
mul.lo.u32 %r2, %r1, %r1;
end: xor.b32 %r3, %r1, 1;
"""


def test_a_warp_enters_the_blocks_that_it_executes() -> None:
    """The loop's body three times; what warp 1 jumps over, warp 0 alone."""
    kernel, (trace,) = traced(LOOP)
    first, second = (executed(kernel, trace, warp) for warp in range(WARPS))
    assert first == {"ld": 1, "add": 3, "setp": 1, "mul": 1, "xor": 1}
    assert second == {"ld": 1, "add": 3, "setp": 1, "xor": 1}


def accesses(trace: CtaTrace, space: Space, warp: int = 0) -> list[Accessed]:
    return [step for step in trace.warps[warp] if isinstance(step, Accessed) and step.space is space]


@pytest.mark.parametrize(
    ("address", "cycles"),
    [
        ("shl.b32 %r2, %r1, 2;", 1),  # 32 words side by side
        ("mov.u32 %r2, 0;", 1),  # one word for all
        ("shl.b32 %r2, %r1, 3;", 2),  # every other word: each bank has two
        ("shl.b32 %r2, %r1, 7;", 32),  # a word of each line: all in bank 0
    ],
)
def test_bank_conflicts_of_words(address: str, cycles: int) -> None:
    body = f"""mov.u32 %r1, %laneid;
    {address}
    mov.u32 %r3, data;
    add.u32 %r3, %r3, %r2;
    ld.shared.f32 %f0, [%r3];"""
    _, (trace,) = traced(body)
    (step,) = accesses(trace, Space.SHARED)
    assert step.cycles == cycles


@pytest.mark.parametrize(("stride", "cycles"), [(16, 4), (128, 32), (144, 4)])
def test_bank_conflicts_of_vectors(stride: int, cycles: int) -> None:
    """16 bytes a lane need four cycles if quarters of the warp have all banks; rows of 128 bytes put all
    lanes of a quarter into four banks, rows of 144 do not."""
    body = f"""mov.u32 %r1, %laneid;
    mul.lo.u32 %r2, %r1, {stride};
    and.b32 %r2, %r2, 4095;
    mov.u32 %r3, data;
    add.u32 %r3, %r3, %r2;
    ld.shared.v4.f32 {{%f0, %f1, %f2, %f3}}, [%r3];"""
    if stride == 144:
        body = body.replace("and.b32 %r2, %r2, 4095;", "rem.u32 %r2, %r2, 1152;")
    _, (trace,) = traced(body)
    (step,) = accesses(trace, Space.SHARED)
    assert step.cycles == cycles


@pytest.mark.parametrize(("stride", "sectors"), [(4, 4), (32, 32), (0, 1)])
def test_sectors_of_global_memory(stride: int, sectors: int) -> None:
    out = np.zeros(4096, np.float32)
    start = (-out.ctypes.data) % 128 // 4  # a whole line
    body = f"""mov.u32 %r1, %laneid;
    mul.wide.u32 %d1, %r1, {stride};
    add.u64 %d2, %d0, %d1;
    ld.global.f32 %f0, [%d2];"""
    _, (trace,) = traced(body, out[start:])
    (step,) = accesses(trace, Space.GLOBAL)
    assert len(step.sectors) == sectors
    assert step.sectors[0] == out[start:].ctypes.data // SECTOR


def test_the_same_words_from_other_places() -> None:
    """A whole line; the same 4,096 bytes later; and a sector further on, which takes parts of two lines."""
    out = np.zeros(4096, np.float32)
    start = (-out.ctypes.data) % 128 // 4  # a whole line
    body = """mov.u32 %r1, %laneid;
    mul.wide.u32 %d1, %r1, 4;
    add.u64 %d2, %d0, %d1;
    ld.global.f32 %f0, [%d2];
    ld.global.f32 %f1, [%d2+4096];
    ld.global.f32 %f2, [%d2+4128];"""
    _, (trace,) = traced(body, out[start:])
    steps = accesses(trace, Space.GLOBAL)
    first = out[start:].ctypes.data // SECTOR
    starts = [first, first + 4096 // SECTOR, first + 4128 // SECTOR]
    assert [step.sectors for step in steps] == [tuple(range(at, at + 4)) for at in starts]
    assert [step.cycles for step in steps] == [1, 1, 2]


def test_a_barrier_s_phase_has_a_contribution_of_each_warp() -> None:
    _, (trace,) = traced("bar.sync 0;\nbar.sync 0;")
    for steps in trace.warps:
        waits = [step for step in steps if isinstance(step, Arrived | Waited)]
        assert [type(step) for step in waits] == [Arrived, Waited, Arrived, Waited]
        assert waits[0].phases == waits[1].phases != waits[2].phases
    assert trace.arrivals == [WARPS, WARPS]


MBARRIER = """setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [bar], 1;
bar.sync 0;
mov.u32 %r4, data;
mov.u32 %r5, bar;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 256;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d0], 256, [%r5];
wait: mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0;
@!%p3 bra wait;
"""


def test_a_phase_of_an_mbarrier_ends_with_the_arrival_and_the_copy() -> None:
    out = np.zeros(4096, np.float32)
    start = (-out.ctypes.data) % 128 // 4
    _, (trace,) = traced(MBARRIER, out[start:])
    (copy,) = trace.operations
    assert copy.kind is Kind.COPY_IN
    assert copy.size == 256
    assert len(copy.sectors) == 256 // SECTOR
    (phase,) = copy.phases
    assert trace.arrivals[phase] == 2  # the arrival and the landing
    for steps in trace.warps:
        assert steps[-2 if isinstance(steps[-1], Entered) else -1] == Waited(steps[-2].pc, (phase,))
    issued = [step for step in trace.warps[0] if isinstance(step, Issued)]
    assert issued == [Issued(issued[0].pc, (0,))]
    assert not [step for step in trace.warps[1] if isinstance(step, Issued)]


def test_a_group_is_waited_for_with_its_copies() -> None:
    body = """mov.u32 %r4, data;
    cp.async.ca.shared.global [%r4], [%d0], 16;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r4+16], [%d0], 16;
    cp.async.commit_group;
    cp.async.wait_group 1;
    cp.async.wait_group 0;"""
    _, (trace,) = traced(body)
    waits = [step for step in trace.warps[1] if isinstance(step, Finished)]
    own = [index for step in trace.warps[1] if isinstance(step, Issued) for index in step.operations]
    assert [step.operations for step in waits] == [tuple(own[:1]), tuple(own)]
    assert sum(isinstance(step, Executed) for step in trace.warps[1]) == 2  # the commits


def test_roles_are_those_of_the_profile_with_their_warps() -> None:
    out = np.zeros(4096, np.float32)
    start = (-out.ctypes.data) % 128 // 4
    assert traced(MBARRIER, out[start:])[1][0].roles == ["warp 0 bulk copy", "warp 1 compute"]


def test_clusters_are_refused() -> None:
    module = parse(f"{HEAD}ret;\n}}\n")
    with pytest.raises(UnsupportedError, match="clusters"):
        run_ptx(
            module,
            "k",
            (2, 1, 1),
            (32, 1, 1),
            [np.zeros(8, np.float32)],
            checker=TraceRecorder,
            path=True,
            cluster=(2, 1, 1),
        )
