# SPDX-License-Identifier: Apache-2.0
"""Races between the lanes of one warp.

Expectations are the PTX ISA's: "bar.warp.sync" orders memory among the lanes that take part. Of "shfl.sync"
and "elect.sync" the ISA says that lanes wait for one another, and nothing about memory; the CUDA Programming
Guide ("Warp Shuffle Functions", "Warp Vote Functions") says that they imply no memory barrier.
"""

from __future__ import annotations

import pytest

from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.run import ENGINES
from tests.sim.happens_before_cases import COPY, FILL, READY, STORE, Case, check_right, check_wrong, wait

SYNC = "bar.warp.sync -1;"
NEXT = "@%w0 ld.shared.b32 %r1, [%s+4];"  # the word of lane 1, by all
COMMIT = "@%one cp.async.bulk.commit_group;\n@%one cp.async.bulk.wait_group 0;\n"
LOW = "setp.lt.u32 %q, %t, 16;\n"
REVIEW = frozenset({Verdict.REVIEW})

BOTH_ARRIVE = "@%one mbarrier.init.shared.b64 [other], 2;\nbar.sync 0;\n"
ARRIVE = "@%one mbarrier.arrive.shared.b64 %d0, [other];\n@%second mbarrier.arrive.shared.b64 %d0, [other];\n"
OVERWRITE = f"@!%one bra over;\n{wait('other', 0, 'again')}st.shared.b32 [%s+4], %t; // b\nover:\n"

CASES = {
    "a store, and other lanes' load": Case(
        f"@%w0 {FILL} // a\n{SYNC} // -\n{NEXT} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a load, and another lane's store": Case(
        f"{NEXT} // a\n{SYNC} // -\n@%w0 {FILL} // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a lane's word is its own": Case(
        f"@%w0 {FILL}\n@%w0 ld.shared.b32 %r1, [%c];\n@%w0 {FILL} // a\n{SYNC} // -\n"
        "@%one st.shared.b32 [%s+8], %t; // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a shuffle alone": Case(
        f"@%w0 {FILL} // a\n{SYNC} // -\nshfl.sync.idx.b32 %r2, %t, 0, 31, -1;\n{NEXT} // b\n",
        frozenset({(Cause.CONVERGED, "a", "b")}),
        REVIEW,
    ),
    "an elected lane, and what all have stored": Case(
        f"@%w0 {FILL} // a\nfence.proxy.async;\n{SYNC} // -\nelect.sync %r2|%p, -1;\n@%one {STORE} // b\n"
        f"{COMMIT}",
        frozenset({(Cause.CONVERGED, "a", "b")}),
        REVIEW,
    ),
    "a bulk copy of what all lanes have stored": Case(
        f"@%w0 {FILL} // a\nfence.proxy.async;\n{SYNC} // -\n@%one {STORE} // b\n{COMMIT}",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a proxy fence of every lane": Case(
        f"@%w0 {FILL} // a\nfence.proxy.async; // -\n{SYNC}\n@%one {STORE} // b\n{COMMIT}",
        frozenset({(Cause.PROXY, "a", "b")}),
    ),
    "a lane's wait for a bulk copy, and another lane's store": Case(
        f"@%one {STORE} // a\n@%one cp.async.bulk.commit_group;\n@%one cp.async.bulk.wait_group 0;\n"
        f"{SYNC} // -\n@%w0 {FILL} // b\n",
        frozenset({(Cause.IN_FLIGHT, "a", "b")}),
    ),
    "a lane waits for the cp.async of its own": Case(
        "@%w0 cp.async.ca.shared.global [%c], [%g], 4; // a\n@%w0 cp.async.wait_all;\n"
        f"{SYNC} // -\n{NEXT} // b\n",
        frozenset({(Cause.IN_FLIGHT, "a", "b")}),
    ),
    "an mbarrier.init, and another lane's arrival": Case(
        f"@%one mbarrier.init.shared.b64 [full], 32; // a\n{SYNC} // -\n"
        "@%w0 mbarrier.arrive.shared.b64 %d0, [full]; // b\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a lane that waits at an mbarrier waits for itself": Case(
        f"{READY}@!%one bra over;\nmbarrier.arrive.expect_tx.shared.b64 %d0, [full], 128;\n{COPY} // a\n"
        f"{wait('full', 0, 'again')}over:\n{SYNC} // -\n@%w0 ld.shared.b32 %r1, [%c]; // b\n",
        frozenset({(Cause.IN_FLIGHT, "a", "b")}),
    ),
    "a lane that arrives for others": Case(
        f"{READY}@%w0 {FILL} // a\n{SYNC} // -\n@%one mbarrier.arrive.shared.b64 %d0, [full];\n"
        f"@!%w1 bra over;\n{wait('full', 0, 'again')}ld.shared.b32 %r1, [%c]; // b\nover:\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "halves of a warp": Case(
        f"{LOW}@%w1 bra over;\n@!%q bra high;\n{FILL} // a\nbar.warp.sync 0xffff;\n"
        f"ld.shared.b32 %r1, [%s+4];\nbra both;\nhigh:\n{FILL}\nbar.warp.sync 0xffff0000;\n"
        f"ld.shared.b32 %r1, [%s+68];\nboth:\n{SYNC} // -\n@!%q ld.shared.b32 %r1, [%s+8]; // b\nover:\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "lanes that take turns": Case(
        "@%w1 bra over;\nmov.u32 %r2, 0;\nturn:\nsetp.eq.u32 %p, %r2, %t;\n"
        f"@%p st.shared.b32 [%s], %t; // a\n{SYNC} // -\nadd.u32 %r2, %r2, 1;\nsetp.lt.u32 %p, %r2, 3;\n"
        "@%p bra turn;\nover:\n",
        frozenset({(Cause.RACE, "a", "a")}),
    ),
    "a word that several lanes of two warps have read": Case(
        f"{BOTH_ARRIVE}ld.shared.b32 %r1, [%s+4]; // a\n{SYNC} // -\n{ARRIVE}{OVERWRITE}",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "the same, and a collective": Case(
        f"{BOTH_ARRIVE}ld.shared.b32 %r1, [%s+4]; // a\n{SYNC} // -\nelect.sync %r2|%p, -1;\n{ARRIVE}"
        f"{OVERWRITE}",
        frozenset({(Cause.CONVERGED, "a", "b")}),
        REVIEW,
    ),
    "a word that several lanes have read, and one of another warp, which arrives": Case(
        f"{BOTH_ARRIVE}@%second ld.shared.b32 %r1, [%s+4];\n@%w0 ld.shared.b32 %r1, [%s+4]; // a\n"
        f"@%w0 {SYNC} // -\n{ARRIVE}{OVERWRITE}",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
    "a word that a lane of each of two warps has read, not the same one": Case(
        f"{BOTH_ARRIVE}setp.eq.u32 %p, %t, 35;\nsetp.eq.u32 %q, %t, 0;\nor.pred %q, %q, %p;\n"
        f"@%q ld.shared.b32 %r1, [%s+4]; // a\n@%q mbarrier.arrive.shared.b64 %d0, [other];\n"
        f"@!%one bra over;\n{wait('other', 0, 'again', ' // -')}st.shared.b32 [%s+4], %t; // b\nover:\n",
        frozenset({(Cause.RACE, "a", "b")}),
    ),
}

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
