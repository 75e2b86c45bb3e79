# SPDX-License-Identifier: Apache-2.0
"""The two pipelines of FlashAttention's note `AI/RACECHECK_TMA_HAZARD.md`, which differ in the copy alone:
of `cp.async.bulk` compute-sanitizer's racecheck reports a race that is none, of `cp.async.bulk.tensor` it
reports nothing, whatever the pipeline. Both are right here; each of them without one of its waits is wrong.

Expectations are the PTX ISA's: "mbarrier" (a wait orders the copies of its phase before what follows) and
"Async Proxy"."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.errors import KernelFault
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import ENGINES, run_ptx
from tests.sim.machine.tma_model import Map

ROUNDS, WORDS = 6, 32  # through two stages of 128 bytes

BULK = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%stage], [%x], 128, [%full]; // copy"
TENSOR = (
    "cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
    " [%stage], [%map, {%at}], [%full]; // copy"
)
FREE = "free: mbarrier.try_wait.parity.shared.b64 %p, [%empty], %other;\n@!%p bra free;\n"
FULL = "filled: mbarrier.try_wait.parity.shared.b64 %p, [%full], %phase;\n@!%p bra filled;\n"
SYNC = "bar.warp.sync -1;\n"
# Of round %i: its stage, its mbarriers and the parity of its phase.
NEXT = """and.b32 %r0, %i, 1;
shl.b32 %stage, %r0, 7;
mov.u32 %r1, buffer;
add.u32 %stage, %stage, %r1;
shl.b32 %r0, %r0, 3;
mov.u32 %full, fulls;
add.u32 %full, %full, %r0;
mov.u32 %empty, empties;
add.u32 %empty, %empty, %r0;
shr.u32 %phase, %i, 1;
and.b32 %phase, %phase, 1;
xor.b32 %other, %phase, 1;
"""


def kernel(copy: str) -> str:
    """Warp 0 copies a line of 128 bytes a round, warp 1 stores it to `y`; `rounds` is known at run time."""
    return f""".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .u32 rounds, .param .align 64 .b8 map[128])
{{
.reg .pred %p, %one, %second;
.reg .b32 %t, %i, %at, %rounds, %stage, %full, %empty, %phase, %other, %r<8>;
.reg .b64 %x, %y, %map, %d<4>;
.shared .align 1024 .b8 buffer[256];
.shared .align 8 .b8 fulls[16];
.shared .align 8 .b8 empties[16];
ld.param.u64 %x, [x];
ld.param.u64 %y, [y];
ld.param.u32 %rounds, [rounds];
mov.b64 %d2, map;
cvta.param.u64 %map, %d2;
mov.u32 %t, %tid.x;
setp.eq.u32 %one, %t, 0;
setp.eq.u32 %second, %t, 32;
@%one mbarrier.init.shared.b64 [fulls], 1;
@%one mbarrier.init.shared.b64 [fulls+8], 1;
@%one mbarrier.init.shared.b64 [empties], 1;
@%one mbarrier.init.shared.b64 [empties+8], 1;
@%one fence.mbarrier_init.release.cluster;
shl.b32 %r0, %t, 2;
mov.u32 %r1, buffer;
add.u32 %r1, %r1, %r0;
st.shared.b32 [%r1], 0; // zero
fence.proxy.async.shared::cta;
bar.sync 0;
mov.u32 %i, 0;
setp.ge.u32 %p, %t, 32;
@%p bra take;
fill:
{NEXT}{FREE}@!%one bra filled_one;
mbarrier.arrive.expect_tx.shared.b64 %d0, [%full], 128;
shl.b32 %at, %i, 5;
{copy}
filled_one:
add.s64 %x, %x, 128;
add.u32 %i, %i, 1;
setp.lt.u32 %p, %i, %rounds;
@%p bra fill;
bra over;
take:
{NEXT}{FULL}and.b32 %r2, %t, 31;
shl.b32 %r2, %r2, 2;
add.u32 %r3, %stage, %r2;
ld.shared.b32 %r4, [%r3]; // take
cvt.u64.u32 %d1, %r2;
add.s64 %d1, %d1, %y;
st.global.b32 [%d1], %r4;
fence.proxy.async.shared::cta;
{SYNC}@%second mbarrier.arrive.shared.b64 %d0, [%empty];
add.s64 %y, %y, 128;
add.u32 %i, %i, 1;
setp.lt.u32 %p, %i, %rounds;
@%p bra take;
over:
ret;
}}
"""


COPIES = {"bulk": BULK, "tensor": TENSOR}


def check(text: str, engine: str, schedule: str = "late") -> tuple[bool, set[tuple[object, ...]]]:
    """Whether `y` is `x`, and each finding: its verdict, cause, and what the marked accesses are called."""
    x, y = np.arange(1, ROUNDS * WORDS + 1, dtype=np.uint32), np.zeros(ROUNDS * WORDS, np.uint32)
    described = Map(x.ctypes.data, "u32", (x.size,), (), (WORDS,), 0).encode()
    memory = GlobalMemory()
    memory.add_array(x, "x")
    checker = LaunchChecker(parse(text).kernels["k"])
    arguments = [x, y, ROUNDS, described]
    with suppress(KernelFault):  # what was found before a hang counts
        run_ptx(
            text, "k", (1, 1, 1), (64, 1, 1), arguments, engine=engine, schedule=schedule, threads=1,
            memory=memory, checker=checker.begin,
        )  # fmt: skip
    lines = dict(enumerate(text.splitlines(), 1))
    found = {
        (one.verdict, one.cause, *sorted(lines[at.place.line].partition("// ")[2] for at in sides))
        for one in checker.found()
        for sides in [[side for side in (one.first, one.second) if side is not None]]
    }
    return bool(np.array_equal(x, y)), found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("copy", COPIES)
def test_the_pipeline_is_right(copy: str, engine: str) -> None:
    for schedule in ("late", "early", "random:3"):
        assert check(kernel(COPIES[copy]), engine, schedule) == (True, set())


# What is left out, and the cause and the two accesses of the error, in whatever order they came.
WAITS = {
    "for a free stage": (FREE, Cause.IN_FLIGHT, ("copy", "copy")),
    "for a full stage": (FULL, Cause.IN_FLIGHT, ("copy", "take")),
    "of the reader's lanes for each other": (SYNC, Cause.RACE, ("copy", "take")),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("copy", COPIES)
def test_without_a_wait_it_is_wrong(copy: str, wait: str, engine: str) -> None:
    """Under this schedule the two warps do not hang at once, which would be all that is reported."""
    text, (line, cause, accesses) = kernel(COPIES[copy]), WAITS[wait]
    assert text.count(line) == 1
    _, found = check(text.replace(line, ""), engine, "random:0")
    assert (Verdict.ERROR, cause, *accesses) in found
