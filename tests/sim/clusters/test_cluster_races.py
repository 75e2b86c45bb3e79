# SPDX-License-Identifier: Apache-2.0
"""The checker over the CTAs of a cluster: kernels that are right as they are, and wrong with one thing
changed.

Expectations are the PTX ISA's: "barrier.cluster", "mbarrier", "membar, fence", "Memory Consistency Model"
("Scope"), and the CUDA programming guide's "Distributed Shared Memory" for starts and exits of CTAs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gdnbench.sim.checker.cluster_uses import EXIT, START
from gdnbench.sim.checker.happens_before import Cause
from tests.sim.clusters.cluster_kernels import ENGINES, INIT, LOAD, RING, STORE, SYNC, findings, kernel, wait
from tests.subset import quick

RELAXED = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n"


@dataclass(frozen=True)
class Change:
    """`body` with the first `before` replaced by `after` has findings of these causes, and none as it is."""

    body: str
    before: str
    after: str
    causes: frozenset[object]
    ctas: int = 2


def change(body: str, before: str, after: str, *causes: object) -> Change:
    assert before in body
    return Change(body, before, after, frozenset(causes))


ONE_READS = RING.replace("ld.shared::cluster", "mov.b32 %r2, 0;\n@%second ld.shared::cluster")
# The CTA of rank 0 fills the other one's buffer, in a kernel where only it does.
FLAG = f"""
st.shared.b32 [%s+256], 0;
{SYNC}
mapa.shared::cluster.u32 %r4, %s, 1;
@%first st.shared::cluster.b32 [%r4], %t;
bar.sync 0;
mov.u32 %r5, buffer;
mapa.shared::cluster.u32 %r6, %r5, 1;
and.pred %p, %one, %first;
@%p st.release.cluster.shared::cluster.b32 [%r6+256], 1;
@%first bra over;
poll: ld.acquire.cluster.shared::cta.b32 %r7, [%r5+256];
setp.ne.u32 %p, %r7, 1;
@%p bra poll;
ld.shared.b32 %r2, [%s];
over:
{SYNC}
"""
BY_GLOBAL = f"""
{LOAD}st.global.b32 [%out], %r1;
{SYNC}
add.s64 %d0, %y, 128;
@%second mov.b64 %d0, %y;
mad.wide.u32 %d0, %t, 4, %d0;
ld.global.b32 %r2, [%d0];
{SYNC}"""
HAND_OVER = f"""{LOAD}{INIT}
st.shared::cluster.b32 [%peer], %r1;
bar.sync 0;
@%one mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there];
{wait()}ld.shared.b32 %r2, [%s];
{STORE}{SYNC}"""

CHANGES = {
    "no barrier": change(RING, SYNC, RELAXED, Cause.CLUSTER),
    "no start": change(RING, SYNC, "", Cause.CLUSTER, START, "uninitialised read"),
    "no exit": change(ONE_READS, f"[%peer];\n{SYNC}", "[%peer];\n", EXIT),
    "init without its fence": change(
        HAND_OVER, "@%one fence.mbarrier_init.release.cluster;\n", "", Cause.CLUSTER
    ),
    "relaxed arrival": change(HAND_OVER, "arrive.release.cluster", "arrive.relaxed.cluster", Cause.CLUSTER),
    "flag of .cta scope": change(FLAG, "st.release.cluster", "st.release.cta", Cause.CLUSTER),
    "acquire of .cta scope": change(FLAG, "ld.acquire.cluster", "ld.acquire.cta", Cause.CLUSTER),
    "global memory": change(BY_GLOBAL, SYNC, "", Cause.CLUSTER),
}


@pytest.mark.parametrize(("name", "engine"), quick([(n, e) for n in CHANGES for e in ENGINES], 1, 4, 12))
def test_what_is_missing_is_found(name: str, engine: str) -> None:
    it = CHANGES[name]
    assert findings(kernel(it.body), it.ctas, engine) == []
    found = findings(kernel(it.body.replace(it.before, it.after, 1)), it.ctas, engine)
    assert {one.cause for one in found} == it.causes


def test_a_finding_names_the_ctas() -> None:
    text = kernel(RING.replace(SYNC, RELAXED, 1))
    (found,) = findings(text)
    assert found.first is not None
    assert {found.first.cta, found.second.cta} == {0, 1}
    assert (found.first.warp, found.second.warp) == (0, 0)
    assert found.ctas == {0, 1}


# Thread 0 arrives for both phases of the mbarrier; the other warp waits for them too.
TWO_PHASES = f"""{INIT}
@%one mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [full];
{wait(0)}{SYNC}
@%one mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [full];
{wait(1, "later")}{SYNC}"""


def test_a_relaxed_arrival_follows_the_waits_of_other_warps_before_it() -> None:
    """The wait precedes the barrier, the barrier the arrival: "Causality Order" is transitive."""
    assert findings(kernel(TWO_PHASES), threads=64) == []


# As CUTLASS's consumers do: lane r of a warp arrives at the mbarrier of the CTA of rank r, which waits for
# all CTAs before it exits.
BY_LANES = """
@%one mbarrier.init.shared.b64 [full], %size;
@%one fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.aligned;
mapa.shared::cluster.u32 %r4, %bar, %t;
mov.u32 %r6, buffer;
mad.lo.u32 %r6, %rank, 4, %r6;
mapa.shared::cluster.u32 %r5, %r6, %t;
setp.lt.u32 %q, %t, %size;
@!%q bra over;
st.shared::cluster.b32 [%r5], %t;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
over:
@@
"""


@pytest.mark.parametrize("ctas", [2, 4])
def test_a_wait_for_all_lanes_that_arrive_orders_the_exit(ctas: int) -> None:
    assert findings(kernel(BY_LANES.replace("@@", wait())), ctas) == []
    found = findings(kernel(BY_LANES.replace("@@", wait().replace("acquire", "relaxed"))), ctas)
    assert {one.cause for one in found} == {EXIT}
