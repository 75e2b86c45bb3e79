# SPDX-License-Identifier: Apache-2.0
"""All orders of clusters: CTAs that arrive at each other's mbarriers, pairs of CTAs with commits to both, and
cluster launch control. Each kernel is right as it is, and wrong with one thing changed."""

import numpy as np
import pytest

from gdnbench.sim.protocol.orders import Verdict
from gdnbench.sim.protocol.result import CheckedLaunch, CheckedPart
from tests.sim.clusters import pair_kernels
from tests.sim.clusters.launch_control_kernels import (
    ALONE,
    ASK,
    EXPECT,
    HEADER,
    MULTICAST,
    PIPELINE,
    PIPELINE_BLOCK,
    PIPELINE_WORDS,
    WAIT,
)
from tests.sim.clusters.pair_kernels import PAIR_GEMM, WAIT_DONE, WAIT_EMPTY
from tests.sim.protocol.launches import checked
from tests.subset import quick


def the_part(launch: CheckedLaunch) -> CheckedPart:
    assert launch.refused == ""
    (part,) = launch.parts
    return part


def wait(name: str, barrier: str, parity: str) -> str:
    return f"{name}: mbarrier.try_wait.parity.shared::cta.b64 %p, [{barrier}], {parity}; @!%p bra {name};\n"


TO_FULL = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%full];\n"
TO_EMPTY = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%empty];\n"
FREE = wait("free", "empty", "%other")
FILLED = wait("filled", "full", "%parity")
SLOW = "mov.u32 %r0, 0;\nspin: add.u32 %r0, %r0, 1; setp.lt.u32 %p, %r0, 20000; @%p bra spin;\n"
TURNS = 3
RING = f""".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
{{
.reg .pred %p, %one, %even;
.reg .b32 %r0, %rank, %turn, %parity, %other, %full, %empty;
.shared .align 8 .b64 full; .shared .align 8 .b64 empty;
mov.u32 %r0, %tid.x;
mov.u32 %rank, %cluster_ctarank;
setp.eq.u32 %one, %r0, 0;
setp.eq.u32 %even, %rank, 0;
@%one mbarrier.init.shared.b64 [full], 1;
@%one mbarrier.init.shared.b64 [empty], 1;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mov.u32 %full, full; mapa.shared::cluster.u32 %full, %full, 0;
mov.u32 %empty, empty; mapa.shared::cluster.u32 %empty, %empty, 1;
@!%one bra end;
mov.u32 %turn, 0;
again: and.b32 %parity, %turn, 1; xor.b32 %other, %parity, 1;
@%even bra consume;
{FREE}{TO_FULL}bra next;
consume: {FILLED}{TO_EMPTY}
next: add.u32 %turn, %turn, 1; setp.lt.u32 %p, %turn, {TURNS}; @%p bra again;
end: bar.warp.sync 0xffffffff; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
ret;
}}
"""
"""A ring of one slot between the CTAs of a cluster: rank 1 fills, rank 0 empties, each at the mbarrier of the
other."""


def test_a_ring_between_ctas_is_proved() -> None:
    part = the_part(checked(RING, [np.zeros(4, np.uint32)], ctas=2, threads=32, cluster=2))
    assert part.verdict is Verdict.PROVED
    # Of each CTA: two inits, the cluster's barrier twice (arrive, wait), and a wait and an arrival each turn.
    assert part.events == 2 * (2 + 4 + 2 * TURNS)


def test_a_ring_between_ctas_whose_producer_is_only_slow_is_broken() -> None:
    """The second arrival at rank 0 can come before its first wait: it waits for phase 0 with two over."""
    text = RING.replace(FREE, SLOW)
    part = the_part(checked(text, [np.zeros(4, np.uint32)], ctas=2, threads=32, cluster=2))
    assert part.verdict is Verdict.BROKEN
    assert part.wrong is not None
    assert "of the CTA of rank 1" in part.wrong.order[-1]
    assert part.wrong.ends.startswith("hang")
    assert all("of the CTA of rank 0" in text for text in part.wrong.waiting[:1])


def pair(text: str) -> CheckedPart:
    a, b, _ = pair_kernels.operands()
    c = np.zeros((pair_kernels.M, pair_kernels.N), np.float32)
    maps = pair_kernels.maps(a, b)
    return the_part(checked(text, [c], ctas=2, threads=192, cluster=2, more=maps, reachable=[a, b]))


def test_a_gemm_of_a_pair_is_proved() -> None:
    """TMA of both CTAs, products of both, commits that arrive at both, alloc and dealloc of both."""
    assert pair(PAIR_GEMM).verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("before", "after", "says"),
    quick(
        [
            # The bytes of the odd CTA's third tile count at the even one's `full` for the first.
            (WAIT_EMPTY, f"@!%even bra filled;\n{WAIT_EMPTY}\nfilled:", "cp.async.bulk.tensor"),
            (WAIT_DONE, WAIT_DONE.replace("[done], 0", "[done], 1"), "mbarrier.try_wait"),
        ],
        0,
    ),
)
def test_a_wrong_gemm_of_a_pair_is_broken(before: str, after: str, says: str) -> None:
    assert PAIR_GEMM.count(before) == 1
    part = pair(PAIR_GEMM.replace(before, after))
    assert part.verdict is Verdict.BROKEN
    assert part.wrong is not None
    assert says in part.wrong.what


def steal(text: str, ctas: int, cluster: int = 1, threads: int = 32, words: int = 32) -> CheckedLaunch:
    """On one SM, which holds two CTAs."""
    arrays = [np.zeros((ctas, words), np.int32) for _ in range(3)]
    return checked(text, arrays, ctas=ctas, threads=threads, cluster=cluster, smem=100_000, sms=1)


def answers(cancelled: int) -> str:
    return f"{cancelled} of {cancelled + 1} cancel a cluster"


def test_ctas_that_cancel_others_are_proved() -> None:
    """13 CTAs, of which two start: the first does every second one of the others."""
    launch = steal(ALONE, 13)
    assert launch.proved
    assert [part.cta for part in launch.parts] == [0, 1]
    assert [text.partition(": ")[2] for part in launch.parts for text in part.assumed] == [
        answers(6),
        answers(5),
    ]


@pytest.mark.parametrize(
    ("text", "threads", "words"),
    quick([(MULTICAST, 32, 32), (PIPELINE, PIPELINE_BLOCK, PIPELINE_WORDS)], 1),
)
def test_clusters_that_cancel_others_are_proved(text: str, threads: int, words: int) -> None:
    launch = steal(text, 8, 2, threads, words)
    part = the_part(launch)
    assert part.verdict is Verdict.PROVED
    assert part.assumed[0].endswith(answers(3))


def test_a_pipeline_of_requests_without_a_wait_for_a_free_stage_is_broken() -> None:
    """The response of the third request can come before that of the first was waited for."""
    lines = [line for line in PIPELINE.splitlines() if line.startswith("free:")]
    (free,) = lines
    text = PIPELINE.replace(f"{free}\n@!%p bra free;\n", "")
    assert text != PIPELINE
    part = the_part(steal(text, 8, 2, PIPELINE_BLOCK, PIPELINE_WORDS))
    assert part.verdict is Verdict.BROKEN
    assert part.wrong is not None
    assert part.wrong.shortest


TWO_WARPS = f"""{HEADER}bar.sync 0;
setp.eq.u32 %ok, %t, 32;
@%ok bra second;
{EXPECT}@%one {ASK}.b128 [answer], [bar];
@!%one bra met;
{WAIT}@@
ld.shared.b128 %response, [answer];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %ok, %response;
bra met;
second: mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [bar+8], 16;
{ASK}.b128 [answer+16], [bar+8];
mbarrier.arrive.shared.b64 _, [bar+16];
second_again: mbarrier.try_wait.parity.shared.b64 %p, [bar+8], 0;
@!%p bra second_again;
met: bar.warp.sync 0xffffffff;
bar.sync 0;
ret;
}}
""".replace("bar[2]", "bar[3]").replace(
    "@%one mbarrier.init.shared.b64 [bar+8], 1;",
    "@%one mbarrier.init.shared.b64 [bar+8], 1;\n@%one mbarrier.init.shared.b64 [bar+16], 1;",
)
"""Two warps of a grid of one CTA request. The first reads that its request has failed, at `@@` after a wait
for the request of the second."""


def test_a_request_after_its_cta_has_read_of_a_failure_is_undefined() -> None:
    part = the_part(steal(TWO_WARPS.replace("@@", ""), 1, threads=64))
    assert part.verdict is Verdict.BROKEN
    assert part.wrong is not None
    assert "clusterlaunchcontrol.try_cancel" in part.wrong.order[-1]
    assert "query_cancel.is_canceled" in part.wrong.order[-2]
    ordered = wait("asked", "bar+16", "0")
    part = the_part(steal(TWO_WARPS.replace("@@", ordered), 1, threads=64))
    assert part.verdict is Verdict.PROVED
