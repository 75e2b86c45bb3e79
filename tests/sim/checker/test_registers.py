# SPDX-License-Identifier: Apache-2.0
"""Registers that are used before they have a value: findings of the checker, the same in both engines.

PTX ISA: a register has no value before its first write; 9.7.16.6.4.5 for tcgen05.ld, 9.7.15.7 for wgmma. Each
case says by hand which instruction uses which register.
"""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim import run_ptx
from gdnbench.sim.checker.evidence import Evidence
from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.compiler import kernel as kernels
from gdnbench.sim.errors import KernelFault
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import ENGINES
from tests.sim.fault_cases import ALLOCATE, FREE, GLOBAL_BYTES, LOAD_TMEM, USES, WAIT_LOAD, ptx, used_early

UNINITIALISED, NO_WAIT = "uninitialised read", Cause.NO_WAIT.value


def found(text: str, engine: str, threads: int = 32, schedule: str = "late") -> list[Evidence]:
    """What the checker finds, up to a fault if there is one."""
    data = np.ones(GLOBAL_BYTES // 4, np.float32)
    try:
        told = run_ptx(
            text,
            "k",
            (1, 1, 1),
            (threads, 1, 1),
            [data],
            engine=engine,
            schedule=schedule,
            check=True,
            threads=1,
        ).found
    except KernelFault as fault:
        told = fault.found
    assert told is not None
    return list(told)


def uses(evidence: list[Evidence]) -> set[tuple[str, str, str]]:
    """(cause, register, opcode of the use) of those of registers."""
    return {
        (one.cause, one.where, one.second.place.text.split(" ")[0])
        for one in evidence
        if one.memory == "register" and one.second is not None
    }


# Name -> (body, register and opcode that are found, None if it is right). `keep(4)` stores %r4 to global
# memory.
LOWER = "setp.lt.u32 %p4, %r0, 16;\n"


def keep(register: int) -> str:
    return f"\nst.global.b32 [%d0], %r{register};"


KEPT = "st.global.b32"
UNWRITTEN: dict[str, tuple[str, tuple[str, str] | None]] = {
    "arithmetic": ("add.s32 %r4, %r3, 1;", None),
    "written before": ("mov.b32 %r3, 1;\nadd.s32 %r4, %r3, 1;" + keep(4), None),
    "a guard": ("@%p5 add.s32 %r4, %r0, 1;", ("%p5", "@%p5")),
    "a branch": ("@%p5 bra on;\non:", ("%p5", "@%p5")),
    "an address": ("ld.shared.b32 %r4, [%r3];", ("%r3", "ld.shared.b32")),
    "a global store": ("st.global.b32 [%d0], %r3;", ("%r3", "st.global.b32")),
    "the machine's operand": (
        "mbarrier.init.shared.b64 [barrier], %r3;",
        ("%r3", "mbarrier.init.shared.b64"),
    ),
    "a shuffle's lane": ("shfl.sync.idx.b32 %r4, %r0, %r3, 31, -1;", ("%r3", "shfl.sync.idx.b32")),
    "written in the lanes that use it": (
        LOWER + "@%p4 mov.b32 %r3, 1;\n@%p4 add.s32 %r4, %r3, 1;\n@%p4 st.global.b32 [%d0], %r4;",
        None,
    ),
    "written in other lanes": (
        LOWER + "@%p4 mov.b32 %r3, 1;\n@!%p4 st.global.b32 [%d0], %r3;",
        ("%r3", "@!%p4"),
    ),
    "written on one way": (
        LOWER + "@%p4 bra on;\nmov.b32 %r3, 1;\non:\nadd.s32 %r4, %r3, 1;" + keep(4),
        ("%r4", KEPT),
    ),
    "used on the way that writes": (
        LOWER
        + "@%p4 bra skip;\nmov.b32 %r3, 1;\nskip:\n@%p4 bra on;\nadd.s32 %r4, %r3, 1;"
        + keep(4)
        + "\non:",
        None,
    ),
    "from the last round of a loop": (
        "mov.b32 %r5, 0;\nagain:\nsetp.eq.s32 %p4, %r5, 0;\n@%p4 bra first;\nadd.s32 %r4, %r3, 1;"
        + keep(4)
        + "\nfirst:\nmov.b32 %r3, %r5;\nadd.s32 %r5, %r5, 1;\nsetp.lt.s32 %p6, %r5, 3;\n@%p6 bra again;",
        None,
    ),
    "before the first round of a loop": (
        "mov.b32 %r5, 0;\nagain:\nadd.s32 %r4, %r3, 1;"
        + keep(4)
        + "\nmov.b32 %r3, %r5;\nadd.s32 %r5, %r5, 1;\nsetp.lt.s32 %p6, %r5, 3;\n@%p6 bra again;",
        ("%r4", KEPT),
    ),
    "moved and never used": ("mov.b32 %r4, %r3;\nmov.b64 %d1, {%r4, %r0};\nmov.b64 {%r5, %r6}, %d1;", None),
    "the other half of a pair": (
        "mov.b64 %d1, {%r3, %r0};\nmov.b64 {%r5, %r6}, %d1;\nneg.s32 %r7, %r6;" + keep(7),
        None,
    ),
    "that half of a pair": (
        "mov.b64 %d1, {%r3, %r0};\nmov.b64 {%r5, %r6}, %d1;\nneg.s32 %r7, %r5;" + keep(7),
        ("%r7", KEPT),
    ),
    "not chosen": (
        "setp.eq.u32 %p4, %r0, 40;\nselp.b32 %r4, %r3, %r0, %p4;\nneg.s32 %r5, %r4;" + keep(5),
        None,
    ),
    "chosen in a lane": (
        "setp.eq.u32 %p4, %r0, 7;\nselp.b32 %r4, %r3, %r0, %p4;" + keep(4),
        ("%r4", KEPT),
    ),
    "chosen by": ("selp.b32 %r4, %r0, 5, %p5;" + keep(4), ("%r4", KEPT)),
    "bytes built up": (
        "prmt.b32 %r3, %r0, %r3, 0x7650;\nprmt.b32 %r4, %r3, 0, 0x4440;\nneg.s32 %r5, %r4;" + keep(5),
        None,
    ),
    "a byte too many": (
        "prmt.b32 %r3, %r0, %r3, 0x7650;\nprmt.b32 %r4, %r3, 0, 0x4414;\nneg.s32 %r5, %r4;" + keep(5),
        ("%r5", KEPT),
    ),
    "shuffled from a lane that has it": (
        LOWER + "@%p4 mov.b32 %r3, 1;\nshfl.sync.idx.b32 %r4, %r3, 3, 31, -1;\nneg.s32 %r5, %r4;" + keep(5),
        None,
    ),
    "shuffled from a lane that lacks it": (
        LOWER + "@%p4 mov.b32 %r3, 1;\nshfl.sync.idx.b32 %r4, %r3, 20, 31, -1;\nneg.s32 %r5, %r4;" + keep(5),
        ("%r5", KEPT),
    ),
    "stored to shared memory": ("st.shared.b32 [buffer], %r3;", None),
    "computed and stored to shared memory": (
        "neg.s32 %r4, %r3;\nst.shared.b32 [buffer], %r4;",
        ("%r4", "st.shared.b32"),
    ),
    "computed and overwritten": ("neg.s32 %r4, %r3;\nmov.b32 %r4, 5;" + keep(4), None),
    "computed over several steps": (
        "neg.s32 %r4, %r3;\nmov.b64 %d1, {%r0, %r4};\nmov.b64 {%r5, %r6}, %d1;\nadd.s32 %r6, %r6, %r0;\n"
        "shfl.sync.bfly.b32 %r7, %r6, 1, 31, -1;" + keep(7),
        ("%r7", KEPT),
    ),
    "the other half of what was computed": (
        "neg.s32 %r4, %r3;\nmov.b64 %d1, {%r0, %r4};\nmov.b64 {%r5, %r6}, %d1;" + keep(5),
        None,
    ),
    # What LLVM makes of an odd number of float sums for SM100: the other half is never written, nor used.
    "the defined half of packed floats": (
        "mov.b64 %d1, {%r0, %r3};\nmov.b64 %d2, {%r0, %r0};\nfma.rn.f32x2 %d3, %d2, %d2, %d1;\n"
        "mov.b64 {%r4, _}, %d3;\nmov.b64 %d1, {%r5, %r4};\nadd.f32x2 %d3, %d2, %d1;\nmov.b64 {_, %r6}, %d3;"
        + keep(6),
        None,
    ),
    "the undefined half of packed floats": (
        "mov.b64 %d1, {%r0, %r3};\nmov.b64 %d2, {%r0, %r0};\nfma.rn.f32x2 %d3, %d2, %d2, %d1;\n"
        "mov.b64 {_, %r4}, %d3;" + keep(4),
        ("%r4", KEPT),
    ),
    "both halves of packed floats": (
        "mov.b64 %d1, {%r0, %r3};\nadd.f32x2 %d3, %d1, %d1;\nst.global.b64 [%d0], %d3;",
        ("%d3", "st.global.b64"),
    ),
    "an undefined half that packed steps carry": (
        "mov.b64 %d1, {%r3, %r0};\nmov.b64 %d2, {%r0, %r0};\nmul.f32x2 %d3, %d1, %d2;\n"
        "sub.f32x2 %d4, %d2, %d3;\nmov.b64 {%r4, %r5}, %d4;" + keep(4),
        ("%r4", KEPT),
    ),
    "the defined half of packed halves": (
        "mov.b32 {%h1, %h2}, %r0;\nmov.b32 %r4, {%h1, %h3};\nadd.rn.bf16x2 %r5, %r4, %r0;\n"
        "mov.b32 {%h4, _}, %r5;\nst.global.b16 [%d0], %h4;",
        None,
    ),
    "the undefined half of packed halves": (
        "mov.b32 {%h1, %h2}, %r0;\nmov.b32 %r4, {%h1, %h3};\nadd.rn.bf16x2 %r5, %r4, %r0;\n"
        "mov.b32 {_, %h4}, %r5;\nst.global.b16 [%d0], %h4;",
        ("%h4", "st.global.b16"),
    ),
    # The first source of a packing cvt is the upper half (PTX ISA 9.7.9.21).
    "the lower half that cvt packs": (
        "cvt.rn.bf16x2.f32 %r5, %r3, %r0;\nmov.b32 {%h4, _}, %r5;\nst.global.b16 [%d0], %h4;",
        None,
    ),
    "the upper half that cvt packs": (
        "cvt.rn.bf16x2.f32 %r5, %r3, %r0;\nmov.b32 {_, %h4}, %r5;\nst.global.b16 [%d0], %h4;",
        ("%h4", "st.global.b16"),
    ),
    "an address computed": ("add.s32 %r4, %r3, 4;\nld.shared.b32 %r5, [%r4];", ("%r4", "ld.shared.b32")),
    "a branch computed": ("setp.gt.s32 %p4, %r3, 0;\n@%p4 bra on;\non:", ("%p4", "@%p4")),
    "a guard computed": ("setp.gt.s32 %p4, %r3, 0;\n@%p4 mov.b32 %r4, 1;", ("%p4", "@%p4")),
    "a condition that another one decides": (
        "setp.gt.s32 %p4, %r3, 0;\nsetp.gt.u32 %p6, %r0, 40;\nand.pred %p4, %p6, %p4;\n@%p4 bra on;\non:",
        None,
    ),
    "a condition that another one does not decide": (
        "setp.gt.s32 %p4, %r3, 0;\nsetp.lt.u32 %p6, %r0, 40;\nand.pred %p4, %p6, %p4;\n@%p4 bra on;\non:",
        ("%p4", "@%p4"),
    ),
    "bits that a mask sets": ("or.b32 %r4, %r3, -1;" + keep(4), None),
    "bits that a mask leaves": ("or.b32 %r4, %r3, 0xFFFF;" + keep(4), ("%r4", KEPT)),
    # What Triton makes of a reduction over a CTA: the first lanes load the sums of the warps, and all lanes
    # add them up; the first lane's sum is stored.
    "a reduction in the first lanes": (
        LOWER + "@%p4 mov.b32 %r3, 1;\nshfl.sync.bfly.b32 %r4, %r3, 8, 31, -1;\nadd.s32 %r5, %r3, %r4;\n"
        "shfl.sync.bfly.b32 %r6, %r5, 4, 31, -1;\nadd.s32 %r5, %r5, %r6;\nsetp.eq.u32 %p6, %r0, 0;\n"
        "@%p6 st.shared.b32 [buffer], %r5;\n@%p6 st.global.b32 [%d0], %r5;",
        None,
    ),
    "a reduction over too many lanes": (
        LOWER + "@%p4 mov.b32 %r3, 1;\nshfl.sync.bfly.b32 %r4, %r3, 16, 31, -1;\nadd.s32 %r5, %r3, %r4;\n"
        "setp.eq.u32 %p6, %r0, 0;\n@%p6 st.global.b32 [%d0], %r5;",
        ("%r5", "@%p6"),
    ),
    "reduced in the lanes that have it": (
        LOWER + "@%p4 mov.b32 %r3, 1;\nselp.b32 %r7, 0xFFFF, 0xFFFF0000, %p4;\n"
        "redux.sync.add.s32 %r4, %r3, %r7;\n@%p4 st.global.b32 [%d0], %r4;",
        None,
    ),
    "reduced with lanes that lack it": (
        LOWER + "@%p4 mov.b32 %r3, 1;\nredux.sync.add.s32 %r4, %r3, -1;\n@%p4 st.global.b32 [%d0], %r4;",
        ("%r4", "@%p4"),
    ),
    "voted with lanes that lack it": (
        LOWER + "@%p4 setp.eq.u32 %p5, %r0, 0;\nvote.sync.any.pred %p6, %p5, -1;\n@%p6 bra on;\non:",
        ("%p6", "@%p6"),
    ),
    "matched with lanes that lack it": (
        LOWER + "@%p4 mov.b32 %r3, 1;\nmatch.sync.any.b32 %r4, %r3, -1;" + keep(4),
        ("%r4", KEPT),
    ),
    "rows of a matrix that other lanes name": (
        "mov.u32 %r5, buffer;\nst.shared.v4.b32 [buffer], {%r0, %r0, %r0, %r0};\nsetp.lt.u32 %p4, %r0, 8;\n"
        "bar.warp.sync -1;\n@%p4 mov.b32 %r3, %r5;\n"
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r3];",
        None,
    ),
    "rows of a matrix": (
        "mov.u32 %r5, buffer;\nst.shared.v4.b32 [buffer], {%r0, %r0, %r0, %r0};\nsetp.lt.u32 %p4, %r0, 7;\n"
        "bar.warp.sync -1;\n@%p4 mov.b32 %r3, %r5;\n"
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r3];",
        ("%r3", "ldmatrix.sync.aligned.m8n8.x1.shared.b16"),
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", UNWRITTEN)
def test_registers_that_were_never_written(name: str, engine: str) -> None:
    body, expected = UNWRITTEN[name]
    evidence = found(ptx(body), engine)
    assert uses(evidence) == (
        {(UNINITIALISED, f"register {expected[0]}", expected[1])} if expected else set()
    )
    for one in evidence:
        assert one.memory != "register" or (one.verdict, one.count) == (Verdict.ERROR, 1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", USES)
def test_a_load_from_tensor_memory_that_is_not_waited_for(name: str, engine: str) -> None:
    text = ptx(used_early(name))
    (one,) = [one for one in found(text, engine) if one.memory == "register"]
    assert (one.cause, one.verdict, one.section) == (NO_WAIT, Verdict.REVIEW, "PTX ISA 9.7.16.6.4.5")
    assert one.first is not None
    assert one.second is not None
    assert one.first.place.text.startswith("tcgen05.ld")
    assert text.splitlines()[one.second.place.line - 1].startswith(USES[name][1])
    waited = found(ptx(used_early(name), line=WAIT_LOAD), engine)
    assert not [one for one in waited if one.memory == "register"]


FILL = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r0, %r0};\ntcgen05.wait::st.sync.aligned;\n"
USE = "neg.s32 %r6, %r5;\n"
MASK = "setp.eq.u32 %p4, %r0, 40;\nselp.b32 %r6, %r5, 0, %p4;\nneg.s32 %r7, %r6;\n"  # no lane is 40
MOVE = "mov.b32 %r6, %r5;\n"
REUSE = FILL + WAIT_LOAD + "\n" + FREE
IN_FLIGHT, RACE = Cause.IN_FLIGHT.value, Cause.RACE.value
# What follows a tcgen05.ld, and what is found in tensor memory, after a use of what it loads and without one.
# `selp` depends on both registers, whichever it chooses: "Register dependency" does not go by values.
AFTERWARDS = {
    "another store": (REUSE, NO_WAIT, IN_FLIGHT),
    "a store after the wait": (WAIT_LOAD + "\n" + REUSE, None, None),
    "deallocation": (FREE, NO_WAIT, RACE),
    "deallocation after the wait": (WAIT_LOAD + "\n" + FREE, None, None),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("use", [USE, MASK, MOVE, ""])
@pytest.mark.parametrize("name", AFTERWARDS)
def test_what_follows_a_use_follows_the_load_by_reason_alone(name: str, use: str, engine: str) -> None:
    after, with_use, without = AFTERWARDS[name]
    evidence = found(ptx(ALLOCATE + FILL + LOAD_TMEM + use + after), engine)
    used = use in (USE, MASK)
    expected = with_use if used else without
    verdict = Verdict.REVIEW if used else Verdict.ERROR
    told = {(one.cause, one.verdict) for one in evidence if one.memory == "tmem"}
    assert told == ({(expected, verdict)} if expected else set())
    assert [one.memory for one in evidence].count("register") == (use == USE)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("barrier", "verdict"), [("bar.sync 0;", Verdict.REVIEW), ("", Verdict.ERROR)])
def test_a_barrier_hands_on_that_a_load_was_used(barrier: str, verdict: Verdict, engine: str) -> None:
    """Warp 1 loads, uses and comes to the barrier; warp 0 deallocates."""
    text = ptx(
        "mov.u32 %r1, columns;\nsetp.ge.u32 %p1, %r0, 32;\n@%p1 bra allocated;\n"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;\nallocated:\nbar.sync 0;\n"
        f"ld.shared.b32 %r2, [columns];\n@!%p1 bra free;\n{FILL}{LOAD_TMEM}{USE}free:\n{barrier}\n"
        f"@%p1 bra done;\n{FREE}\ndone:"
    )
    after_loads = [
        one
        for one in found(text, engine, threads=64)
        if one.memory == "tmem" and one.first is not None and one.first.place.text.startswith("tcgen05.ld")
    ]
    (one,) = after_loads
    assert one.verdict is verdict
    assert one.second is not None
    assert one.second.place.text.startswith("tcgen05.dealloc")


@pytest.mark.parametrize("engine", ENGINES)
def test_each_load_is_used_by_itself(engine: str) -> None:
    """A loop uses what it loaded in the round before: the last load is not used, and not over."""
    loop = (
        "mov.b32 %r5, 0;\nmov.b32 %r8, 0;\nagain:\n"
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}, [%r2];\n"
        "neg.s32 %r6, %r8;\nmov.b32 %r8, %r4;\nadd.s32 %r5, %r5, 1;\nsetp.lt.s32 %p6, %r5, 3;\n"
        "@%p6 bra again;\n"
    )
    evidence = found(ptx(ALLOCATE + FILL + loop + FREE), engine)
    told = {(one.cause, one.memory, one.count) for one in evidence}
    assert told == {(NO_WAIT, "register", 2), (NO_WAIT, "tmem", 2), (RACE, "tmem", 1)}


def test_a_kernel_whose_registers_are_always_there_pays_nothing() -> None:
    module = parse(ptx(ALLOCATE + FILL + LOAD_TMEM + WAIT_LOAD + "\n" + USE + FREE))
    assert kernels.compile_kernel(module, module.kernels["k"], logged=True).shadows is None
    module = parse(ptx(ALLOCATE + FILL + LOAD_TMEM + USE + FREE))
    assert kernels.compile_kernel(module, module.kernels["k"], logged=True).shadows is not None
    assert kernels.compile_kernel(module, module.kernels["k"]).shadows is None
