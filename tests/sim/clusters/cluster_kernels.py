# SPDX-License-Identifier: Apache-2.0
"""PTX of small kernels for clusters, and how to run them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdnbench.sim.checker.findings import FindingGroup
from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import RunResult, run_ptx

ENGINES = ("interpreter", "compiled")
SCHEDULES = ("late", "early", "random:1", "random:2")
WORDS = 32  # of global memory for each CTA

HEADER = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .align 64 .b8 map[128]) @directives
{
.reg .pred %p, %q, %one, %first, %second;
.reg .b32 %t, %rank, %size, %next, %cta, %s, %peer, %bar, %there, %r<24>;
.reg .b64 %x, %y, %in, %out, %d<8>;
.reg .b16 %h0;
.shared .align 1024 .b8 buffer[2048];
.shared .align 8 .b64 full[2];
.shared .align 8 .b64 empty[2];
mov.u32 %t, %tid.x;
mov.u32 %rank, %cluster_ctarank;
mov.u32 %size, %cluster_nctarank;
mov.u32 %cta, %ctaid.x;
add.u32 %next, %rank, 1;
rem.u32 %next, %next, %size;
setp.eq.u32 %one, %t, 0;
setp.eq.u32 %first, %rank, 0;
setp.eq.u32 %second, %rank, 1;
ld.param.u64 %x, [x];
ld.param.u64 %y, [y];
mad.lo.u32 %r0, %cta, 32, %t;
mad.wide.u32 %in, %r0, 4, %x;
mad.wide.u32 %out, %r0, 4, %y;
mov.u32 %s, buffer;
mad.lo.u32 %s, %t, 4, %s;
mapa.shared::cluster.u32 %peer, %s, %next;
mov.u32 %bar, full;
mapa.shared::cluster.u32 %there, %bar, %next;
"""
"""Thread t of a CTA has the words [%in] and [%out] of global memory, and the word [%s] of shared memory,
which is at [%peer] in the CTA of the next rank. `full` of that CTA is at [%there]."""

SYNC = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
INIT = """@%one mbarrier.init.shared.b64 [full], 1;
@%one fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.aligned;
"""
"""Every CTA's `full` waits for one arrival, and every CTA has started."""
LOAD = "ld.global.b32 %r1, [%in];\n"
STORE = "st.global.b32 [%out], %r2;\n"


def wait(parity: int | str = 0, label: str = "again", barrier: str = "full") -> str:
    return (
        f"{label}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [{barrier}], {parity};\n"
        f"@!%p bra {label};\n"
    )


def kernel(body: str, directives: str = "") -> str:
    return f"{HEADER.replace('@directives', directives)}{body}ret;\n}}\n"


RING = f"{LOAD}st.shared.b32 [%s], %r1;\n{SYNC}ld.shared::cluster.b32 %r2, [%peer];\n{SYNC}{STORE}"
"""Every CTA copies the words of the next one."""


TILES = 6
# The CTA of rank 0 copies tiles of 128 bytes of x to all CTAs by a multicast, through two stages. Every CTA
# adds the tiles up, and arrives at the leader's `empty` when it has read one.
STREAM = f"""
@!%one bra made;
mbarrier.init.shared.b64 [full], 1;
mbarrier.init.shared.b64 [full+8], 1;
mbarrier.init.shared.b64 [empty], %size;
mbarrier.init.shared.b64 [empty+8], %size;
fence.mbarrier_init.release.cluster;
made:
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.aligned;
mov.u32 %r1, 0;
mov.u32 %r2, 0;
mov.b64 %d0, %x;
shl.b32 %r14, 1, %size;
sub.u32 %r14, %r14, 1;
cvt.u16.u32 %h0, %r14;
tile:
and.b32 %r3, %r1, 1;
shr.u32 %r4, %r1, 1;
and.b32 %r4, %r4, 1;
xor.b32 %r5, %r4, 1;
mov.u32 %r6, full;
mad.lo.u32 %r6, %r3, 8, %r6;
mov.u32 %r7, empty;
mad.lo.u32 %r7, %r3, 8, %r7;
mapa.shared::cluster.u32 %r8, %r7, 0;
mov.u32 %r9, buffer;
mad.lo.u32 %r9, %r3, 128, %r9;
@!%one bra issued;
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r6], 128;
@!%first bra issued;
free: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [%r7], %r5;
@!%p bra free;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
    [%r9], [%d0], 128, [%r6], %h0;
issued:
there: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [%r6], %r4;
@!%p bra there;
mad.lo.u32 %r10, %t, 4, %r9;
ld.shared.b32 %r11, [%r10];
add.u32 %r2, %r2, %r11;
bar.warp.sync -1;
@%one mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];
add.s64 %d0, %d0, 128;
add.u32 %r1, %r1, 1;
setp.lt.u32 %p, %r1, {TILES};
@%p bra tile;
{STORE}{SYNC}"""


ROUNDS = 3
# Sums over a cluster, of 64 words of each CTA in each round. Every warp sends its sum to all other CTAs, into
# a place of its own, and completes its bytes at the mbarrier there. y[round] of a CTA is the sum of all.
REDUCTION = f"""
@!%one bra made;
mbarrier.init.shared.b64 [full], 1;
fence.mbarrier_init.release.cluster;
made:
mov.u32 %r1, 0;
and.b32 %r3, %t, 31;
shr.u32 %r4, %t, 5;
mad.lo.u32 %r4, %rank, 2, %r4;
mov.u32 %r5, buffer;
mad.lo.u32 %r4, %r4, 4, %r5;
mapa.shared::cluster.u32 %r6, %r4, %r3;
mapa.shared::cluster.u32 %r7, %bar, %r3;
sub.u32 %r8, %size, 1;
mul.lo.u32 %r8, %r8, 8;
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.aligned;
round:
and.b32 %r9, %r1, 1;
@%one mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [full], %r8;
mad.lo.u32 %r10, %r1, %size, %cta;
mad.lo.u32 %r10, %r10, 64, %t;
mad.wide.u32 %d0, %r10, 4, %x;
ld.global.b32 %r11, [%d0];
redux.sync.add.s32 %r11, %r11, -1;
setp.eq.u32 %p, %r3, %rank;
@%p st.shared.b32 [%r4], %r11;
setp.lt.and.u32 %q, %r3, %size, !%p;
@%q st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], %r11, [%r7];
bar.sync 0;
{wait("%r9")}mov.u32 %r12, 0;
mul.lo.u32 %r13, %size, 8;
add.u32 %r13, %r13, %r5;
mov.u32 %r14, %r5;
add: ld.shared.b32 %r15, [%r14];
add.u32 %r12, %r12, %r15;
add.u32 %r14, %r14, 4;
setp.lt.u32 %p, %r14, %r13;
@%p bra add;
mad.lo.u32 %r10, %cta, 32, %r1;
mad.wide.u32 %d0, %r10, 4, %y;
@%one st.global.b32 [%d0], %r12;
{SYNC}
add.u32 %r1, %r1, 1;
setp.lt.u32 %p, %r1, {ROUNDS};
@%p bra round;
"""
"""For CTAs of 64 threads."""


def run(
    text: str,
    ctas: int,
    *,
    cluster: tuple[int, int, int] | None = None,
    x: np.ndarray | None = None,
    engine: str = "interpreter",
    schedule: str = "late",
    threads: int = 32,
    map_bytes: bytes = bytes(128),
    **options: Any,
) -> tuple[np.ndarray, RunResult]:
    """Launch `ctas` CTAs, by default in one cluster; returns y: int32[ctas, WORDS]."""
    x = np.arange(ctas * WORDS, dtype=np.int32) if x is None else x
    y = np.zeros((ctas, WORDS), np.int32)
    options["cluster"] = (ctas, 1, 1) if cluster is None else cluster
    result = run_ptx(
        text,
        "k",
        (ctas, 1, 1),
        (threads, 1, 1),
        [x, y, map_bytes],
        engine=engine,
        schedule=schedule,
        **options,
    )
    return y, result


def findings(text: str, ctas: int = 2, engine: str = "interpreter", **options: Any) -> list[FindingGroup]:
    """What the checker finds in a kernel."""
    checker = LaunchChecker(parse(text).kernels["k"])
    run(text, ctas, engine=engine, checker=checker.begin, **options)
    return checker.found()
