# SPDX-License-Identifier: Apache-2.0
"""Groups, fences and waits of wgmma: what each mistake shows as, and that its correct twin passes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gdnbench.sim.checker.evidence import Evidence
from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.profile.roles import role
from gdnbench.sim.profile.table import profile_table
from gdnbench.sim.run import ENGINES, run_ptx
from tests.messages import wording

D = ", ".join(f"%d{i}" for i in range(4))
OTHER_D = ", ".join(f"%d{i + 4}" for i in range(4))
NONE_K_MAJOR = 128 >> 4 << 16 | 256 >> 4 << 32
MULTIPLY = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{D}}}, %da, %db, %p, 1, 1, 0, 0;"
FROM_REGISTERS = (
    f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{D}}}, {{%a0, %a1, %a2, %a3}}, %db, %p, 1, 1, 0;"
)
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
ENDING = f"{COMMIT}\n{WAIT}"
ONES = 0x3C003C00  # two f16

# D is 0 and all of A and B is 1: a product adds 16.
TEXT = """.version 8.7
.target {target}
.address_size 64
.visible .entry k(.param .u64 out)
{{
.reg .b32 %t, %w, %i, %word, %base, %d<8>, %a<4>, %x, %f;
.reg .b16 %low_half, %high_half;
.reg .b64 %at, %da, %db, %low, %wide;
.reg .pred %p, %q, %all;
.shared .align 1024 .b8 memory[4096];
mov.u32 %t, %tid.x;
shr.u32 %w, %t, 5;
mov.b32 %base, memory;
mad.lo.u32 %i, %t, 16, %base;
mov.b32 %word, {ones};
st.shared.v4.b32 [%i], {{%word, %word, %word, %word}};
st.shared.v4.b32 [%i+2048], {{%word, %word, %word, %word}};
{zero}
{a}
shr.u32 %base, %base, 4;
cvt.u64.u32 %low, %base;
add.s64 %da, %low, {descriptor};
add.s64 %db, %low, {descriptor};
add.s64 %db, %db, 128;
setp.eq.u32 %p, %t, %t;
fence.proxy.async.shared::cta;
bar.sync 0;
{body}
ld.param.b64 %at, [out];
mad.wide.u32 %at, %t, 16, %at;
st.global.v4.b32 [%at], {{{stored}}};
END:
ret;
}}
"""


def text(body: str, stored: str = D, target: str = "sm_90a") -> str:
    return TEXT.format(
        ones=ONES,
        # Computed, so that no mov writes the registers of D or A.
        zero="\n".join(f"xor.b32 %d{i}, %t, %t;" for i in range(8)),
        a="\n".join(f"or.b32 %a{i}, %word, 0;" for i in range(4)),
        descriptor=NONE_K_MAJOR,
        body=body,
        target=target,
        stored=stored,
    )


def run(
    body: str,
    engine: str,
    schedule: str = "late",
    threads: int = 128,
    stored: str = D,
    target: str = "sm_90a",
) -> np.ndarray:
    out = np.zeros((128, 4), np.float32)
    ptx = text(body, stored, target)
    run_ptx(ptx, "k", (1, 1, 1), (threads, 1, 1), [out], engine=engine, schedule=schedule, threads=1)
    return out


def checked(body: str, engine: str, schedule: str = "late") -> list[Evidence]:
    """What the checker finds in registers."""
    out = np.zeros((128, 4), np.float32)
    ran = run_ptx(
        text(body),
        "k",
        (1, 1, 1),
        (128, 1, 1),
        [out],
        engine=engine,
        schedule=schedule,
        check=True,
        threads=1,
    )
    return [one for one in ran.found or () if one.memory == "register"]


def both(schedules: tuple[str, ...] = ("late", "early", "random:4")) -> pytest.MarkDecorator:
    cases = [(engine, schedule) for engine in ENGINES for schedule in schedules]
    return pytest.mark.parametrize(("engine", "schedule"), cases)


@pytest.mark.every(3)
@both()
@pytest.mark.parametrize(
    ("body", "want"),
    [
        (f"{FENCE}\n{MULTIPLY}\n{ENDING}", 16),
        (f"{FENCE}\n{FROM_REGISTERS}\n{ENDING}", 16),
        (f"{FENCE}\n{MULTIPLY}\n{MULTIPLY}\n{ENDING}", 32),
        (f"{FENCE}\n{MULTIPLY}\n{COMMIT}\n{MULTIPLY}\n{ENDING}", 32),
        # A move of the accumulators before the wait, as compilers make it, and one back.
        (
            f"{FENCE}\n{MULTIPLY}\n{COMMIT}\nmov.b32 %x, %d0;\nmov.b64 %wide, {{%d1, %d2}};\n{WAIT}\n"
            "mov.b32 %d0, %x;\nmov.b64 {%d1, %d2}, %wide;",
            16,
        ),
        # A fence after registers were written.
        (f"{FENCE}\n{MULTIPLY}\n{ENDING}\nadd.f32 %d0, %d0, %d0;\n{FENCE}\n{MULTIPLY}\n{ENDING}", (48, 32)),
        # Not added to: D may hold anything, here NaN.
        (f"not.b32 %d0, %d0;\nsetp.ne.u32 %p, %t, %t;\n{FENCE}\n{MULTIPLY}\n{ENDING}", 16),
        # Accumulators in flight move to other registers, which the next product adds to.
        (
            f"{FENCE}\n{MULTIPLY}\n{COMMIT}\n{''.join(f'mov.b32 %d{i + 4}, %d{i};' for i in range(4))}\n"
            f"{MULTIPLY.replace(D, OTHER_D)}\n{ENDING}\n"
            f"{''.join(f'mov.b32 %d{i}, %d{i + 4};' for i in range(4))}",
            32,
        ),
        # Taken apart before the wait, as two f16, and put together again after it.
        (
            f"{FENCE}\n{MULTIPLY}\n{COMMIT}\nmov.b32 {{%low_half, %high_half}}, %d0;\n{WAIT}\n"
            "mov.b32 %d0, {%low_half, %high_half};",
            16,
        ),
        # scale-d is an immediate, or a negated predicate.
        (f"{FENCE}\n{MULTIPLY.replace('%p', '1')}\n{MULTIPLY.replace('%p', '!%p')}\n{ENDING}", 16),
        (f"{FENCE}\n{MULTIPLY}\n{MULTIPLY.replace('%p', '1')}\n{ENDING}", 32),
        # A predicate that is the same in the whole warpgroup.
        (f"{FENCE}\n{MULTIPLY}\n@!%p {MULTIPLY}\n@%p {MULTIPLY}\n{ENDING}", 32),
        # An empty group counts as one.
        (f"{FENCE}\n{MULTIPLY}\n{COMMIT}\n{COMMIT}\nwgmma.wait_group.sync.aligned 1;", 16),
    ],
)
def test_legal(body: str, want: int | tuple[int, int], engine: str, schedule: str) -> None:
    out = run(body, engine, schedule)
    first, rest = want if isinstance(want, tuple) else (want, want)
    assert (out[:, 0] == first).all()
    assert (out[:, 1:] == rest).all()


@both()
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"{MULTIPLY}\n{ENDING}", wording("sim.machine.wgmma-fence-missing")),
        (
            f"{FENCE}\nadd.f32 %d1, %d1, 0f3F800000;\n{MULTIPLY}\n{ENDING}",
            wording("sim.machine.wgmma-register-unfenced", name="%d1"),
        ),
        (
            f"{FENCE}\nadd.u32 %a2, %a2, 1;\n{FROM_REGISTERS}\n{ENDING}",
            wording("sim.machine.wgmma-register-unfenced", name="%a2"),
        ),
        (f"{FENCE}\n{FROM_REGISTERS}\nadd.u32 %a3, %a3, 1;\n{ENDING}", "%a3 of A is written while"),
        (
            f"{FENCE}\n{MULTIPLY}\n{COMMIT}\ncvt.rn.f32.u32 %d2, %t;\n{WAIT}\nadd.f32 %d4, %d2, %d2;",
            "%d2 is written while",
        ),
        (f"{FENCE}\n{MULTIPLY}\n{COMMIT}", wording("sim.machine.wgmma-unwaited", count=1)),
        (f"{FENCE}\n{MULTIPLY}\n{WAIT}", wording("sim.machine.wgmma-unwaited", count=1)),
        (
            f"{FENCE}\n{MULTIPLY}\n{COMMIT}\n{MULTIPLY}\n{COMMIT}\nwgmma.wait_group.sync.aligned 1;",
            "in flight",
        ),
        (
            f"{FENCE}\nsetp.lt.u32 %q, %w, 2;\nselp.b32 %x, 0, 8, %q;\ncvt.u64.u32 %wide, %x;\n"
            f"add.s64 %db, %db, %wide;\n{MULTIPLY}\n{ENDING}",
            wording("sim.machine.wgmma-warps-differ"),
        ),
        (
            f"{FENCE}\nsetp.lt.u32 %q, %w, 2;\n@%q bra OTHER;\n{MULTIPLY}\nbra JOIN;\nOTHER:\n{MULTIPLY}\n"
            f"JOIN:\n{ENDING}",
            wording("sim.machine.wgmma-warps-differ"),
        ),
    ],
)
def test_illegal(body: str, says: str, engine: str, schedule: str) -> None:
    with pytest.raises(KernelFault) as caught:
        # D stays out of it, which the interpreter would find used in flight; A is read, so that its writes
        # are not left out as dead code.
        run(body, engine, schedule, stored="%d4, %d5, %a2, %a3")
    assert caught.value.kind is FaultKind.WGMMA
    assert re.search(says, caught.value.message)
    assert caught.value.place is not None


@both()
def test_a_warp_that_does_not_come_is_a_deadlock_that_names_it(engine: str, schedule: str) -> None:
    body = f"setp.eq.u32 %q, %w, 2;\n@%q bra END;\n{FENCE}\n{MULTIPLY}\n{ENDING}"
    with pytest.raises(KernelFault) as caught:
        run(body, engine, schedule)
    assert caught.value.kind is FaultKind.DEADLOCK
    assert re.search(
        wording("sim.machine.wgmma-warps-missing", warps="[2]", instruction="wgmma.mma_async"),
        caught.value.message,
    )


@both()
def test_a_deadlock_names_the_product_that_is_still_missing(engine: str, schedule: str) -> None:
    """All four warps issue the first; the third stops at a barrier before the second."""
    body = f"setp.eq.u32 %q, %w, 2;\n{FENCE}\n{MULTIPLY}\n@%q bar.sync 1, 64;\n{MULTIPLY}\n{ENDING}"
    with pytest.raises(KernelFault) as caught:
        run(body, engine, schedule)
    assert caught.value.kind is FaultKind.DEADLOCK
    assert re.search(
        wording("sim.machine.wgmma-warps-missing", warps="[2]", instruction="wgmma.mma_async"),
        caught.value.message,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("target", ["sm_100a", "sm_90", "sm_120a"])
def test_no_other_machine_has_it(target: str, engine: str) -> None:
    """PTX ISA, "wgmma.mma_async", Target ISA Notes: sm_90a."""
    with pytest.raises(
        UnsupportedError, match=wording("sim.ptx.target-refused", op="wgmma.fence", target=target)
    ):
        run(f"{FENCE}\n{MULTIPLY}\n{ENDING}", engine, target=target)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        *((each, each.replace(".sync", ""), "without .sync") for each in (FENCE, MULTIPLY, COMMIT, WAIT)),
        *(
            (each, each.replace(".aligned", ""), "without .aligned")
            for each in (FENCE, MULTIPLY, COMMIT, WAIT)
        ),
        (FENCE, FENCE.replace(";", " 1;"), wording("sim.compiler.source-count", sources=1)),
        (COMMIT, COMMIT.replace(";", " 0;"), wording("sim.compiler.source-count", sources=1)),
        (WAIT, WAIT.replace(" 0", ""), wording("sim.compiler.source-count", sources=0)),
        (WAIT, WAIT.replace("0", "0, 1"), wording("sim.compiler.source-count", sources=2)),
        (WAIT, WAIT.replace("0", "%t"), wording("sim.machine.wgmma-register-group")),
        (
            MULTIPLY,
            MULTIPLY.replace("%da", "%da, %x, 0").replace("async", "async.sp"),
            r"wgmma\.mma_async\.sp",
        ),
        (MULTIPLY, MULTIPLY.replace("f16.f16", "f16.f16.satfinite"), "satfinite"),
    ],
)
def test_spellings_that_ptxas_refuses_or_that_are_not_modelled(
    good: str, bad: str, says: str, engine: str
) -> None:
    body = f"mov.b32 %x, 0;\n{FENCE}\n{MULTIPLY}\n{ENDING}"
    with pytest.raises(UnsupportedError) as caught:
        run(body.replace(good, bad), engine)
    assert re.search(says, caught.value.what)
    assert caught.value.place is not None


@pytest.mark.parametrize("engine", ENGINES)
def test_fewer_than_no_groups(engine: str) -> None:
    with pytest.raises(KernelFault, match=wording("sim.machine.wgmma-group-negative")):
        run(f"{FENCE}\n{MULTIPLY}\n{COMMIT}\n{WAIT.replace('0', '-1')}", engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fence_and_no_product(engine: str) -> None:
    assert not run(f"{FENCE}\n{ENDING}", engine).any()


@pytest.mark.parametrize("schedule", ["late", "early", "random:4"])
@pytest.mark.parametrize(
    "use",
    ["add.f32 %f, %d1, %d1;", "st.shared.b32 [%i], %d3;", "mov.b32 %x, %d1;\nadd.f32 %f, %x, %x;"],
)
def test_the_interpreter_finds_a_use_in_flight(use: str, schedule: str) -> None:
    body = f"{FENCE}\n{MULTIPLY}\n{COMMIT}\n{use}\n{WAIT}"
    with pytest.raises(KernelFault, match=wording("sim.interpreter.register-in-flight")) as caught:
        run(body, "interpreter", schedule)
    assert caught.value.kind is FaultKind.UNINITIALISED


@pytest.mark.every(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("schedule", ["late", "early"])
@pytest.mark.parametrize(
    ("use", "register"),
    [
        ("add.f32 %f, %d1, %d1;", "%d1"),
        ("st.shared.b32 [%i], %d3;", "%d3"),
        ("mov.b32 %x, %d1;\nadd.f32 %f, %x, %x;", "%x"),
        ("mov.b32 {%low_half, %high_half}, %d2;\nst.shared.b16 [%i], %high_half;", "%high_half"),
        ("mov.b32 %x, %d1;", None),
    ],
)
def test_the_checker_finds_a_use_in_flight(
    use: str, register: str | None, schedule: str, engine: str
) -> None:
    """In all four warps, whichever waits first."""
    evidence = checked(f"{FENCE}\n{MULTIPLY}\n{COMMIT}\n{use}\n{WAIT}", engine, schedule)
    assert not checked(f"{FENCE}\n{MULTIPLY}\n{COMMIT}\n{WAIT}\n{use}", engine, schedule)
    if register is None:
        assert not evidence
        return
    (one,) = evidence
    assert (one.cause, one.verdict) == (Cause.IN_FLIGHT.value, Verdict.ERROR)
    assert (one.where, one.missing) == (f"register {register}", "wgmma.wait_group")
    assert one.first is not None
    assert one.second is not None
    assert one.first.place.text == MULTIPLY
    assert one.second.place.text == use.splitlines()[-1]
    assert {second for _, second in one.warps} == {0, 1, 2, 3}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_checker_finds_accumulators_that_were_never_written(engine: str) -> None:
    (one,) = checked(f"{FENCE}\n{MULTIPLY.replace('%d0', '%f')}\n{ENDING}", engine)
    assert (one.cause, one.verdict, one.where) == ("uninitialised read", Verdict.ERROR, "register %f")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_use_in_flight_shows_in_the_numbers_or_as_a_fault(engine: str) -> None:
    body = f"{FENCE}\n{MULTIPLY}\n{COMMIT}\nadd.f32 %d4, %d1, %d1;\n{WAIT}"
    if engine == "interpreter":
        with pytest.raises(KernelFault):
            run(body, engine)
    else:
        assert np.isnan(run(body, engine, stored="%d4, %d4, %d4, %d4")).all()


def test_another_shape_on_accumulators_in_flight() -> None:
    other = MULTIPLY.replace("m64n8k16.f32.f16.f16", "m64n8k8.f32.tf32.tf32").replace(", 0, 0;", ";")
    for engine in ENGINES:
        with pytest.raises(KernelFault, match=wording("sim.machine.wgmma-shape-differs")):
            run(f"{FENCE}\n{MULTIPLY}\n{other}\n{ENDING}", engine)
        run(f"{FENCE}\n{MULTIPLY}\n{ENDING}\n{FENCE}\n{other}\n{ENDING}", engine)


def test_uninitialised_accumulators_are_found_by_the_interpreter() -> None:
    new = MULTIPLY.replace("%d0", "%f")
    with pytest.raises(KernelFault, match=wording("sim.interpreter.register-unwritten", name="%f")):
        run(f"{FENCE}\n{new}\n{ENDING}", "interpreter")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (f"add.s64 %db, %db, {1 << 46};", wording("sim.machine.descriptor-zero-bits", low=46, high=48)),
        (f"add.s64 %db, %db, {1 << 55};", wording("sim.machine.descriptor-zero-bits", low=52, high=61)),
        (f"add.s64 %db, %db, {1 << 49};", wording("sim.machine.descriptor-base-offset", base_offset=1)),
        ("add.s64 %db, %db, 15000;", wording("sim.machine.operand-outside", what="B")),
        (
            "cvt.u64.u32 %wide, %t;\nadd.s64 %db, %db, %wide;",
            wording("sim.compiler.lanes-differ", what="the descriptor of B"),
        ),
        ("setp.eq.u32 %p, %t, 5;", "scale-d differs between the lanes"),
    ],
)
def test_operands(change: str, says: str, engine: str) -> None:
    with pytest.raises(KernelFault) as caught:
        run(f"{change}\n{FENCE}\n{MULTIPLY}\n{ENDING}", engine)
    assert re.search(says, caught.value.message)


@pytest.mark.parametrize("engine", ENGINES)
def test_half_a_warpgroup(engine: str) -> None:
    with pytest.raises(KernelFault, match=wording("sim.machine.wgmma-warps-missing", warps="[2, 3]")):
        run(f"{FENCE}\n{MULTIPLY}\n{ENDING}", engine, threads=64)
    with pytest.raises(KernelFault, match=wording("sim.machine.warpgroup-warp", threads=16)):
        run(f"{FENCE}\n{MULTIPLY}\n{ENDING}", engine, threads=16)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("instruction", "says"),
    [
        (
            MULTIPLY.replace("f32.f16.f16", "s32.s8.u8").replace("k16", "k32").replace(", 1, 1, 0, 0;", ";"),
            r"s32\.s8\.u8",
        ),
        (MULTIPLY.replace("f16.f16", "f16.bf16"), r"f32 \+= f16 x bf16"),
        (MULTIPLY.replace("k16", "k8"), "k 8"),
        (MULTIPLY.replace("n8k", "n12k"), "m64n12k16"),
        (
            MULTIPLY.replace("n8k", "n16k"),
            wording("sim.machine.wgmma-register-count", registers=4, shape="D"),
        ),
        (MULTIPLY.replace(", 0, 0;", ";"), wording("sim.compiler.source-count", sources=5)),
    ],
)
def test_refused_by_name(instruction: str, says: str, engine: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        run(f"{FENCE}\n{instruction}\n{ENDING}", engine)
    assert re.search(says, caught.value.what)
    assert caught.value.place is not None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_profile_counts_products_of_warpgroups(engine: str) -> None:
    """Three products of four warps: 12 warp instructions, 3 * 64 * 8 * 16 multiplications."""
    out = np.zeros((128, 4), np.float32)
    result = run_ptx(
        text(f"{FENCE}\n{MULTIPLY}\n{MULTIPLY}\n{MULTIPLY}\n{ENDING}"),
        "k",
        (1, 1, 1),
        (128, 1, 1),
        [out],
        engine=engine,
        profile=True,
    )
    counters = result.counters
    assert counters.instructions["wgmma.mma_async"] == 12
    assert counters.mma_macs == 24_576
    assert result.record is not None
    table = profile_table(counters.instructions, counters.traffic, counters.mma_macs, result.record)
    assert f"{'3 products':<32}{24_576:>16,}" in table
    assert {role(result.record.ctas[0].ops[warp]) for warp in range(4)} == {"MMA"}


@both(("late", "early"))
def test_half_of_an_f32_is_no_token(engine: str, schedule: str) -> None:
    """%d4 could be a copy of %d0 that went through 16 bits, and holds a number whose lower half is that of
    the first token, which %d0 holds in flight: it stays what it is."""
    body = (
        f"setp.eq.u32 %q, %t, 999;\n@!%q bra ON;\nmov.b32 {{%low_half, %high_half}}, %d0;\n"
        "mov.b32 %d4, {%low_half, %high_half};\nON:\nxor.b32 %x, %t, %t;\n"
        f"add.u32 %d4, %x, {0x4000FC01};\n{FENCE}\n{MULTIPLY}\n{ENDING}"
    )
    out = run(body, engine, schedule, stored="%d4, %d0, %d1, %d2")
    assert (out[:, 0].view(np.uint32) == 0x4000FC01).all()
    assert (out[:, 1:] == 16).all()
