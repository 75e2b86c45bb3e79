# SPDX-License-Identifier: Apache-2.0
"""Mistakes in synchronisation by kind: each has the right cause, and the right kernel beside it has no
finding.

Expectations are the PTX ISA's: "mbarrier" (phases, tracking of asynchronous operations, "mbarrier.inval"),
9.7.16.6 and 9.7.16.7 for tcgen05, "Async Proxy". Other kinds are in test_happens_before.py (barriers, fences
of proxies and of mbarriers, groups, arrivals, two phases behind), test_lanes.py, test_cross_cta.py and
test_registers.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.checker.cta_exit import IN_FLIGHT_AT_END, TRANSACTIONS
from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.run import ENGINES, run_ptx
from tests.messages import wording
from tests.sim.happens_before_cases import (
    COPY,
    FILL,
    HEADER,
    READY,
    TAKE,
    UNINITIALISED,
    Case,
    check,
    check_right,
    check_wrong,
    wait,
    without_marked,
)

REVIEW = frozenset({Verdict.REVIEW})

# Warp 0 allocates; %r8 is the address, of the lanes that a warp may use.
ALLOCATE = (
    "@%w1 bra allocated;\nmov.u32 %r9, other;\n"
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r9], 32;\nallocated:\n"
    "bar.sync 0;\nld.shared.b32 %r8, [other];\n@%w1 add.u32 %r8, %r8, 0x200000;\n"
)
FREE = (
    "bar.sync 0;\n@%w1 bra freed;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, 32; // free\nfreed:\n"
)
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r3}, [%r8];"
SET = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r8], {%t};"
LOADED, WRITTEN = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
BEFORE, AFTER = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"

# Ones in A (64 x 16) and B (8 x 16), which share bytes; K-major, no swizzle, f32 sums.
OPERANDS = (
    "mov.b32 %r4, 0x3F803F80;\nshl.b32 %r5, %t, 5;\nadd.u32 %r5, %r5, %s;\n"
    "st.shared.v4.b32 [%r5], {%r4, %r4, %r4, %r4};\nst.shared.v4.b32 [%r5+16], {%r4, %r4, %r4, %r4};\n"
    "fence.proxy.async;\nbar.sync 0;\n"
    "shr.u32 %r5, %s, 4;\ncvt.u64.u32 %d1, %r5;\nmov.b64 %d2, 0x0000401000080000;\nor.b64 %d1, %d1, %d2;\n"
    "mov.b32 %r6, 0x04020490;\n"
)
MARKED = OPERANDS.replace("};", "}; // a").replace("async;", "async; // -")
PRODUCT = "@%one tcgen05.mma.cta_group::1.kind::f16 [%r8], %d1, %d1, %r6, 0;"
COMMIT = "@%one tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [full];"


def expect(size: int, mark: str = "") -> str:
    return f"@%one mbarrier.arrive.expect_tx.shared.b64 %d0, [full], {size};{mark}\n"


def copy(at: int, size: int) -> str:
    return COPY.replace("[%s]", f"[%s+{at}]").replace("128", str(size))


# A product by warp 0, of operands that everybody has stored, over what everybody has stored.
MULTIPLIED = (
    f"{READY}{OPERANDS}{ALLOCATE}{SET}\n{WRITTEN}\n{BEFORE}\nbar.sync 0;\n{AFTER}\n{PRODUCT} // a\n{COMMIT}\n"
)
DONE = wait("full", 0, "done")

# Warp 1 copies something and waits for it, which gives warp 0 the time to go on in this run; in others it
# has none.
DELAY = (
    "@%w0 bra late;\n@%second mbarrier.init.shared.b64 [other], 1;\n"
    "@%second fence.mbarrier_init.release.cluster;\nbar.warp.sync -1;\n"
    "@%second mbarrier.arrive.expect_tx.shared.b64 %d0, [other], 128;\n"
    f"@%second {COPY.replace('[%s]', '[%s+1024]').replace('full', 'other')}\n"
    f"{wait('other', 0, 'copied')}late:\n"
)

# Warp 0 takes what is in the buffer, lane 0 releases it, and warp 1 has a copy fill it again.
REFILL = (
    f"{READY}@%w1 bra producer;\n{TAKE} // a\nfence.proxy.async;\nSYNC"
    "@%one mbarrier.arrive.shared.b64 %d0, [empty];\nbra over;\n"
    f"producer:\n{wait('empty', 0, 'free')}@%second mbarrier.arrive.expect_tx.shared.b64 %d0, [full], 128;\n"
    f"@%second {COPY} // b\n{wait('full', 0, 'full_again')}over:\n"
)
SYNC = "bar.warp.sync -1; // -\n"

CASES = {
    "an expect_tx for each copy of a phase": Case(
        f"{READY}@%one mbarrier.expect_tx.relaxed.cta.shared.b64 [full], 64; // -\n{expect(64)}"
        f"@%one {copy(0, 64)} // a\n@%one {copy(64, 64)} // b\n{wait('full', 0, 'again')}{TAKE} // c\n",
        frozenset(
            {(TRANSACTIONS, "", "b"), (Cause.IN_FLIGHT, "b", "c"), (IN_FLIGHT_AT_END, "", "b")},
        ),
    ),
    "bytes that nothing brings": Case(
        f"{READY}{expect(64, ' // a')}@%one {copy(0, 64)} // -\n{wait('full', 0, 'again', ' // -')}",
        frozenset({(TRANSACTIONS, "", "a")}),
        REVIEW,
    ),
    "an mbarrier's end, and a warp that waits for it": Case(
        # Who comes last to a barrier goes on first, here warp 1: in this run its wait is over by the end.
        f"{READY}bar.sync 0;\n@!%w1 bra waited;\n@%second mbarrier.arrive.shared.b64 %d0, [full];\n"
        "again: mbarrier.try_wait.parity.shared.b64 %p, [full], 0; // a\n@!%p bra again;\nwaited:\n"
        "bar.sync 0; // -\n@%one mbarrier.inval.shared.b64 [full]; // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "an mbarrier's end, and a product that signals it": Case(
        # The second commit, which is waited for, has the product and both arrivals land before the end.
        f"{MULTIPLIED.replace('[full];', '[full]; // c')}{COMMIT.replace('full', 'empty')}\n"
        f"{wait('empty', 0, 'last')}{wait('full', 0, 'again', ' // -')}{FREE}bar.sync 0;\n"
        "@%one mbarrier.inval.shared.b64 [full]; // d\n",
        frozenset({(Cause.IN_FLIGHT, "c", "d")}),
    ),
    "a wait for the last tcgen05.commit": Case(
        f"{MULTIPLIED}{COMMIT.replace('full', 'empty')} // b\n{DONE}{wait('empty', 0, 'last', ' // -')}"
        f"{FREE}",
        frozenset({(IN_FLIGHT_AT_END, "", "b")}),
        REVIEW,
    ),
    "a lane that releases a stage for others": Case(
        REFILL.replace("SYNC", SYNC), frozenset({(Cause.RACE, "a", "b")})
    ),
    "a lane that releases a stage for others after a shuffle": Case(
        REFILL.replace("SYNC", f"{SYNC}shfl.sync.idx.b32 %r2, %t, 0, 31, -1;\n"),
        frozenset({(Cause.CONVERGED, "a", "b")}),
        REVIEW,
    ),
    "tensor memory used by another warp than allocates it": Case(
        f"{DELAY}@%w1 bra allocated;\nmov.u32 %r9, buffer;\nadd.u32 %r9, %r9, 512;\n"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r9], 32; // a\nallocated:\n"
        "bar.sync 0; // -\nmov.u32 %r8, 0;\n@%w0 bra used;\nmov.u32 %r8, 0x200000;\n"
        f"{SET} // b\n{WRITTEN}\nused:\n{FREE}",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "tensor memory freed by another warp than uses it": Case(
        f"{ALLOCATE}{SET} // a\n{WRITTEN}\n{FREE.replace('bar.sync 0;', 'bar.sync 0; // -')}".replace(
            "// free", "// b"
        ),
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "what is read from tensor memory was written": Case(
        f"{ALLOCATE}{SET} // -\n{WRITTEN}\n{LOAD} // b\n{LOADED}\n{FREE}", UNINITIALISED
    ),
    "a wait for a load from tensor memory before a store over it": Case(
        f"{ALLOCATE}{SET}\n{WRITTEN}\n{LOAD} // a\n{LOADED} // -\n{SET} // b\n{LOADED}\n{WRITTEN}\n{FREE}",
        frozenset({(Cause.IN_FLIGHT, "a", "b")}),
    ),
    "a wait for a store to tensor memory before a load of it": Case(
        f"{ALLOCATE}{SET} // a\n{WRITTEN} // -\n{LOAD} // b\n{LOADED}\n{WRITTEN}\n{FREE}",
        frozenset({(Cause.IN_FLIGHT, "a", "b")}),
    ),
    "a wait for a store to tensor memory before a product over it": Case(
        f"{READY}{OPERANDS}{ALLOCATE}{SET} // a\n{WRITTEN} // -\n{BEFORE}\nbar.sync 0;\n{AFTER}\n"
        f"{PRODUCT} // b\n{COMMIT}\n{WRITTEN}\n{DONE}{FREE}",
        frozenset({(Cause.IN_FLIGHT, "a", "b")}),
    ),
    "a wait for a load from tensor memory before a product over it": Case(
        f"{READY}{OPERANDS}{ALLOCATE}{SET}\n{WRITTEN}\n{LOAD} // a\n{LOADED} // -\n{BEFORE}\nbar.sync 0;\n"
        f"{AFTER}\n{PRODUCT} // b\n{COMMIT}\n{LOADED}\n{DONE}{FREE}",
        frozenset({(Cause.IN_FLIGHT, "a", "b")}),
    ),
    "tcgen05.fence::before_thread_sync": Case(
        f"{READY}{OPERANDS}{ALLOCATE}{SET} // a\n{WRITTEN}\n{BEFORE} // -\nbar.sync 0;\n{AFTER}\n"
        f"{PRODUCT} // b\n{COMMIT}\n{DONE}{FREE}",
        frozenset({(Cause.TCGEN05_FENCE, "a", "b")}),
        REVIEW,
    ),
    "tcgen05.fence::after_thread_sync": Case(
        f"{MULTIPLIED}{DONE}{AFTER} // -\n{LOAD} // b\n{LOADED}\n{FREE}",
        frozenset({(Cause.TCGEN05_FENCE, "a", "b")}),
        REVIEW,
    ),
    "a wait for a product before a load of it": Case(
        f"{MULTIPLIED}{wait('full', 0, 'again', ' // -')}{AFTER}\n{LOAD} // b\n{LOADED}\n{DONE}{FREE}",
        frozenset({(Cause.IN_FLIGHT, "a", "b")}),
    ),
    "a wait for a product before its operands are overwritten": Case(
        f"{MULTIPLIED}bar.sync 0;\n{wait('full', 0, 'again', ' // -')}@%w1 {FILL} // b\n{DONE}{FREE}",
        frozenset({(Cause.IN_FLIGHT, "a", "b")}),
    ),
    "a proxy fence before a product of what was stored": Case(
        f"{READY}{MARKED}{ALLOCATE}{PRODUCT} // b\n{COMMIT}\n{DONE}{FREE}",
        frozenset({(Cause.PROXY, "a", "b")}),
    ),
}

# Bytes expected for the copy of 128, and what the hang says is outstanding.
HANGS = [(192, 64), (64, -64)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("expected", "pending"), HANGS)
def test_bytes_that_are_waited_for_in_vain(expected: int, pending: int, engine: str) -> None:
    """The fault names the mbarrier and its bytes, the finding the expect_tx."""
    body = f"{READY}{expect(expected)}@%one {COPY}\n{wait('full', 0, 'again')}"
    text = f"{HEADER}{body}ret;\n}}\n"
    shape, memory = ((1, 1, 1), (64, 1, 1)), np.zeros(1024, np.uint32)
    for schedule in ("late", "early"):
        with pytest.raises(
            KernelFault, match=wording("sim.machine.mbarrier-state", pending=0, expected=1, tx=pending)
        ) as caught:
            run_ptx(text, "k", *shape, [memory], engine=engine, schedule=schedule, check=True)
        assert caught.value.kind is FaultKind.DEADLOCK
        (found,) = caught.value.found or ()
        assert (found.cause, found.verdict, found.first) == (TRANSACTIONS, Verdict.ERROR, None)
        assert found.second is not None
        assert found.second.place.text.startswith("@%one mbarrier.arrive.expect_tx")


each_engine = pytest.mark.parametrize("engine", ENGINES)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_engine
@each_case
def test_right(case: Case, engine: str) -> None:
    check_right(case, engine)


@each_engine
@each_case
def test_wrong(case: Case, engine: str) -> None:
    check_wrong(case, engine)


@each_engine
@pytest.mark.parametrize("schedule", ["early", "random:1", "random:2", "random:3"])
def test_a_copy_that_is_not_expected(schedule: str, engine: str) -> None:
    """Whichever of two copies ends the phase, in whatever order they land."""
    case = CASES["an expect_tx for each copy of a phase"]
    causes = {one.cause for one in check(without_marked(case.body), engine, schedule=schedule)}
    assert {TRANSACTIONS, Cause.IN_FLIGHT} <= causes


@each_engine
def test_a_commit_before_the_product(engine: str) -> None:
    """It tracks what was issued before it ("tcgen05.commit") and says nothing of what comes after."""
    last = f"{COMMIT.replace('full', 'empty')}\n{wait('empty', 0, 'last')}{FREE}"
    body = f"{MULTIPLIED}{DONE}{AFTER}\n{LOAD} // b\n{LOADED}\n{last}"
    assert check(body, engine) == []
    early = body.replace(f"{PRODUCT} // a\n{COMMIT}\n", f"{COMMIT}\n{PRODUCT} // a\n")
    (one,) = check(early, engine)
    assert one.first is not None
    assert (one.cause, one.verdict) == (Cause.IN_FLIGHT, Verdict.ERROR)
    assert [side.place.text[-1] for side in (one.first, one.second)] == ["a", "b"]
