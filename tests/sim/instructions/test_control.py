# SPDX-License-Identifier: Apache-2.0
"""Branches, loops and exits of lanes that disagree, guards, traps and registers that nobody wrote."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault, PtxSyntaxError, UnsupportedError
from tests.messages import wording
from tests.sim.instructions.exact import elementwise
from tests.sim.instructions.one_instruction import BLOCK, apply, check, one
from tests.sim.instructions.operands import integers


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def test_loops_of_different_length(engine: str) -> None:
    """Each lane leaves a loop in its own round, with a branch inside."""
    a = np.arange(1, 513, dtype=np.uint32)
    text = """.reg .pred %p; .reg .b32 %n, %bit;
    mov.b32 %n, %s0; mov.b32 %d0, 0;
    LOOP:
    setp.eq.u32 %p, %n, 1;
    @%p bra DONE;
    add.s32 %d0, %d0, 1;
    and.b32 %bit, %n, 1;
    setp.eq.u32 %p, %bit, 0;
    @%p bra EVEN;
    mad.lo.s32 %n, %n, 3, 1;
    bra LOOP;
    EVEN:
    shr.u32 %n, %n, 1;
    bra LOOP;
    DONE:"""
    check(one(engine, text, [a], np.uint32), elementwise(collatz, np.uint32, a), a)


def test_guards(engine: str) -> None:
    a = integers(np.uint32, 1)
    p = np.random.default_rng(2).integers(0, 2, a.size).astype(np.bool_)
    text = "mov.b32 %d0, %s0; @%s1 add.s32 %d0, %d0, 1; @!%s1 shl.b32 %d0, %d0, 3;"
    check(one(engine, text, [a, p], np.uint32), np.where(p, a + np.uint32(1), a << np.uint32(3)), a, p)


def test_exit_of_some_lanes(engine: str) -> None:
    """What lanes stored before they left stays; the others go on."""
    p = np.random.default_rng(3).integers(0, 2, 4 * BLOCK).astype(np.bool_)
    text = "mov.b32 %d0, 3; @%s0 exit; mov.b32 %d0, 4;"
    check(one(engine, text, [p], np.uint32), np.where(p, np.uint32(0), np.uint32(4)), p)


def test_nested_divergence(engine: str) -> None:
    a = np.arange(BLOCK, dtype=np.uint32)
    text = """.reg .pred %p, %q; .reg .b32 %x;
    mov.b32 %d0, 0;
    and.b32 %x, %s0, 1; setp.ne.u32 %p, %x, 0;
    and.b32 %x, %s0, 2; setp.ne.u32 %q, %x, 0;
    @%p bra ODD;
    @%q bra TWO;
    add.s32 %d0, %d0, 100;
    bra JOIN;
    TWO: add.s32 %d0, %d0, 200;
    bra JOIN;
    ODD:
    @!%q bra ONE;
    add.s32 %d0, %d0, 300;
    bra JOIN;
    ONE: add.s32 %d0, %d0, 400;
    JOIN:
    activemask.b32 %x;
    add.s32 %d0, %d0, %x;"""
    values = np.array([100, 400, 200, 300], np.uint32)[a % 4] + np.uint32(0xFFFFFFFF)
    check(one(engine, text, [a], np.uint32), values, a)


def test_a_lane_may_spin_on_another(engine: str) -> None:
    """Lane 0 waits at a lower place for what lane 1 does at a higher one."""
    text = """.shared .align 4 .b8 flag[16];
    .reg .b32 %lane, %x, %warp; .reg .pred %p; .reg .b32 %at;
    mov.u32 %lane, %laneid; mov.u32 %warp, %warpid; mov.u32 %at, flag; mad.lo.s32 %at, %warp, 4, %at;
    mov.b32 %x, 0; st.shared.b32 [%at], %x; bar.warp.sync -1;
    setp.eq.u32 %p, %lane, 1;
    @%p bra WRITE;
    SPIN:
    ld.volatile.shared.b32 %x, [%at];
    setp.eq.u32 %p, %x, 0;
    @%p bra SPIN;
    bra DONE;
    WRITE:
    mov.b32 %x, 5;
    st.volatile.shared.b32 [%at], %x;
    DONE:
    mov.b32 %d0, %x;"""
    assert one(engine, text, [], np.uint32).tolist() == [5] * BLOCK


def test_trap(engine: str) -> None:
    p = np.zeros(BLOCK, np.bool_)
    assert one(engine, "@%s0 trap; mov.b32 %d0, 1;", [p], np.uint32).all()
    p[77] = True
    with pytest.raises(KernelFault) as caught:
        one(engine, "@%s0 trap; mov.b32 %d0, 1;", [p], np.uint32)
    assert caught.value.kind is FaultKind.TRAP
    assert "warp 2" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["add.rn.bf16x2 %d0, %s0, %s0, %s0;", "cvt.rs.f16x2.f32 %d0, %s0, %s0, %s0;",
     "cvt.rn.f32.f32x2 %d0, %s0;",
     "mul.lo.f32 %d0, %s0, %s0;", "setp.lo.s32 %d0, %s0, %s0;"],
)  # fmt: skip
def test_unknown_spellings_are_refused_by_name(engine: str, text: str) -> None:
    with pytest.raises(UnsupportedError, match=text.split()[0].rsplit(".", 1)[0].split(".")[0]):
        one(engine, text, [np.zeros(BLOCK, np.uint32)], np.uint32)


# (what is done with a register %u that nobody wrote, whether that is a use)
UNWRITTEN = {
    "add": ("add.s32 %d0, %u, 1;", True),
    "address": ("ld.shared.b32 %d0, [%u];", True),
    "guard": (".reg .pred %p; @%p mov.b32 %d0, 1;", True),
    "branch": (".reg .pred %p; @%p bra AWAY; AWAY: mov.b32 %d0, 1;", True),
    "store to global": ("mov.b32 %d0, %u;", True),
    "selected": ("selp.b32 %d0, 1, %u, %s1;", True),
    "shuffled": ("shfl.sync.idx.b32 %d0, %u, 0, 31, -1;", True),
    "half of a pack": (".reg .b16 %h; mov.b32 %v, {%h, %h}; add.s32 %d0, %v, 1;", True),
    "moved and never used": ("mov.b32 %v, %u; mov.b32 %w, %v; mov.b32 %d0, 1;", False),
    "not selected": ("selp.b32 %d0, %s0, %u, %s2;", False),
    "packed and unpacked": (
        ".reg .b16 %h, %g; cvt.u16.u32 %g, %s0; mov.b32 %v, {%g, %h};"
        "mov.b32 {%g, _}, %v; cvt.u32.u16 %d0, %g;",
        False,
    ),
    "bytes by prmt": (
        "prmt.b32 %v, %s0, %u, 0x4410; prmt.b32 %v, %v, %s0, 0x5410; mov.b32 %d0, %v;",
        False,
    ),
    "stored to shared memory": (
        ".shared .align 4 .b8 room[4]; st.shared.b32 [room], %u; mov.b32 %d0, 1;",
        False,
    ),
    "read back from shared memory": (
        ".shared .align 4 .b8 room[4]; st.shared.b32 [room], %u; ld.shared.b32 %d0, [room];",
        True,
    ),
    "shared memory": (".shared .align 4 .b8 room[4]; ld.shared.b32 %d0, [room];", True),
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_what_was_never_written(case: str) -> None:
    """Only the interpreter keeps track; a move is no use, whatever reads the value later is."""
    text, used = UNWRITTEN[case]
    a, no, yes = np.arange(BLOCK, dtype=np.uint32), np.zeros(BLOCK, np.bool_), np.ones(BLOCK, np.bool_)
    body = f".reg .b32 %u, %v, %w;\n{text}"
    if not used:
        apply("interpreter", body, [a, no, yes], [np.uint32])
        return
    with pytest.raises(KernelFault) as caught:
        apply("interpreter", body, [a, no, yes], [np.uint32])
    assert caught.value.kind is FaultKind.UNINITIALISED


def test_written_by_some_lanes_only() -> None:
    """A register is written lane by lane."""
    p = np.random.default_rng(4).integers(0, 2, BLOCK).astype(np.bool_)
    both = ".reg .b32 %u; @%s0 mov.b32 %u, 1; @!%s0 mov.b32 %u, 2; add.s32 %d0, %u, 1;"
    assert one("interpreter", both, [p], np.uint32).tolist() == np.where(p, 2, 3).tolist()
    some = ".reg .b32 %u; @%s0 mov.b32 %u, 1; "
    with pytest.raises(KernelFault, match=wording("sim.interpreter.register-unwritten", name="%u")):
        one("interpreter", some + "ld.global.b32 %d0, [%u];", [p], np.uint32)
    with pytest.raises(KernelFault, match=wording("sim.interpreter.register-computed", name="%d0")):
        one("interpreter", some + "add.s32 %d0, %u, 1;", [p], np.uint32)


TABLE = """.reg .b32 %i, %x; .reg .pred %p, %q;
and.b32 %x, %s0, 1; setp.eq.u32 %p, %x, 0; shr.u32 %i, %s0, 1;
mov.b32 %d0, 7;
cases: .branchtargets ZERO, ONE, ZERO, THREE;
@%p brx.idx{uni} %i, cases;
add.s32 %d0, %d0, 1000;
bra DONE;
ONE: add.s32 %d0, %d0, 10;
THREE: add.s32 %d0, %d0, 30;
bra DONE;
ZERO: add.s32 %d0, %d0, 1;
DONE:
activemask.b32 %x; add.s32 %d0, %d0, %x;"""


def test_a_branch_by_a_table(engine: str) -> None:
    """Lanes of one warp go to all targets, two entries to the same one, and the odd ones go on; then they
    meet again."""
    a = np.arange(BLOCK, dtype=np.uint32) % 8
    expected = np.where(a % 2 == 1, 1007, np.array([8, 47, 8, 37], np.uint32)[a // 2])
    expected = expected.astype(np.uint32) + np.uint32(0xFFFFFFFF)
    check(one(engine, TABLE.replace("{uni}", ""), [a], np.uint32), expected, a)


def test_a_branch_by_a_table_that_ends_threads(engine: str) -> None:
    """A target that only exits, and a warp that agrees."""
    a = np.repeat(np.arange(BLOCK // 32, dtype=np.uint32), 32)
    text = """mov.b32 %d0, 5; t: .branchtargets A, B, C, A; brx.idx.uni %s0, t;
    B: exit; C: mov.b32 %d0, 6; bra A; A: mov.b32 %d0, %d0;"""
    check(one(engine, text, [a], np.uint32), np.array([5, 0, 6, 5], np.uint32)[a], a)


def test_a_branch_beyond_its_table(engine: str) -> None:
    a = np.zeros(BLOCK, np.uint32)
    a[37] = 8
    with pytest.raises(KernelFault) as caught:
        one(engine, TABLE.replace("{uni}", ""), [a], np.uint32)
    assert caught.value.kind is FaultKind.BRANCH
    assert "index 4 of lane 5; the table has 4" in str(caught.value)
    assert "warp 1" in str(caught.value)


def test_an_unknown_table(engine: str) -> None:
    with pytest.raises(PtxSyntaxError, match=wording("sim.ptx.table-unknown", name="nowhere")):
        one(engine, "brx.idx %s0, nowhere;", [np.zeros(BLOCK, np.uint32)], np.uint32)
