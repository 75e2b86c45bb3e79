# SPDX-License-Identifier: Apache-2.0
"""Kernels in the form of bugs that are in no release of the package index, or that a quick test should have
too: each commits the bug, and its twin, which differs in a line, does not. zoo/classes.toml names the bug
that each stands for, and the tests elsewhere that stand for other classes.

Expectations are the PTX ISA's: "bar, barrier", "mbarrier" (waits by parity), 9.7.16 ("tcgen05.mma", input of
D), "mad" (32 bits wrap around); and of the two kernels that are wrong in their numbers, NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.checker.happens_before import Cause
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.run import ENGINES, run_ptx
from tests.messages import wording
from tests.sim.checker.test_kinds import AFTER, BEFORE, COMMIT, FREE, OPERANDS
from tests.sim.happens_before_cases import HEADER, READY, Case, check_right, check_wrong, wait

each_engine = pytest.mark.parametrize("engine", ENGINES)

# Of a thread of four warps: %r1 is its word of the buffer, %r2 that of the thread modulo 64.
WORDS = """setp.lt.u32 %q, %t, 64;
shl.b32 %r1, %t, 2;
add.u32 %r1, %r1, %s;
and.b32 %r2, %t, 63;
shl.b32 %r2, %r2, 2;
add.u32 %r2, %r2, %s;
mov.u32 %r3, 0;
"""
NEXT_CHUNK = "add.u32 %r3, %r3, 1;\nsetp.lt.u32 %p, %r3, 3;\n@%p bra chunk;\n"
# D of 64 x 8 in all lanes: four warps, each with the lanes that it reaches.
ALLOCATED = (
    "@%w1 bra allocated;\nsetp.ne.u32 %p, %w, 0;\n@%p bra allocated;\nmov.u32 %r9, other;\n"
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r9], 32;\nallocated:\n"
    "bar.sync 0;\nld.shared.b32 %r8, [other];\nshl.b32 %r9, %w, 21;\nadd.u32 %r8, %r8, %r9;\n"
)
ZEROS = "tcgen05.st.sync.aligned.32x32b.x8.b32 [%r8], {%r7, %r7, %r7, %r7, %r7, %r7, %r7, %r7};"
ADDED = "@%one tcgen05.mma.cta_group::1.kind::f16 [%r8], %d1, %d1, %r6, 1;"

CASES = {
    # SGLang pull request 37288: 64 threads store the gate sums of a chunk, which 128 read.
    "a barrier before the next chunk's values": Case(
        f"{WORDS}chunk:\n@%q st.shared.b32 [%r1+512], %r3; // a\nbar.sync 1, 128;\n"
        f"ld.shared.b32 %r4, [%r2+512]; // b\nbar.sync 2, 128; // -\n{NEXT_CHUNK}",
        frozenset({(Cause.RACE, "a", "b")}),
        threads=128,
    ),
    # SGLang pull request 37287: an epilogue stores over the operands that other warps still read.
    "a barrier before an epilogue's tile over an operand's": Case(
        f"{WORDS}@%q st.shared.b32 [%r1+512], %t;\nbar.sync 1, 128;\nld.shared.b32 %r4, [%r2+512]; // a\n"
        "bar.sync 2, 128; // -\n@%q st.shared.b32 [%r1+512], %r4; // b\nbar.sync 3, 128;\n",
        frozenset({(Cause.RACE, "a", "b")}),
        threads=128,
    ),
    # FlashAttention pull request 2229: two warps index the scales alike.
    "an index of each warp's own": Case(
        f"{WORDS}and.b32 %r5, %t, 31;\nshl.b32 %r5, %r5, 2;\nadd.u32 %r5, %r5, %s;\n"
        "shl.b32 %r6, %w, 7;\nadd.u32 %r5, %r5, %r6; // -\nst.shared.b32 [%r5+512], %t; // a\n",
        frozenset({(Cause.RACE, "a", "a")}),
        threads=128,
    ),
    # TensorRT-LLM issue 18338: warps leave a loop by a word that the first one rewrites for the next round.
    "a barrier between the test of a loop's end and the next round": Case(
        f"{WORDS}chunk:\n@%one st.shared.b32 [%s+512], %r3; // a\nbar.sync 1, 128;\n"
        "ld.shared.b32 %r4, [%s+512]; // b\nbar.sync 2, 128; // -\n"
        "add.u32 %r3, %r3, 1;\nsetp.lt.u32 %p, %r4, 2;\n@%p bra chunk;\n",
        frozenset({(Cause.RACE, "a", "b")}),
        threads=128,
    ),
    # FlashInfer issue 4704 suspects it: a product adds to tensor memory that nothing has written.
    "zeros in tensor memory before a product is added to it": Case(
        f"{READY}setp.lt.u32 %q, %t, 64;\n{OPERANDS.replace('st.shared', '@%q st.shared')}{ALLOCATED}"
        f"mov.u32 %r7, 0;\n{ZEROS} // -\ntcgen05.wait::st.sync.aligned;\n"
        f"{BEFORE}\nbar.sync 0;\n{AFTER}\n{ADDED} // b\n{COMMIT}\n{wait('full', 0, 'done')}"
        f"{FREE.replace('@%w1 bra', 'setp.ne.u32 %p, %w, 0;' + chr(10) + '@%p bra')}",
        frozenset({("uninitialised read", "", "b")}),
        threads=128,
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_engine
@each_case
def test_right(case: Case, engine: str) -> None:
    check_right(case, engine)


@each_engine
@each_case
def test_wrong(case: Case, engine: str) -> None:
    check_wrong(case, engine)


def launch(body: str, engine: str, memory: np.ndarray, ctas: int = 1, threads: int = 128) -> None:
    text = f"{HEADER}{body}ret;\n}}\n"
    run_ptx(text, "k", (ctas, 1, 1), (threads, 1, 1), [memory], engine=engine, threads=1)


# Warp 0 fills the one stage of a pipeline twice and warp 1 empties it. Then warp 2 waits, as producer_tail
# does, with the state of a producer that has filled nothing: for the phase before the first.
TAILED = (
    f"{READY}@%w0 bra fill;\n@%w1 bra take;\nbar.sync 1, 96;\n@@bra over;\n"
    f"fill:\n{wait('empty', 1, 'free')}@%one mbarrier.arrive.shared.b64 %d0, [full];\n"
    f"{wait('empty', 0, 'again')}bar.sync 1, 96;\nbra over;\n"
    f"take:\n{wait('full', 0, 'filled')}@%second mbarrier.arrive.shared.b64 %d0, [empty];\n"
    "bar.sync 1, 96;\nover:\n"
)


@each_engine
def test_the_tail_of_another_roles_pipeline(engine: str) -> None:
    """FlashInfer pull request 3581. The phase that the third warp waits for never comes."""
    memory = np.zeros(1024, np.uint32)
    launch(TAILED.replace("@@", ""), engine, memory, threads=96)
    hangs = wording("sim.machine.deadlock", where="the CTA", waits="1 wait")
    with pytest.raises(KernelFault, match=hangs) as caught:
        launch(TAILED.replace("@@", wait("empty", 1, "tail")), engine, memory, threads=96)
    assert caught.value.kind is FaultKind.DEADLOCK
    assert "warp 2 (32 lanes) waits for mbarrier" in caught.value.message


# Each thread multiplies by the product of all gates of a chunk of 64, which is the last of the running ones.
DECAYED = """and.b32 %r1, %t, 3;
shl.b32 %r1, %r1, 1;
add.u32 %r1, %r1, 57;
@@
mad.wide.u32 %d0, %r1, 4, %g;
ld.global.f32 %f0, [%d0];
mad.wide.u32 %d1, %t, 4, %g;
st.global.f32 [%d1+256], %f0;
"""


@each_engine
def test_an_index_that_depends_on_the_thread(engine: str) -> None:
    """FlashInfer pull requests 3156 and 4311: threads read positions 57, 59, 61 and 63 of 64. The numbers
    tell it where gates differ, and gates of 1 hide it."""
    for gates, seen in ((np.full(64, 0.5, np.float32), True), (np.ones(64, np.float32), False)):
        running = np.cumprod(gates)
        for line, right in (("mov.u32 %r1, 63;", True), ("", not seen)):
            memory = np.zeros(1024, np.float32)
            memory[:64] = running
            launch(DECAYED.replace("@@", line), engine, memory)
            assert np.array_equal(memory[64:192], np.full(128, running[-1])) == right


@each_engine
def test_an_offset_of_32_bits(engine: str) -> None:
    """flash-linear-attention pull request 1082: slot 8,192 of 256 KiB is 2 GiB behind the first. In 32 bits
    that is negative."""
    wide, narrow = (
        "mad.wide.u32 %d0, %r1, 262144, %g;\n",
        "mul.lo.s32 %r2, %r1, 262144;\ncvt.s64.s32 %d0, %r2;\nadd.s64 %d0, %d0, %g;\n",
    )
    memory = np.zeros(2**29 + 1024, np.uint32)  # never touched but for a page
    body = "mov.u32 %r1, 8192;\n@@@%one st.global.b32 [%d0], 7;\n"
    launch(body.replace("@@@", f"{wide}@"), engine, memory, threads=32)
    assert memory[2**29] == 7
    with pytest.raises(KernelFault) as caught:
        launch(body.replace("@@@", f"{narrow}@"), engine, memory, threads=32)
    assert caught.value.kind is FaultKind.OUT_OF_BOUNDS
