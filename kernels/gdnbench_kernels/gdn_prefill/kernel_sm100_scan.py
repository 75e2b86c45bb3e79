"""The states between segments: a scan of the segments' affine maps, in float32. CuTe DSL, sm_100a and sm_90a.

Reads offsets and maps, reads and writes firsts (fused_segments.py). For a sequence of J segments from slot s
on, and each value head:

    S_1     = B_0                       firsts[s + 1], which already holds it
    S_{j+1} = S_j M_j + B_j             j = 1 .. J - 2: firsts[s + j + 1] holds B_j, then S_{j+1}

A CTA computes 8 rows of the states of one value head through one sequence: rows of S do not mix. The products
are multiply-adds in f32, two at a time where `packed`, which needs SM100; their bits are the same. Each of
four warps sums over its 32 of the 128 elements of K, for all columns; the four sums are added in order, then
B. M comes by TMA, 16 rows at a time, ahead of its use. A sequence of fewer than three segments has no step.

    SMEM     shape                dtype    layout
    s_m      16 x 128, 10 stages  float32  rows contiguous
    s_s      128 x 8              float32  S^T, rows contiguous
    s_parts  8 x 128, 4 stages    float32  a warp's sum, rows contiguous

    role  warps  does
    SCAN  0..3   S M + B: a part of the sum over K a warp, then 32 columns; the state in B's place
    LOAD  4      TMA of M

    pipeline  stages  full: arrivals       empty: arrivals
    m         10      1 LOAD + 8192 bytes  1 SCAN warp

    sync                                     who   orders
    fence.mbarrier_init, barrier of the CTA  all   mbarriers before their use
    barrier SCAN, of parts                   SCAN  s_parts written before it is read; s_s read before written
    barrier SCAN, of a state                 SCAN  s_s written before it is read; s_parts read before written
    fence.proxy.async                        SCAN  s_m read before TMA writes

160 threads, 102560 bytes of SMEM, 0 columns of TMEM, 2 CTAs an SM

For a row of M a lane reads 4 of its elements, and 8 of S^T, which are the same for all lanes: 12 cycles of
shared memory for 16 FFMA2 or 32 FFMA in a warp. So a step takes at least 1536 cycles for products and 256
for sums.

Limits: UB Hv V K < 2^31; N Hv < 2^27, so that the CTAs, 16 for each state, are fewer than 2^31. maps and
firsts are contiguous, aligned to 16 bytes. NaN in S stays in its row, NaN in M reaches all rows of its
sequence and value head.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill.sizes import HEAD_DIM
from gdnbench_kernels.plan import Buffer, KernelPlan, Sync
from gdnbench_kernels.plan import Pipeline as PipelinePlan
from gdnbench_kernels.swa_decode import warp_ops as ops


class Role(IntEnum):
    """First warp of each role."""

    SCAN = 0
    LOAD = 4


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own."""

    SCAN = 1


ROWS = 8
"""Rows of a state that a CTA updates."""
WARPS = 4
"""Warps that share the sum over K: each has DEPTH rows of M in every WARPS DEPTH."""
DEPTH = 16
"""Rows of M in a stage."""
BLOCKS = HEAD_DIM // DEPTH // WARPS
"""Stages of M that a warp uses in a step."""
QUAD = 4
"""Columns of a thread."""
STAGES = 10
ALL_SHARED = 100
"""Shared-memory carveout in percent: with less a second CTA would not fit."""

PLAN = KernelPlan(
    name="segment_scan",
    roles=Role,
    warps={"SCAN": WARPS, "LOAD": 1},
    does={
        "SCAN": "S M + B: a part of the sum over K a warp, then 32 columns; the state in B's place",
        "LOAD": "TMA of M",
    },
    smem=(
        Buffer("s_m", (DEPTH, HEAD_DIM), "float32", "rows contiguous", STAGES, align=128),
        Buffer("s_s", (HEAD_DIM, ROWS), "float32", "S^T, rows contiguous", align=16),
        Buffer("s_parts", (ROWS, HEAD_DIM), "float32", "a warp's sum, rows contiguous", WARPS, align=16),
    ),
    tmem=(),
    pipelines=(PipelinePlan("m", STAGES, "LOAD", 1, "SCAN warp", 1, 4 * DEPTH * HEAD_DIM),),
    syncs=(
        Sync("fence.mbarrier_init, barrier of the CTA", "all", "mbarriers before their use"),
        Sync("barrier SCAN, of parts", "SCAN", "s_parts written before it is read; s_s read before written"),
        Sync(
            "barrier SCAN, of a state", "SCAN", "s_s written before it is read; s_parts read before written"
        ),
        Sync("fence.proxy.async", "SCAN", "s_m read before TMA writes"),
    ),
    ctas_per_sm=2,
)


@dataclass(frozen=True)
class Pipelines(blackwell.Pipelines):
    m: blackwell.Pipeline


@dataclass(frozen=True)
class Strip:
    """The work of a CTA: rows of the states of one sequence and value head, from its second slot on."""

    slot: cutlass.Int32
    head: cutlass.Int32
    row: cutlass.Int32
    steps: cutlass.Int32


@dataclass(frozen=True)
class SegmentScan:
    """S_{j+1} = S_j M_j + B_j for `value_heads` value heads, through the segments of each sequence. `packed`:
    two multiply-adds in an instruction."""

    value_heads: int
    packed: bool = True

    @cute.jit
    def __call__(
        self, offsets: cute.Tensor, maps: cute.Tensor, firsts: cute.Tensor, stream: cuda.CUstream
    ) -> None:
        """offsets [N+1] int32; maps [UB, Hv, K, K] and firsts [UB, Hv, V, K] f32 are those of
        fused_segments.py."""
        self.start(cute.size(offsets) - 1, offsets, maps, firsts, stream)

    def start(
        self, sequences: Any, cuts: Any, maps: cute.Tensor, firsts: cute.Tensor, stream: cuda.CUstream
    ) -> None:
        """Launch the kernel; `cuts` is what `strip` finds a CTA's segments by."""
        rows = cute.size(maps, mode=[0]) * self.value_heads * HEAD_DIM
        by_row = cute.make_tensor(maps.iterator, cute.make_layout((rows, HEAD_DIM), stride=(HEAD_DIM, 1)))
        box = cute.make_layout((DEPTH, HEAD_DIM), stride=(HEAD_DIM, 1))
        load = cpasync.CopyBulkTensorTileG2SOp()
        tma = blackwell.Tma(*cpasync.make_tiled_tma_atom(load, by_row, box, (DEPTH, HEAD_DIM)))
        strips = self.value_heads * (HEAD_DIM // ROWS)
        self.kernel(tma, cuts, firsts).launch(
            grid=(sequences * strips, 1, 1),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            preferred_smem_carveout=ALL_SHARED,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, tma: blackwell.Tma, cuts: Any, firsts: cute.Tensor) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        s_m, s_s, s_parts = (blackwell.vectors(smem, buffer) for buffer in PLAN.smem)
        pipelines = Pipelines.allocate(PLAN, smem)
        blackwell.prefetch((tma,), warp == Role.LOAD)
        blackwell.init_barriers(pipelines, warp == Role.LOAD)
        cute.arch.sync_threads()
        strip = self.strip(cuts)
        if warp == Role.LOAD:
            self.load(strip, pipelines.m, s_m, tma)
        else:
            self.scan(strip, pipelines.m, s_m, s_s[None, None, 0], s_parts, firsts)

    def strip(self, cuts: Any) -> Strip:
        """The calling CTA's; `cuts` is offsets."""
        n, head, row = self.place()
        return strip_of(cuts[n], cuts[n + 1] - cuts[n], head, row)

    def place(self) -> tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]:
        """The calling CTA's sequence, value head and first row. Order: rows of a head, heads of a sequence,
        sequences. So CTAs that read the same M are neighbours."""
        strips = HEAD_DIM // ROWS
        block = cute.arch.block_idx()[0]
        return block // (strips * self.value_heads), block // strips % self.value_heads, block % strips * ROWS

    @cute.jit
    def load(self, strip: Strip, pipe: blackwell.Pipeline, s_m: cute.Tensor, tma: blackwell.Tma) -> None:
        """Load M of each segment, DEPTH rows at a time. SCAN waits for all of it, so the ring is not drained
        at the end."""
        m = pipe.producer_state()
        for step in cutlass.range(strip.steps, unroll=1):
            row = ((strip.slot + step) * self.value_heads + strip.head) * HEAD_DIM
            for block in cutlass.range(HEAD_DIM // DEPTH, unroll=1):
                pipe.producer_acquire(m)
                pipe.arrive_and_expect_tx(m)
                tma.load(pipe, m, s_m, row + DEPTH * block)
                m.advance()

    @cute.jit
    def scan(
        self,
        strip: Strip,
        pipe: blackwell.Pipeline,
        s_m: cute.Tensor,
        s_s: cute.Tensor,
        s_parts: cute.Tensor,
        firsts: cute.Tensor,
    ) -> None:
        """Add S M to B, segment after segment. Each warp sums over its rows of M, for all columns; then each
        thread adds up the four sums of one column."""
        column = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        together = pipeline.NamedBarrier(barrier_id=Barrier.SCAN, num_threads=PLAN.threads_of(Role.SCAN))
        m = pipe.consumer_state()
        for _ in cutlass.range(warp, unroll=1):
            m.advance()
        r_column = cute.make_rmem_tensor((ROWS,), cutlass.Float32)
        if strip.steps > 0:
            cute.autovec_copy(self.column_at(firsts, strip, 0, column), r_column)
            cute.autovec_copy(r_column, s_s[column, None])
        together.arrive_and_wait()
        for step in cutlass.range(strip.steps, unroll=1):
            g_column = self.column_at(firsts, strip, step + 1, column)
            r_b = cute.make_rmem_tensor((ROWS,), cutlass.Float32)
            cute.autovec_copy(g_column, r_b)
            r_part = cute.make_rmem_tensor((ROWS, QUAD), cutlass.Float32)
            r_part.fill(0.0)
            for block in cutlass.range(BLOCKS, unroll=1):
                pipe.consumer_wait(m)
                first = DEPTH * (WARPS * block + warp)
                multiply(r_part, s_m[None, None, m.index], s_s, first, lane, self.packed)
                # The next M is written through the async proxy: order this thread's reads before it.
                cute.arch.fence_proxy("async.shared", space="cta")
                pipe.consumer_release(m)
                for _ in range(WARPS):
                    m.advance()
            write_part(r_part, s_parts[None, None, warp], lane)
            together.arrive_and_wait()
            r_column.fill(0.0)
            for part in cutlass.range_constexpr(WARPS):
                r_read = cute.make_rmem_tensor((ROWS,), cutlass.Float32)
                cute.autovec_copy(s_parts[None, column, part], r_read)
                r_column.store(r_column.load() + r_read.load())
            r_column.store(r_column.load() + r_b.load())
            cute.autovec_copy(r_column, g_column)
            cute.autovec_copy(r_column, s_s[column, None])
            together.arrive_and_wait()

    def column_at(self, firsts: cute.Tensor, strip: Strip, step: Any, column: cutlass.Int32) -> cute.Tensor:
        """The CTA's rows of a column of the state of a slot."""
        g_state = firsts[strip.slot + step, strip.head, None, None]
        return cute.local_tile(g_state[None, column], (ROWS,), (strip.row // ROWS,))


def strip_of(first: Any, segments: Any, head: Any, row: Any) -> Strip:
    """Of a sequence whose first slot is `first`. The second segment's first state is B of the first; the last
    segment has neither B nor M."""
    return Strip(first + 1, head, row, cutlass.max(segments - 2, 0))


@cute.jit
def multiply(
    r_part: cute.Tensor,
    s_m: cute.Tensor,
    s_s: cute.Tensor,
    first: cutlass.Int32,
    lane: cutlass.Int32,
    packed: cutlass.Constexpr,
) -> None:
    """r_part += S[:, first ..] M[first .., :] for the rows of M in the stage s_m. A thread has QUAD columns
    of all rows of the CTA, in pairs of rows."""
    for depth in cutlass.range(DEPTH, unroll=8):
        r_m = cute.make_rmem_tensor((QUAD,), cutlass.Float32)
        r_s = cute.make_rmem_tensor((ROWS,), cutlass.Float32)
        cute.autovec_copy(cute.local_tile(s_m[depth, None], (QUAD,), (lane,)), r_m)
        cute.autovec_copy(s_s[first + depth, None], r_s)
        for j in cutlass.range_constexpr(QUAD):
            for i in cutlass.range_constexpr(0, ROWS, 2):
                if cutlass.const_expr(packed):
                    r_part[i, j], r_part[i + 1, j] = cute.arch.fma_packed_f32x2(
                        (r_s[i], r_s[i + 1]), (r_m[j], r_m[j]), (r_part[i, j], r_part[i + 1, j])
                    )
                else:
                    r_part[i, j] = ops.fused(r_s[i], r_m[j], r_part[i, j])
                    r_part[i + 1, j] = ops.fused(r_s[i + 1], r_m[j], r_part[i + 1, j])


@cute.jit
def write_part(r_part: cute.Tensor, s_part: cute.Tensor, lane: cutlass.Int32) -> None:
    """Write a thread's columns of a warp's sum."""
    for i in cutlass.range_constexpr(ROWS):
        r_row = cute.make_rmem_tensor((QUAD,), cutlass.Float32)
        r_row.store(r_part[i, None].load())
        cute.autovec_copy(r_row, cute.local_tile(s_part[i, None], (QUAD,), (lane,)))
