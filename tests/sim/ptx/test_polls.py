# SPDX-License-Identifier: Apache-2.0
"""What a kernel does with the answer of a poll: loops that compilers emit, and polls that order nothing."""

import pytest

from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.ptx.polls import Answer, answers

HEAD = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .pred %p<8>; .reg .b32 %r<16>;
.shared .align 128 .b8 data[4096]; .shared .align 8 .b64 full; .shared .align 8 .b64 other;
mov.u32 %r0, %tid.x;
setp.eq.u32 %p0, %r0, 32;
mov.u32 %r1, 0;
"""
POLL = "mbarrier.try_wait.parity.shared.b64 {}, [full], 0;\n"
P, Q = POLL.format("%p1"), POLL.format("%p2")
LOOP = f"again: {Q}@!%p2 bra again;\n"
LOAD = "ld.shared.b32 %r9, [data];\n"
TOKEN = f"{P}selp.b32 %r2, 1, 0, %p1;\n"
RETRIED, READ, IGNORED = Answer.RETRIED, Answer.READ, Answer.IGNORED

CASES = {
    "the false answer goes back": (f"again: {P}@!%p1 bra again;\n{LOAD}", [RETRIED]),
    "the true answer goes on": (f"again: {P}@%p1 bra done;\nbra again;\ndone: {LOAD}", [RETRIED]),
    "with a pause": (f"again: {P}@%p1 bra done;\nnanosleep.u32 20;\nbra again;\ndone: {LOAD}", [RETRIED]),
    "with a limit that traps": (
        f"again: {P}@%p1 bra done;\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p3, %r1, 9;\n@%p3 bra again;\ntrap;\n"
        f"done: {LOAD}",
        [RETRIED],
    ),
    "by way of a number": (
        f"again: {TOKEN}setp.eq.s32 %p3, %r2, 0;\n@%p3 bra again;\n{LOAD}",
        [RETRIED],
    ),
    "a first poll, then a loop": (f"{P}@%p1 bra over;\n{LOOP}over: {LOAD}", [RETRIED, RETRIED]),
    # CUTLASS's try_acquire: other work, then a wait that the token skips.
    "a token": (
        f"{TOKEN}st.shared.b32 [data+64], %r0;\n@%p0 bra join;\nadd.u32 %r1, %r1, 1;\n"
        f"join: and.b32 %r3, %r2, 1;\nsetp.ne.s32 %p3, %r3, 0;\n@%p3 bra over;\n{LOOP}over: {LOAD}",
        [RETRIED, RETRIED],
    ),
    # The token of the next turn is asked for at the end of each but the last.
    "a token of the next turn": (
        f"{TOKEN}turn: setp.ne.s32 %p3, %r2, 0;\n@%p3 bra over;\n{LOOP}over: {LOAD}add.u32 %r1, %r1, 1;\n"
        f"setp.ge.u32 %p4, %r1, 3;\nmov.u32 %r2, 1;\n@%p4 bra next;\n{POLL.format('%p5')}"
        "selp.b32 %r2, 1, 0, %p5;\nnext: setp.lt.u32 %p6, %r1, 4;\n@%p6 bra turn;\n",
        [RETRIED, RETRIED, RETRIED],
    ),
    "nobody reads the answer": (f"{P}{LOAD}", [IGNORED]),
    "nobody reads it, and another poll follows": (f"{P}{LOAD}{LOOP}", [IGNORED, RETRIED]),
    "both answers go on alike": (f"{P}@!%p1 bra next;\nnext: {LOAD}", [IGNORED]),
    "it is only stored": (f"{TOKEN}st.shared.b32 [data+64], %r2;\n{LOAD}", [IGNORED]),
    "a loop that gives up": (
        f"again: {P}@%p1 bra done;\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p3, %r1, 9;\n@%p3 bra again;\n"
        f"done: {LOAD}",
        [IGNORED],
    ),
    "the retry does not look": (f"{P}@%p1 bra over;\n{Q}over: {LOAD}", [IGNORED, IGNORED]),
    "the true answer alone loads": (f"{P}@!%p1 bra end;\n{LOAD}", [READ]),
    "a guard": (f"{P}@%p1 {LOAD}", [READ]),
    "work while it is false": (f"{P}@%p1 bra over;\n{LOAD}over: add.u32 %r1, %r1, 1;\n", [IGNORED]),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_what_the_answer_of_a_poll_decides(text: str, expected: list[Answer]) -> None:
    kernel = parse(f"{HEAD}{text}end: ret;\n}}\n").kernels["k"]
    assert list(answers(kernel).values()) == expected
