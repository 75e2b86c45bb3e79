# SPDX-License-Identifier: Apache-2.0
"""PTX of a GEMM of two CTAs, and how to run it.

    C[256, 32] = A[256, K] B[32, K]^T           A and B in bf16, C in f32, K = 64 TILES

The CTA of rank r loads rows 128 r on of A and rows 16 r on of B, through a ring of two stages, and stores
rows 128 r on of C. Loads of both CTAs complete at `full` of the even one, which multiplies. Its commits
arrive at `empty` and `done` of both; LOAD waits for the last of them before the CTA exits.

    role      warps   does
    EPILOGUE  0 .. 3  tensor memory -> C
    LOAD      4       TMA
    MMA       5       allocates, in the even CTA multiplies, frees
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gdnbench.sim.checker.findings import FindingGroup
from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import RunResult, run_ptx
from tests.sim.machine.tma_model import Map

TILES = 5
M, N, K = 256, 32, 64 * TILES
A_BYTES, B_BYTES = 128 * 128, 16 * 128  # of a stage, in each CTA
# Tables 40 and 42 of PTX ISA 9.7.16.4: K-major, 128-byte swizzle, 1,024 bytes from 8 rows to the next; bf16,
# f32, M = 256, N = 32.
MATRIX = 1 << 16 | 1024 >> 4 << 32 | 1 << 46 | 2 << 61
INSTRUCTION = 1 << 4 | 1 << 7 | 1 << 10 | N >> 3 << 17 | M >> 4 << 24

COMMIT = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2"
ALLOC = "@%mma tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 32;"
DEALLOC = "@%mma tcgen05.dealloc.cta_group::2.sync.aligned.b32 %taddr, 32;"
EXPECT = f"mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%full], {2 * (A_BYTES + B_BYTES)};"
WAIT_FULL = (
    "there: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p, [%full], %phase;\n@!%p bra there;"
)
WAIT_EMPTY = "free: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p, [%empty], %r5;\n@!%p bra free;"
WAIT_DONE = "read: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p, [done], 0;\n@!%p bra read;"
DONE = f"{COMMIT} [%done], %both;"
EMPTY = f"{COMMIT} [%empty], %both;"

_NEXT = f"""and.b32 %stage, %tile, 1;
shr.u32 %phase, %tile, 1;
and.b32 %phase, %phase, 1;
mov.u32 %full, full;
mad.lo.u32 %full, %stage, 8, %full;
mov.u32 %empty, empty;
mad.lo.u32 %empty, %stage, 8, %empty;
mov.u32 %a, a;
mad.lo.u32 %a, %stage, {A_BYTES}, %a;
mov.u32 %b, b;
mad.lo.u32 %b, %stage, {B_BYTES}, %b;
"""
TAIL = f"""tail:
{_NEXT}xor.b32 %r5, %phase, 1;
{WAIT_EMPTY.replace("free", "freed")}
add.u32 %tile, %tile, 1;
setp.lt.u32 %p, %tile, {TILES + 2};
@%p bra tail;
"""


def _product(k: int) -> str:
    """The product of 16 of K."""
    descriptors = "".join(
        f"add.u32 %r4, %{name}, {32 * k};\nshr.u32 %r4, %r4, 4;\nand.b32 %r4, %r4, 0x3fff;\n"
        f"cvt.u64.u32 %d{name}, %r4;\nor.b64 %d{name}, %d{name}, {MATRIX:#x};\n"
        for name in "ab"
    )
    return (
        f"{descriptors}setp.ne.u32 %p, %more, 0;\n"
        f"tcgen05.mma.cta_group::2.kind::f16 [%taddr], %da, %db, {INSTRUCTION}, %p;\nmov.u32 %more, 1;\n"
    )


PAIR_GEMM = f""".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 y, .param .align 64 .b8 amap[128], .param .align 64 .b8 bmap[128])
{{
.reg .pred %p, %q, %one, %even, %load, %mma, %epilogue, %elected;
.reg .b32 %t, %lane, %warp, %rank, %tile, %stage, %phase, %full, %empty, %done, %a, %b, %at, %taddr, %more;
.reg .b32 %r<8>, %o<32>;
.reg .b64 %y, %amap, %bmap, %da, %db, %to;
.reg .b16 %both;
.shared .align 1024 .b8 a[{2 * A_BYTES}];
.shared .align 1024 .b8 b[{2 * B_BYTES}];
.shared .align 8 .b64 full[2];
.shared .align 8 .b64 empty[2];
.shared .align 8 .b64 done;
.shared .align 4 .b32 slot;
mov.u32 %t, %tid.x;
mov.u32 %rank, %cluster_ctarank;
and.b32 %lane, %t, 31;
shr.u32 %warp, %t, 5;
setp.eq.u32 %one, %t, 0;
setp.eq.u32 %even, %rank, 0;
setp.eq.u32 %load, %warp, 4;
setp.eq.u32 %mma, %warp, 5;
setp.lt.u32 %epilogue, %warp, 4;
setp.eq.u32 %elected, %lane, 0;
ld.param.u64 %y, [y];
mov.b64 %amap, amap;
cvta.param.u64 %amap, %amap;
mov.b64 %bmap, bmap;
cvta.param.u64 %bmap, %bmap;
mov.u16 %both, 3;
mov.u32 %done, done;
@%one mbarrier.init.shared.b64 [full], 1;
@%one mbarrier.init.shared.b64 [full+8], 1;
@%one mbarrier.init.shared.b64 [empty], 1;
@%one mbarrier.init.shared.b64 [empty+8], 1;
@%one mbarrier.init.shared.b64 [done], 1;
@%one fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.aligned;
{ALLOC}
bar.sync 0;
ld.shared.b32 %taddr, [slot];
mov.u32 %tile, 0;
@%epilogue bra store;
@!%elected bra over;
@%load bra fill;
@!%even bra over;
mov.u32 %more, 0;
multiply:
{_NEXT}{WAIT_FULL}
{"".join(_product(k) for k in range(4))}{EMPTY}
add.u32 %tile, %tile, 1;
setp.lt.u32 %p, %tile, {TILES};
@%p bra multiply;
{DONE}
bra over;
fill:
{_NEXT}xor.b32 %r5, %phase, 1;
{WAIT_EMPTY}
@%even {EXPECT}
and.b32 %at, %full, 0xFEFFFFFF;
shl.b32 %r0, %tile, 6;
shl.b32 %r1, %rank, 7;
shl.b32 %r2, %rank, 4;
{LOAD} [%a], [%amap, {{%r0, %r1}}], [%at];
{LOAD} [%b], [%bmap, {{%r0, %r2}}], [%at];
add.u32 %tile, %tile, 1;
setp.lt.u32 %p, %tile, {TILES};
@%p bra fill;
{TAIL}bra over;
store:
{WAIT_DONE}
tcgen05.fence::after_thread_sync;
and.b32 %r0, %t, 0x60;
shl.b32 %r0, %r0, 16;
add.u32 %r0, %r0, %taddr;
tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{", ".join(f"%o{i}" for i in range(32))}}}, [%r0];
tcgen05.wait::ld.sync.aligned;
mad.lo.u32 %r1, %rank, 128, %t;
mad.wide.u32 %to, %r1, {4 * N}, %y;
{"".join(f"st.global.b32 [%to+{4 * i}], %o{i};" for i in range(32))}
over:
bar.sync 0;
@%mma tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
{DEALLOC}
ret;
}}
"""


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B and the exact C: small integers."""
    rng = np.random.default_rng(27)
    a, b = (rng.integers(-3, 4, (rows, K)).astype(ml_dtypes.bfloat16) for rows in (M, N))
    return a, b, a.astype(np.float32) @ b.astype(np.float32).T


def maps(a: np.ndarray, b: np.ndarray) -> list[bytes]:
    """The tensor maps."""
    return [
        Map(matrix.ctypes.data, "bf16", (K, len(matrix)), (2 * K,), (64, rows), 128).encode()
        for matrix, rows in ((a, 128), (b, 16))
    ]


def run(
    text: str, *, engine: str = "interpreter", schedule: str = "late", **options: Any
) -> tuple[np.ndarray, np.ndarray, RunResult]:
    """(C, the exact C, what the launch says)."""
    a, b, expected = operands()
    memory = GlobalMemory()
    for name, matrix in (("A", a), ("B", b)):
        memory.add_array(matrix, name)
    c = np.full((M, N), np.nan, np.float32)
    shape = (2, 1, 1)
    result = run_ptx(
        text, "k", shape, (192, 1, 1), [c, *maps(a, b)], cluster=shape, engine=engine, schedule=schedule,
        memory=memory, **options,
    )  # fmt: skip
    return c, expected, result


def findings(text: str, engine: str = "interpreter", **options: Any) -> list[FindingGroup]:
    """What the checker finds."""
    checker = LaunchChecker(parse(text).kernels["k"])
    run(text, engine=engine, checker=checker.begin, **options)
    return checker.found()
