# SPDX-License-Identifier: Apache-2.0
"""The happens-before rule on small kernels: each is right with all of its lines, and wrong without a marked
one.

Expectations are the PTX ISA's: "Memory Consistency Model", "Proxies", "mbarrier", "cp.async.bulk", 9.7.16.6
for tcgen05. A case names the unordered accesses by the letters at the ends of their lines.
"""

from __future__ import annotations

import pytest

from gdnbench.sim.checker.cta_exit import UNFINISHED
from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.checker.mbarriers import USED_AS_DATA
from gdnbench.sim.run import ENGINES
from tests.sim.happens_before_cases import (
    COPY,
    FILL,
    READY,
    STORE,
    TAKE,
    UNINITIALISED,
    Case,
    check,
    check_right,
    check_wrong,
    wait,
)

WAIT_RELAXED = "again: mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p, [full], 0;\n@!%p bra again;\n"
# The copy gives warp 1 the time to pass its first wait in this run; in others it has none.
ONE_PHASE_EACH = (
    f"{READY}@%one mbarrier.init.shared.b64 [other], 1;\n@%one fence.mbarrier_init.release.cluster;\n"
    "bar.sync 0;\n@%w1 bra second;\n@%one mbarrier.arrive.shared.b64 %d0, [full];\n"
    "@%one mbarrier.arrive.expect_tx.shared.b64 %d0, [other], 128;\n"
    f"@%one {COPY.replace('full', 'other')}\n{wait('other', 0, 'copied')}"
    f"{wait('empty', 0, 'free', ' // -')}"
    "@%one mbarrier.arrive.shared.b64 %d0, [full];\nbra over;\n"
    f"second:\n{wait('full', 0, 'once', ' // a')}@%second mbarrier.arrive.shared.b64 %d0, [empty];\n"
)
# The same of the phase before the first, which is over from the beginning ("mbarrier.test_wait").
FIRST_PHASE = (
    f"{READY}@%one mbarrier.init.shared.b64 [other], 1;\n@%one fence.mbarrier_init.release.cluster;\n"
    "bar.sync 0;\n@%w1 bra second;\n@%one mbarrier.arrive.expect_tx.shared.b64 %d0, [other], 128;\n"
    f"@%one {COPY.replace('full', 'other')}\n{wait('other', 0, 'copied')}"
    f"{wait('empty', 0, 'free', ' // -')}"
    "@%one mbarrier.arrive.shared.b64 %d0, [full];\nbra over;\n"
    f"second:\n{wait('full', 1, 'once', ' // a')}@%second mbarrier.arrive.shared.b64 %d0, [empty];\nover:\n"
)

CASES = {
    "a barrier between a store and another warp's load": Case(
        f"@%w0 {FILL} // a\nbar.sync 0; // -\n@%w1 {TAKE} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a barrier between a load and another warp's store": Case(
        f"@%w0 {FILL}\nbar.sync 0;\n@%w0 {TAKE} // a\nbar.sync 0; // -\n@%w1 {FILL} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a barrier between another warp's addition and a load": Case(
        # Additions do not race ("Morally Strong Operations"): the one of the warp that loads hides no other.
        "@%w1 red.shared.add.u32 [%c], 1; // a\nbar.sync 0; // -\n"
        f"@%w0 red.shared.add.u32 [%c], 1;\n@%w0 {TAKE} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a barrier between a volatile load and another warp's store": Case(
        f"@%w0 ld.volatile.shared.b32 %r1, [%c]; // a\nbar.sync 0; // -\n@%w1 {FILL} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a barrier between a volatile load and another warp's store, and another's volatile store": Case(
        f"@%w1 ld.volatile.shared.b32 %r1, [%c]; // a\nbar.sync 0; // -\n"
        f"@%w0 st.volatile.shared.b32 [%c], %t;\n@%w0 {FILL} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a named barrier that one warp arrives at and one waits at": Case(
        f"@%w0 {FILL} // a\n@%w0 bar.arrive 1, 64;\n@%w1 bar.sync 1, 64;\nbar.sync 0;\n"
        f"@%w0 {FILL} // b\n@%w0 bar.arrive 2, 64; // -\n@%w1 bar.sync 2, 64; // -\n@%w1 {TAKE} // c\n",
        frozenset({(Cause.RACE, "b", "c")}),
    ),
    "the round of a barrier that a warp arrives at first": Case(
        # Warp 1 waits for round 1 of barrier 1; what it then opens is a round of its own.
        f"@%w0 bar.arrive 1, 64;\n@%w1 bar.sync 1, 64;\nbar.sync 0;\n@%w1 {FILL} // a\n"
        f"@%w1 bar.arrive 2, 64; // -\n@%w0 bar.sync 2, 64; // -\n@%w0 {TAKE} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "an arrival at a barrier behind the round before": Case(
        # In this run warp 1 is at the barrier first: in another, warp 0 arrives twice in its first round.
        "@%w1 bar.sync 1, 64; // a\n@%w0 bar.arrive 1, 64;\nbar.sync 0; // -\n"
        "@%w0 bar.arrive 1, 64; // b\n@%w1 bar.sync 1, 64;\n",
        frozenset({(Cause.ROUNDS, "a", "b")}),
    ),
    "a barrier of two warps that two pairs of warps use, one pair behind the other": Case(
        # In this run warp 0 meets warp 3 and warp 1 meets warp 2.
        "setp.lt.u32 %q, %w, 2;\n@%q bar.sync 1, 64; // a\nbar.sync 0; // -\n@!%q bar.sync 1, 64; // b\n",
        frozenset({(Cause.ROUNDS, *pair) for pair in ("aa", "ab", "bb")}),
        threads=128,
    ),
    "a barrier of one warp that two warps use in any order": Case(
        f"@%w0 {FILL} // a\nbar.sync 0; // -\nbar.sync 1, 32;\n@%w1 {FILL} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a fence of the proxies is of the memory that it names": Case(
        f"@%w0 {FILL} // a\n@%w0 fence.proxy.async.shared::cta; // -\n@%w0 fence.proxy.async.global;\n"
        f"bar.sync 0;\n@%second {STORE} // b\n"
        "@%second cp.async.bulk.commit_group;\n@%second cp.async.bulk.wait_group 0;\n",
        frozenset({(Cause.PROXY, "a", "b")}),
    ),
    "a fence before a relaxed arrival": Case(
        # PTX ISA, "Release and Acquire Patterns": a fence, then a relaxed operation.
        f"{READY}@%w0 {FILL} // a\nbar.warp.sync -1;\n@%one fence.acq_rel.cta; // -\n"
        "@%one mbarrier.arrive.relaxed.cta.shared.b64 %d0, [full];\n@!%w1 bra over;\n"
        f"{WAIT_RELAXED}fence.acq_rel.cta;\n{TAKE} // b\nover:\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a fence after a relaxed wait": Case(
        f"{READY}@%w0 {FILL} // a\nbar.warp.sync -1;\n@%one fence.acq_rel.cta;\n"
        "@%one mbarrier.arrive.relaxed.cta.shared.b64 %d0, [full];\n@!%w1 bra over;\n"
        f"{WAIT_RELAXED}fence.acq_rel.cta; // -\n{TAKE} // b\nover:\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "an mbarrier's bytes are data once it is invalidated": Case(
        f"{READY}@%one mbarrier.inval.shared.b64 [empty]; // -\nbar.sync 0;\n"
        "@%one st.shared.b32 [empty], 0; // a\n@%one red.shared.add.u32 [empty], %t; // b\n",
        frozenset({(USED_AS_DATA, "", "a"), (USED_AS_DATA, "", "b")}),
    ),
    "who ends a phase itself does not fall behind, whatever its arrival orders": Case(
        f"{READY}@!%one bra other;\n{wait('empty', 1, 'first')}"
        "mbarrier.arrive.relaxed.cta.shared.b64 %d0, [empty];\n"
        f"{wait('empty', 0, 'second')}other: bar.warp.sync -1;\n"
        f"@%w0 {FILL} // a\nbar.sync 0; // -\n@%w1 {TAKE} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a wait for an mbarrier": Case(
        f"{READY}@%w0 {FILL} // a\nbar.warp.sync -1;\n@%one mbarrier.arrive.shared.b64 %d0, [full];\n"
        f"@!%w1 bra over;\n{wait('full', 0, 'again', ' // -')}{TAKE} // b\nover:\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a proxy fence between stores and a bulk copy of them": Case(
        f"@%w0 {FILL} // a\n@%w0 fence.proxy.async.shared::cta; // -\nbar.sync 0;\n@%second {STORE} // b\n"
        "@%second cp.async.bulk.commit_group;\n@%second cp.async.bulk.wait_group 0;\n",
        frozenset({(Cause.PROXY, "a", "b")}),
    ),
    "a proxy fence after the barrier serves too": Case(
        f"@%w0 {FILL} // a\nbar.sync 0;\n@%second fence.proxy.async; // -\n@%second {STORE} // b\n"
        "@%second cp.async.bulk.commit_group;\n@%second cp.async.bulk.wait_group 0;\n",
        frozenset({(Cause.PROXY, "a", "b")}),
    ),
    "a proxy fence between loads and a bulk copy over what they read": Case(
        f"{READY}@%w0 {FILL}\nfence.proxy.async;\nbar.sync 0;\n@%w1 {TAKE} // a\n"
        "@%w1 fence.proxy.async.shared::cta; // -\nbar.sync 0;\n"
        f"@%one mbarrier.arrive.expect_tx.shared.b64 %d0, [full], 128;\n@%one {COPY} // b\n"
        f"{wait('full', 0, 'again')}",
        frozenset({(Cause.PROXY, "a", "b")}),
        verdicts=frozenset({Verdict.REVIEW}),
    ),
    "a wait for a bulk copy before its bytes are read": Case(
        f"{READY}@%one mbarrier.arrive.expect_tx.shared.b64 %d0, [full], 128;\n@%one {COPY} // a\n"
        f"{wait('full', 0, 'again', ' // -')}{TAKE} // b\n",
        frozenset({(Cause.IN_FLIGHT, "a", "b"), ("in flight at the CTA's end", "", "a")}),
    ),
    "a wait for a bulk store's source before it is overwritten": Case(
        f"@%w0 {FILL}\nfence.proxy.async;\nbar.sync 0;\n@%one {STORE} // a\n"
        "@%one cp.async.bulk.commit_group;\n@%one cp.async.bulk.wait_group.read 0; // -\nbar.sync 0;\n"
        f"@%w1 {FILL} // b\n@%one cp.async.bulk.wait_group 0;\n",
        frozenset({(Cause.IN_FLIGHT, "a", "b")}),
    ),
    "a wait for a bulk store before the CTA ends": Case(
        f"@%w0 {FILL}\nfence.proxy.async;\nbar.sync 0;\n@%one {STORE} // a\n"
        "@%one cp.async.bulk.commit_group;\n@%one cp.async.bulk.wait_group.read 0; // -\n",
        frozenset({("in flight at the CTA's end", "", "a")}),
    ),
    "a wait for cp.async": Case(
        "@%w0 cp.async.ca.shared.global [%c], [%g], 4; // a\n@%w0 cp.async.commit_group;\n"
        f"@%w0 cp.async.wait_group 0; // -\n@%w0 {TAKE} // b\n",
        frozenset({(Cause.IN_FLIGHT, "a", "b"), ("in flight at the CTA's end", "", "a")}),
    ),
    "a barrier after a wait for cp.async": Case(
        "@%w0 cp.async.ca.shared.global [%c], [%g], 4; // a\n@%w0 cp.async.commit_group;\n"
        f"@%w0 cp.async.wait_group 0;\nbar.sync 0; // -\n@%w1 {TAKE} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "what is read was written": Case(
        "@%w0 st.shared.b32 [%c+256], %t; // -\nbar.sync 0;\n@%w1 ld.shared.b32 %r1, [%c+256]; // b\n",
        UNINITIALISED,
    ),
    "CTAs keep to their bytes": Case(
        "mov.u32 %r2, %ctaid.x;\nmul.lo.u32 %r2, %r2, 4;\nmul.lo.u32 %r2, %r2, 64; // -\n"
        "cvt.u64.u32 %d1, %r2;\ncvt.u64.u32 %d2, %r0;\nadd.s64 %a, %g, %d1;\nadd.s64 %a, %a, %d2;\n"
        "mov.u32 %r3, 1;\n@%w0 st.global.b32 [%a], %r3; // a\n",
        frozenset({(Cause.CTAS, "a", "a")}),
        ctas=2,
    ),
    "an mbarrier is made visible to the copies that signal it": Case(
        "@%one mbarrier.init.shared.b64 [full], 1; // a\n@%one fence.mbarrier_init.release.cluster; // -\n"
        "bar.sync 0;\n@%one mbarrier.arrive.expect_tx.shared.b64 %d0, [full], 128;\n"
        f"@%one {COPY} // b\n{wait('full', 0, 'again')}",
        frozenset({(Cause.INIT, "a", "b")}),
        verdicts=frozenset({Verdict.REVIEW}),
    ),
    "a waiter that one phase waits for before the next ends": Case(
        f"{ONE_PHASE_EACH}{wait('full', 1, 'twice', ' // b')}over:\n", frozenset({(Cause.PHASES, "a", "b")})
    ),
    "the same, and nobody waits for the next": Case(
        f"{ONE_PHASE_EACH}over:\n", frozenset({(Cause.PHASES.value, "", "a")})
    ),
    "a waiter for the phase before the first waits before that one ends": Case(
        FIRST_PHASE, frozenset({(Cause.PHASES.value, "", "a")})
    ),
    "the same, and the phase that passes it is one that nobody waits for": Case(
        FIRST_PHASE.replace(
            "bra over;\nsecond:",
            f"{wait('empty', 0, 'and')}@%one mbarrier.arrive.shared.b64 %d0, [full];\n"
            f"{wait('full', 1, 'then', ' // b')}bra over;\nsecond:",
        ),
        frozenset({(Cause.PHASES, "a", "b")}),
    ),
    "a release": Case(
        f"@%w0 {FILL} // a\nbar.warp.sync -1;\n@%w1 bra second;\n"
        "@%one st.release.cta.global.b32 [%g], 1; // -\n"
        "@%one st.relaxed.cta.global.b32 [%g], 1;\nbra over;\nsecond:\nld.acquire.cta.global.b32 %r1, [%g];\n"
        f"setp.eq.u32 %p, %r1, 0;\n@%p bra second;\n{TAKE} // b\nover:\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a fence before a strong store, and one after the load that sees it": Case(
        f"@%w0 {FILL} // a\nbar.warp.sync -1;\n@%w1 bra second;\nfence.acq_rel.cta; // -\n"
        "@%one red.relaxed.cta.global.add.u32 [%g], 1;\nbra over;\n"
        "second:\nld.volatile.global.b32 %r1, [%g];\nsetp.eq.u32 %p, %r1, 0;\n@%p bra second;\n"
        f"fence.acq_rel.cta;\n{TAKE} // b\nover:\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a fence after the load that sees a strong store": Case(
        f"@%w0 {FILL} // a\nbar.warp.sync -1;\n@%w1 bra second;\nfence.acq_rel.cta;\n"
        "@%one red.relaxed.cta.global.add.u32 [%g], 1;\nbra over;\n"
        "second:\nld.volatile.global.b32 %r1, [%g];\nsetp.eq.u32 %p, %r1, 0;\n@%p bra second;\n"
        f"fence.acq_rel.cta; // -\n{TAKE} // b\nover:\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "an mbarrier that waits for all lanes of a warp": Case(
        f"@%one mbarrier.init.shared.b64 [full], 31; // c\n@%one mbarrier.inval.shared.b64 [full]; // -\n"
        "@%one mbarrier.init.shared.b64 [full], 32; // -\n@%one fence.mbarrier_init.release.cluster;\n"
        f"bar.sync 0;\n@%w1 bra second;\n{FILL} // a\nmbarrier.arrive.shared.b64 %d0, [full];\nbra over;\n"
        f"second:\n{wait('full', 0, 'again')}{TAKE} // b\nover:\n",
        frozenset({(Cause.RACE, "a", "b"), (UNFINISHED, "", "c")}),
        verdicts=frozenset({Verdict.ERROR, Verdict.REVIEW}),
    ),
    "all arrivals of the last phase": Case(
        "@%one mbarrier.init.shared.b64 [full], 2; // a\nbar.sync 0;\n"
        "@%one mbarrier.arrive.shared.b64 %d0, [full];\n"
        "@%second mbarrier.arrive.shared.b64 %d0, [full]; // -\n",
        frozenset({(UNFINISHED, "", "a")}),
        verdicts=frozenset({Verdict.REVIEW}),
    ),
    "a barrier between an mbarrier's initialisation and another warp's arrival": Case(
        "@%second mbarrier.init.shared.b64 [full], 1; // a\nbar.sync 0; // -\n"
        "@%one mbarrier.arrive.shared.b64 %d0, [full]; // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_right(case: Case, engine: str) -> None:
    check_right(case, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_wrong(case: Case, engine: str) -> None:
    check_wrong(case, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("memory", ["shared.b32 %r1, [%s]", "global.b32 %r1, [%g]"])
def test_loads_do_not_conflict(memory: str, engine: str) -> None:
    """Strong or not ("Conflict and Data-races"), of one CTA or two."""
    for first, second in ("ld.volatile", "ld"), ("ld", "ld.relaxed.cta"), ("ld.acquire.gpu", "ld"):
        assert check(f"@%w1 {first}.{memory};\n@%w0 {second}.{memory};\n", engine, ctas=2) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_strong_accesses_of_two_sizes_race(engine: str) -> None:
    """They are morally strong where they overlap completely (PTX ISA 9.1, 8.7); atomics exclude one another
    (8.7.2); a packed access is one to each of its values (8.2.5)."""
    words = ("st.volatile.shared.b32 [%s], %r1", "red.relaxed.cta.shared.add.u32 [%s], %r1")
    pair = "red.relaxed.cta.global.add.noftz.f16x2 [%g], %r1"
    right = (*((one, other) for one in words for other in words), (pair, "ld.volatile.global.b16 %r1, [%g]"))
    wrong = [(one, "ld.volatile.shared.b16 %r1, [%s]") for one in words]
    wrong.append((words[1], "st.volatile.shared.v2.b16 [%s], {%h1, %h1}"))
    for (first, second), races in [(two, False) for two in right] + [(two, True) for two in wrong]:
        text = f".reg .b16 %h1;\nmov.b16 %h1, 0;\nmov.b32 %r1, 0;\n@%w1 {first};\n@%w0 {second};\n"
        assert bool(check(text, engine)) is races, (first, second)
