# SPDX-License-Identifier: Apache-2.0
"""PTX of kernels that cancel pending clusters, and how to run them.

Each CTA writes 3 x[tile] and its own number for its tile. It then does the tiles of the clusters that the
first thread of its cluster cancels."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdnbench.sim.checker.findings import FindingGroup
from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import RunResult, run_ptx

WORDS = 32  # of a tile of one warp, one for each thread
ENGINES = ("interpreter", "compiled")

HEADER = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 who)
{
.reg .pred %p, %ok, %one, %leader;
.reg .b32 %t, %own, %tile, %n, %phase, %rank, %first, %r<8>;
.reg .b64 %x, %y, %who, %in, %out, %by;
.reg .b128 %response, %other;
.shared .align 16 .b8 answer[32];
.shared .align 8 .b64 bar[2];
ld.param.u64 %x, [x];
ld.param.u64 %y, [y];
ld.param.u64 %who, [who];
mov.u32 %t, %tid.x;
mov.u32 %n, %ntid.x;
mov.u32 %own, %ctaid.x;
mov.u32 %rank, %cluster_ctarank;
mov.u32 %tile, %own;
mov.u32 %phase, 0;
setp.eq.u32 %one, %t, 0;
setp.eq.and.u32 %leader, %rank, 0, %one;
@%one mbarrier.init.shared.b64 [bar], 1;
@%one mbarrier.init.shared.b64 [bar+8], 1;
@%one fence.mbarrier_init.release.cluster;
"""
EXPECT = "@%one mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [bar], 16;\n"
ASK = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
WORK = """mad.lo.u32 %r0, %tile, %n, %t;
mad.wide.u32 %in, %r0, 4, %x;
mad.wide.u32 %out, %r0, 4, %y;
mad.wide.u32 %by, %r0, 4, %who;
ld.global.b32 %r1, [%in];
mul.lo.s32 %r1, %r1, 3;
st.global.b32 [%out], %r1;
st.global.b32 [%by], %own;
"""
WAIT = """again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [bar], %phase;
@!%p bra again;
xor.b32 %phase, %phase, 1;
"""
READ = """ld.shared.b128 %response, [answer];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %ok, %response;
@!%ok bra done;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%tile, _, _, _}, %response;
"""
FENCE = "fence.proxy.async.shared::cta;\n"
SYNC = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
END = "ret;\n}\n"

ALONE = (
    f"{HEADER}next: bar.sync 0;\n{EXPECT}@%one {ASK}.b128 [answer], [bar];\n"
    f"{WORK}{WAIT}{READ}{FENCE}bra next;\ndone:\n{END}"
)
"""For CTAs of no cluster."""
MULTICAST = (
    f"{HEADER}next:\n{SYNC}{EXPECT}@%leader {ASK}.multicast::cluster::all.b128 [answer], [bar];\n"
    f"{WORK}{WAIT}{READ}add.u32 %tile, %tile, %rank;\n{FENCE}bra next;\ndone:\n{SYNC}{END}"
)
"""For clusters along x: the leader's response goes to all of its CTAs."""

# The first warp of a CTA fetches responses ahead through two stages, and does no tile. The leader's first
# thread asks for the whole cluster once every warp of the cluster has read what was in the stage. Warps 1
# and 2 do the tiles.
_STAGE = """mov.u32 %r2, bar;
mad.lo.u32 %r2, %stage, 8, %r2;
mov.u32 %r3, answer;
mad.lo.u32 %r3, %stage, 16, %r3;
add.u32 %r4, %r2, 16;
mapa.shared::cluster.u32 %r4, %r4, 0;
"""
_RELEASE = f"""ld.shared.b128 %response, [%r3];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %ok, %response;
@%ok clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %tile, %response;
{FENCE}bar.warp.sync -1;
@%lane mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
add.u32 %tile, %tile, %rank;
xor.b32 %stage, %stage, 1;
setp.eq.u32 %p, %stage, 0;
@%p xor.b32 %phase, %phase, 1;
"""


def _wait(label: str, barrier: str, phase: str) -> str:
    return (
        f"{label}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [{barrier}], {phase};\n"
        f"@!%p bra {label};\n"
    )


PIPELINE = (
    HEADER.replace(".b32 %t,", ".b32 %stage, %free, %t,")
    .replace("%one, %leader;", "%one, %leader, %lane;")
    .replace("bar[2]", "bar[4]")
    .replace(
        "@%one fence.mbarrier_init",
        "mov.u32 %r1, %cluster_nctarank;\nmul.lo.u32 %r1, %r1, 3;\n"
        "@%one mbarrier.init.shared.b64 [bar+16], %r1;\n@%one mbarrier.init.shared.b64 [bar+24], %r1;\n"
        "@%one fence.mbarrier_init",
    )
    .replace("mov.u32 %n, %ntid.x;", "mov.u32 %n, 64;\nmov.u32 %stage, 0;")
    + f"""and.b32 %r1, %t, 31;
setp.eq.u32 %lane, %r1, 0;
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.aligned;
setp.ge.u32 %p, %t, 32;
@%p bra work;
fetch: {_STAGE}@%one mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [%r2], 16;
@!%leader bra asked;
xor.b32 %free, %phase, 1;
{_wait("free", "%r2+16", "%free")}{ASK}.multicast::cluster::all.b128 [%r3], [%r2];
asked: {_wait("fetched", "%r2", "%phase")}{_RELEASE}@%ok bra fetch;
bra done;
work: {_STAGE}sub.u32 %r5, %t, 32;
mad.lo.u32 %r0, %tile, %n, %r5;
mad.wide.u32 %in, %r0, 4, %x;
mad.wide.u32 %out, %r0, 4, %y;
ld.global.b32 %r1, [%in];
mul.lo.s32 %r1, %r1, 3;
st.global.b32 [%out], %r1;
{_wait("next", "%r2", "%phase")}{_RELEASE}@%ok bra work;
done:
{SYNC}{END}"""
)
"""For clusters along x. `who` stays as it is."""
PIPELINE_BLOCK, PIPELINE_WORDS = 96, 64


def run(
    text: str,
    ctas: int = 13,
    *,
    sms: int = 1,
    cluster: int = 1,
    block: int = 32,
    words: int = 0,
    smem: int = 100_000,
    engine: str = "interpreter",
    schedule: str = "late",
    **options: Any,
) -> tuple[np.ndarray, np.ndarray, RunResult]:
    """Launch `ctas` CTAs, two to an SM unless `smem` says otherwise. Returns y and who, int32[ctas, words];
    the words of a tile are as many as threads unless given."""
    words = words or block
    x = np.arange(ctas * words, dtype=np.int32)
    y, who = (np.full((ctas, words), -1, np.int32) for _ in range(2))
    result = run_ptx(
        text,
        "k",
        (ctas, 1, 1),
        (block, 1, 1),
        [x, y, who],
        smem,
        engine=engine,
        schedule=schedule,
        multiprocessors=sms,
        cluster=(cluster, 1, 1),
        **options,
    )
    return y, who, result


def findings(text: str, *, fault: FaultKind | None = None, **options: Any) -> list[FindingGroup]:
    """What the checker finds in a kernel, before the fault that ends it, if there is one."""
    checker = LaunchChecker(parse(text).kernels["k"])
    ended = None
    try:
        run(text, checker=checker.begin, **options)
    except KernelFault as error:
        ended = error.kind
    assert ended is fault
    return checker.found()
