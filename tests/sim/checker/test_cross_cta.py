# SPDX-License-Identifier: Apache-2.0
"""Races between CTAs, in kernels whose CTAs synchronise: each kernel is right as it is, and wrong with one
thing changed.

Expectations are the PTX ISA's: "Memory Consistency Model" ("Scope", "Release and Acquire Patterns",
"Observation Order", "Causality order"), "Async Proxy". A case names the unordered accesses by the letters at
the ends of their lines, and a word of what the finding says is missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from gdnbench.sim.checker.happens_before import Verdict
from gdnbench.sim.run import ENGINES, RunResult, run_ptx

HEADER = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 g)
{
.reg .pred %p, %q, %one, %both, %last, %c<4>;
.reg .b32 %t, %s, %cta, %next, %r<16>;
.reg .b64 %g, %mine, %d<4>;
.shared .align 128 .b8 buffer[1024];
.shared .align 8 .b64 full;
ld.param.u64 %g, [g];
mov.u32 %t, %tid.x;
mov.u32 %cta, %ctaid.x;
add.u32 %next, %cta, 1;
setp.eq.u32 %one, %t, 0;
setp.eq.u32 %c0, %cta, 0;
setp.eq.u32 %c1, %cta, 1;
setp.eq.u32 %c2, %cta, 2;
and.pred %both, %one, %c1;
mad.wide.u32 %mine, %t, 4, %g;
shl.b32 %r0, %t, 2;
mov.u32 %s, buffer;
add.s32 %s, %s, %r0;
"""
"""Words: the thread's in the first 256 bytes is [%mine]; flags lie from 4096 on."""

FLAG, OTHER_FLAG = "[%g+4096]", "[%g+4160]"
FILL = "st.global.b32 [%mine], %t; // a\n"
TAKE = "ld.global.b32 %r1, [%mine]; // b\n"


def poll(
    flag: str, value: int | str = 1, load: str = "ld.acquire.gpu.global.b32", label: str = "poll"
) -> str:
    """Thread 0 waits until the flag has a value."""
    return (
        f"@!%one bra {label}_over;\n{label}: {load} %r2, {flag};\nsetp.ne.u32 %p, %r2, {value};\n"
        f"@%p bra {label};\n{label}_over:\n"
    )


def passing(signal: str, wait: str, fill: str = FILL, take: str = TAKE) -> str:
    """CTA 0 fills the data and signals, CTA 1 waits and takes them."""
    return (
        f"@%c1 bra second;\n{fill}bar.sync 0;\n{signal}bra over;\nsecond:\n{wait}bar.sync 1;\n{take}over:\n"
    )


RELEASE = f"@%one st.release.gpu.global.b32 {FLAG}, 1;\n"
RELAXED = f"@%one st.relaxed.gpu.global.b32 {FLAG}, 1;\n"
FENCED = f"fence.acq_rel.gpu;\n{RELAXED}"
FENCED_POLL = f"{poll(FLAG, load='ld.relaxed.gpu.global.b32')}@%one fence.acq_rel.gpu;\n"
VOLATILE = passing(
    f"membar.gl;\n@%one st.volatile.global.b32 {FLAG}, 1;\n",
    f"{poll(FLAG, load='ld.volatile.global.b32')}membar.sys;\n",
)

# Each CTA adds what it has to the same words in turn, without atomics.
TURNS = (
    f"{poll(FLAG, '%cta')}bar.sync 0;\nld.global.b32 %r1, [%mine]; // b\nadd.s32 %r1, %r1, %t;\n"
    f"st.global.b32 [%mine], %r1; // a\nbar.sync 0;\n@%one st.release.gpu.global.b32 {FLAG}, %next;\n"
)

# The CTA that comes last at the counter adds up what all of them have written.
LAST = (
    "mad.wide.u32 %d0, %cta, 256, %mine;\nst.global.b32 [%d0], %t; // a\nbar.sync 0;\n"
    f"@%one fence.acq_rel.gpu;\n@%one atom.relaxed.gpu.global.add.u32 %r3, {FLAG}, 1;\n"
    "@%one st.shared.b32 [buffer], %r3;\n@%one fence.acq_rel.gpu; // -\n"
    "bar.sync 0;\nld.shared.b32 %r3, [buffer];\nsetp.eq.u32 %last, %r3, 2;\n"
    "@!%last bra over;\nld.global.b32 %r4, [%mine]; // b\nld.global.b32 %r4, [%mine+256]; // b\n"
    "ld.global.b32 %r4, [%mine+512]; // b\nover:\n"
)
# The same with a fence of each thread before the barrier, which a fence.sc alone can be.
LAST_SC = LAST.replace("bar.sync 0;\n@%one fence.acq_rel.gpu;\n", "membar.gl;\nbar.sync 0;\n").replace(
    "fence.acq_rel.gpu; // -", "fence.sc.gpu;"
)

# All CTAs add to the same words. CTA 3, which adds last, reads them once the others are done.
SUMS = (
    "setp.eq.u32 %q, %cta, 3;\n@%q bra reads;\nred.relaxed.gpu.global.add.u32 [%mine], %t; // a\n"
    f"bar.sync 0;\n@%one red.release.gpu.global.add.u32 {FLAG}, 1;\nbra over;\n"
    f"reads: red.relaxed.gpu.global.add.u32 [%mine], %t; // c\n{poll(FLAG, 3)}bar.sync 1;\n{TAKE}over:\n"
)

# What CTA 0 releases goes through CTA 1, which only counts on, to CTA 2.
CHAIN = (
    f"@%c1 bra second;\n@%c2 bra third;\n{FILL}bar.sync 0;\n{RELEASE}bra over;\n"
    f"second:\n{poll(FLAG, load='ld.relaxed.gpu.global.b32')}"
    f"@%one red.relaxed.gpu.global.add.u32 {FLAG}, 1;\nbra over;\n"
    f"third:\n{poll(FLAG, 2, label='again')}bar.sync 1;\n{TAKE}over:\n"
)
STORED = f"@%one st.relaxed.gpu.global.b32 {FLAG}, 2;\n"

# CTA 2 takes what CTA 0 wrote, and knows of it by CTA 1.
THROUGH = (
    f"@%c1 bra second;\n@%c2 bra third;\n{FILL}bar.sync 0;\n{RELEASE}bra over;\n"
    f"second:\n{poll(FLAG)}bar.sync 0;\nsetp.eq.u32 %q, %t, 32;\n"
    f"@%q st.release.gpu.global.b32 {OTHER_FLAG}, 1;\nbra over;\n"
    f"third:\n{poll(OTHER_FLAG, label='again')}bar.sync 1;\n{TAKE}over:\n"
)

# Warp 0 of CTA 0 tells CTA 1, which tells warp 1 of CTA 0: no barrier of CTA 0 is needed.
BACK = (
    f"@%c1 bra second;\nsetp.ge.u32 %q, %t, 32;\n@%q bra back;\nst.global.b32 [%mine], %t; // a\n{RELEASE}"
    f"bra over;\nback: ld.acquire.gpu.global.b32 %r2, {OTHER_FLAG};\nsetp.ne.u32 %p, %r2, 1;\n@%p bra back;\n"
    f"st.global.b32 [%mine+-128], %t; // b\nbra over;\n"
    f"second:\n{poll(FLAG)}@%one st.release.gpu.global.b32 {OTHER_FLAG}, 1;\nover:\n"
)

ADDED = "red.relaxed.gpu.global.add.u32 [%mine], %t; // a\n"
BULK_ADD = (
    "st.shared.b32 [%s], %t;\nfence.proxy.async;\nbar.sync 0;\n"
    "@%one cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%g], [buffer], 256; // a\n"
    "@%one cp.async.bulk.commit_group;\n@%one cp.async.bulk.wait_group 0;\n"
)

COPY_OUT = (
    "st.shared.b32 [%s], %t;\nfence.proxy.async;\nbar.sync 0;\n"
    "@%one cp.async.bulk.global.shared::cta.bulk_group [%g], [buffer], 256; // a\n"
    "@%one cp.async.bulk.commit_group;\n"
)
COPY_IN = (
    "@%one mbarrier.init.shared.b64 [full], 1;\n@%one fence.mbarrier_init.release.cluster;\n"
    "@%one mbarrier.arrive.expect_tx.shared.b64 %d0, [full], 256;\n"
    "@%one cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [buffer], [%g], 256, [full]; // b\n"
    "bar.sync 1;\nland: mbarrier.try_wait.parity.shared.b64 %p, [full], 0;\n@!%p bra land;\n"
)
WAITED = "@%one cp.async.bulk.wait_group 0;\n"
STORES = passing(f"{WAITED}{RELEASE}", poll(FLAG), COPY_OUT)
LOADS = passing(RELEASE, poll(FLAG), f"{FILL}fence.proxy.async;\n", COPY_IN)
LOADS_FENCED_LATE = passing(RELEASE, f"{poll(FLAG)}@%one fence.proxy.async.global;\n", FILL, COPY_IN)
COPIES = passing(f"{WAITED}{RELEASE}", poll(FLAG), COPY_OUT, COPY_IN)


@dataclass(frozen=True)
class Case:
    """`body` is right, and with `line` instead of `old` finds `cause` at the pair of accesses `met`, without
    something that `missing` is a part of; if `flag`, accesses to the flag race too. `beside` is another
    cause that is found."""

    body: str
    old: str = ""
    new: str = ""
    met: str = "ab"
    missing: str = ""
    cause: str = "CTAs race"
    ctas: int = 2
    flag: bool = False
    beside: str = ""


FLAGS = passing(RELEASE, poll(FLAG))
FENCES = passing(FENCED, FENCED_POLL)
_A_RELEASE, _AN_ACQUIRE = ".release, or a fence before", ".acquire, or a fence after"

CASES = {
    "a flag that is not released": Case(FLAGS, RELEASE, RELAXED, missing=_A_RELEASE),
    "a release to the CTA alone": Case(
        FLAGS, "st.release.gpu", "st.release.cta", missing="release at .gpu or .sys scope", flag=True
    ),
    "an acquire from the CTA alone": Case(
        FLAGS, "ld.acquire.gpu", "ld.acquire.cta", missing="release", flag=True
    ),
    "a flag that is not acquired": Case(FLAGS, "ld.acquire", "ld.relaxed", missing=_AN_ACQUIRE),
    "no barrier before the release": Case(FLAGS, "bar.sync 0;\n", missing="a release"),
    "no barrier after the acquire": Case(
        FLAGS, "bar.sync 1;\n", missing="a barrier from the warp that acquired"
    ),
    "no flag": Case(FLAGS, poll(FLAG), "", missing="acquire of it"),
    "no fence before the flag": Case(FENCES, "fence.acq_rel.gpu;\n@%one st", "@%one st", missing=_A_RELEASE),
    "no fence after the flag": Case(FENCES, "@%one fence.acq_rel.gpu;\n", missing=_AN_ACQUIRE),
    "a fence of the CTA before the flag": Case(
        FENCES, "fence.acq_rel.gpu;\n@%one st", "fence.acq_rel.cta;\n@%one st", missing=_A_RELEASE
    ),
    "a fence of the CTA after the flag": Case(
        FENCES, "@%one fence.acq_rel.gpu", "@%one fence.acq_rel.cta", missing=_AN_ACQUIRE
    ),
    "volatile, and no membar before": Case(VOLATILE, "membar.gl;\n", missing=_A_RELEASE),
    "volatile, and no membar after": Case(VOLATILE, "membar.sys;\n", missing=_AN_ACQUIRE),
    "turns without a release": Case(TURNS, "st.release", "st.relaxed", missing=_A_RELEASE, ctas=4),
    "turns without an acquire": Case(TURNS, "ld.acquire", "ld.relaxed", missing=_AN_ACQUIRE, ctas=4),
    "the last CTA, no fence before the counter": Case(
        LAST, "@%one fence.acq_rel.gpu;\n", missing=_A_RELEASE, ctas=3
    ),
    "the last CTA, no fence after the counter": Case(
        LAST, "@%one fence.acq_rel.gpu; // -\n", missing=_AN_ACQUIRE, ctas=3
    ),
    "the last CTA, a counter of the CTA": Case(
        LAST, "atom.relaxed.gpu", "atom.relaxed.cta", missing="release", ctas=3, flag=True
    ),
    "the last CTA, no fence.sc before the barrier": Case(
        LAST_SC, "membar.gl", "fence.acq_rel.gpu", missing=_A_RELEASE, ctas=3
    ),
    "the last CTA, no fence.sc after the counter": Case(
        LAST_SC, "fence.sc.gpu", "fence.acq_rel.gpu", missing="release", ctas=3
    ),
    "the last CTA, fences and no counter": Case(
        LAST_SC, f"@%one atom.relaxed.gpu.global.add.u32 %r3, {FLAG}, 1;", "mov.u32 %r3, 2;", ctas=3
    ),
    "sums of all CTAs, not released": Case(SUMS, "red.release", "red.relaxed", missing=_A_RELEASE, ctas=4),
    "a release that another CTA's store ends": Case(
        CHAIN, f"@%one red.relaxed.gpu.global.add.u32 {FLAG}, 1;\n", STORED, missing=_A_RELEASE, ctas=3
    ),
    "a release that goes on through a CTA that does not acquire": Case(
        THROUGH, "ld.acquire", "ld.relaxed", missing="release", ctas=3
    ),
    "a release of another warp, which nothing orders": Case(
        THROUGH, "bar.sync 0;\nsetp", "setp", missing="release", ctas=3
    ),
    "an atomic and a store": Case(
        ADDED, ADDED, f"{ADDED}@%both st.global.b32 [%g], 0; // b\n", missing="release"
    ),
    "atomics of the CTA": Case(ADDED, "red.relaxed.gpu", "red.relaxed.cta", met="aa", missing="release"),
    # Strong, and not morally strong: they overlap only in part (PTX ISA 9.1, 8.7).
    "a strong load of half a word": Case(
        f"{ADDED}@%both ld.relaxed.gpu.global.b32 %r1, [%g]; // b\n",
        "global.b32 %r1, [%g]; // b",
        "global.b16 %r1, [%g]; // b",
        missing="release",
    ),
    "a bulk reduction and a store": Case(
        BULK_ADD, BULK_ADD, f"{BULK_ADD}@%both st.global.b32 [%g], 0; // b\n", missing="release"
    ),
    # Atomics of two proxies are not morally strong to one another ("Morally Strong Operations").
    "a bulk reduction and an atomic": Case(
        BULK_ADD,
        BULK_ADD,
        f"{BULK_ADD}@%both red.relaxed.gpu.global.add.u32 [%g], 1; // b\n",
        missing="release",
    ),
    "a bulk store that nobody waited for": Case(
        STORES,
        WAITED,
        missing="cp.async.bulk.wait_group",
        cause="operation in flight",
        beside="in flight at the CTA's end",
    ),
    "a bulk store whose source alone was waited for": Case(
        STORES,
        "wait_group 0",
        "wait_group.read 0",
        missing="cp.async.bulk.wait_group,",
        cause="operation in flight",
    ),
    "no proxy fence before the release": Case(
        LOADS, "fence.proxy.async;\n", missing="fence.proxy.async", cause="no proxy fence"
    ),
    "no proxy fence after the acquire": Case(
        LOADS_FENCED_LATE, "@%one fence.proxy.async.global;\n", missing="fence.proxy", cause="no proxy fence"
    ),
    "copies out and in, without a release": Case(COPIES, RELEASE, RELAXED, missing=_A_RELEASE),
}


def run(body: str, engine: str, ctas: int, schedule: str = "late") -> tuple[str, RunResult]:
    text = f"{HEADER}{body}\nret;\n}}\n"
    memory = np.zeros(2048, np.uint32)
    shape = (ctas, 1, 1), (64, 1, 1)
    return text, run_ptx(text, "k", *shape, [memory], engine=engine, schedule=schedule, check=True)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_right(case: Case, engine: str) -> None:
    for schedule in ("late", "early", "random:3"):
        assert run(case.body, engine, case.ctas, schedule)[1].found == ()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_wrong(case: Case, engine: str) -> None:
    assert case.old in case.body
    text, result = run(case.body.replace(case.old, case.new, 1), engine, case.ctas)
    lines = text.splitlines()
    assert result.found
    assert {one.cause for one in result.found} == {case.cause, case.beside} - {""}
    missing: list[str] = []
    for one in result.found:
        assert one.verdict is Verdict.ERROR
        if one.cause == case.beside:
            continue
        assert one.first is not None
        assert one.second is not None
        assert one.memory == "global"
        assert one.first.cta != one.second.cta
        letters = [lines[side.place.line - 1].partition("//")[2].strip() for side in (one.first, one.second)]
        if case.flag and letters == ["", ""]:
            continue
        assert set(letters) <= set(case.met)
        missing.append(one.missing)
    assert any(case.missing in text for text in missing)


@pytest.mark.parametrize("engine", ENGINES)
def test_bulk_reductions_of_two_warps(engine: str) -> None:
    """They are relaxed atomics ("cp.reduce.async.bulk"), of one CTA as of two; a bulk copy is none."""
    both = "setp.eq.u32 %q, %t, 32;\nor.pred %one, %one, %q;\n"
    body = BULK_ADD.replace("@%one", f"{both}@%one", 1)
    assert run(body, engine, 1)[1].found == ()
    _, result = run(body.replace("cp.reduce", "cp").replace(".add.u32", ""), engine, 1)
    assert [one.cause for one in result.found] == ["operation in flight"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ctas_own_release_comes_back_to_it(engine: str) -> None:
    """Through another CTA, to another of its warps."""
    assert run(BACK, engine, 2)[1].found == ()
    _, result = run(
        BACK.replace("st.release.gpu.global.b32 [%g+4160]", "st.relaxed.gpu.global.b32 [%g+4160]"), engine, 2
    )
    assert result.found
    assert [one.cause for one in result.found] == ["race"]


def test_kernels_that_add_to_global_memory() -> None:
    """Compiled ones, of which each CTA adds what it has found."""
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    import torch

    from gdnbench import sim
    from tests.sim.kernels import simt
    from tests.sim.kernels.compiling import compiled, fake

    word, one = fake(torch.int32, (None,), align=4), fake(torch.int32, (simt.BINS,), align=4)
    counts = torch.zeros(simt.BINS, dtype=torch.int32)
    report = sim.launch(
        compiled(simt.histogram, word, one), torch.ones(500, dtype=torch.int32), counts, check=True
    )
    assert counts.sum() == 500
    assert (report.launches[0].ctas > 1, report.findings) == (True, ())
