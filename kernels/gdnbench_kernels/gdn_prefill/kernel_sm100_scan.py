"""The states between segments: a scan of the segments' affine maps, in float32. CuTe DSL, sm_100a.

Reads offsets and maps, reads and writes firsts (fused_segments.py). For a sequence of J segments from slot s
on, and each value head:

    S_1     = B_0                       firsts[s + 1], which already holds it
    S_{j+1} = S_j M_j + B_j             j = 1 .. J - 2: firsts[s + j + 1] holds B_j, then S_{j+1}

A CTA computes 16 rows of the states of one value head through one sequence: rows of S do not mix. The
products are multiply-adds in f32, two at a time, over K in order, then B. S stays in shared memory, since
every warp needs all of its columns; M comes by TMA, 32 rows at a time, ahead of its use. A sequence of fewer
than three segments has no step.

    SMEM  shape               dtype    layout
    s_m   32 x 128, 4 stages  float32  rows contiguous
    s_s   128 x 20, 2 stages  float32  S^T, rows contiguous, 4 words of padding

    role  warps  does
    SCAN  0..3   S M + B, 32 columns a warp; reads B and writes the state in its place
    LOAD  4      TMA of M

    pipeline  stages  full: arrivals        empty: arrivals
    m         4       1 LOAD + 16384 bytes  4 SCAN warp

    sync                                     who   orders
    fence.mbarrier_init, barrier of the CTA  all   mbarriers before their use
    barrier SCAN                             SCAN  s_s written before it is read, read before it is written
    fence.proxy.async                        SCAN  s_m read before TMA writes
    producer_tail                            LOAD  no arrival after the CTA ends

160 threads, 86080 bytes of SMEM, 0 columns of TMEM, 2 CTAs an SM

A thread has 4 x 4 elements: rows from 4 (lane / 8), columns from 32 warp + 4 (lane % 8) on. For each row of
M it reads 4 elements of M and 4 of S^T, 16 bytes each: 8 and 4 distinct addresses in a warp, without bank
conflicts.

Limits: UB Hv V K < 2^31; N Hv < 2^28, so that the CTAs, 8 for each state, are fewer than 2^31. maps and
firsts are contiguous, aligned to 16 bytes. NaN in S stays in its row, NaN in M reaches all rows of its
sequence and value head.
"""

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
from gdnbench_kernels.plan import WARP, Buffer, KernelPlan, Sync
from gdnbench_kernels.plan import Pipeline as PipelinePlan


class Role(IntEnum):
    """First warp of each role."""

    SCAN = 0
    LOAD = 4


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own."""

    SCAN = 1


ROWS = 16
"""Rows of a state that a CTA updates."""
DEPTH = 32
"""Rows of M in a stage."""
QUAD = 4
"""A thread has QUAD x QUAD elements: rows and columns."""
STAGES = 4
PITCH = ROWS + QUAD
ALL_SHARED = 100
"""Shared-memory carveout in percent: with less a second CTA would not fit."""

PLAN = KernelPlan(
    name="segment_scan",
    roles=Role,
    warps={"SCAN": 4, "LOAD": 1},
    does={
        "SCAN": "S M + B, 32 columns a warp; reads B and writes the state in its place",
        "LOAD": "TMA of M",
    },
    smem=(
        Buffer("s_m", (DEPTH, HEAD_DIM), "float32", "rows contiguous", STAGES, align=128),
        Buffer("s_s", (HEAD_DIM, PITCH), "float32", "S^T, rows contiguous, 4 words of padding", 2, align=16),
    ),
    tmem=(),
    pipelines=(PipelinePlan("m", STAGES, "LOAD", 1, "SCAN warp", 4, 4 * DEPTH * HEAD_DIM),),
    syncs=(
        Sync("fence.mbarrier_init, barrier of the CTA", "all", "mbarriers before their use"),
        Sync("barrier SCAN", "SCAN", "s_s written before it is read, read before it is written"),
        Sync("fence.proxy.async", "SCAN", "s_m read before TMA writes"),
        Sync("producer_tail", "LOAD", "no arrival after the CTA ends"),
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
    """S_{j+1} = S_j M_j + B_j for `value_heads` value heads, through the segments of each sequence."""

    value_heads: int

    @cute.jit
    def __call__(
        self, offsets: cute.Tensor, maps: cute.Tensor, firsts: cute.Tensor, stream: cuda.CUstream
    ) -> None:
        """offsets [N+1] int32; maps [UB, Hv, K, K] and firsts [UB, Hv, V, K] f32 are those of
        fused_segments.py."""
        rows = cute.size(maps, mode=[0]) * self.value_heads * HEAD_DIM
        by_row = cute.make_tensor(maps.iterator, cute.make_layout((rows, HEAD_DIM), stride=(HEAD_DIM, 1)))
        box = cute.make_layout((DEPTH, HEAD_DIM), stride=(HEAD_DIM, 1))
        tma = blackwell.Tma(
            *cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), by_row, box, (DEPTH, HEAD_DIM))
        )
        strips = self.value_heads * (HEAD_DIM // ROWS)
        self.kernel(tma, offsets, firsts).launch(
            grid=((cute.size(offsets) - 1) * strips, 1, 1),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            preferred_smem_carveout=ALL_SHARED,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, tma: blackwell.Tma, offsets: cute.Tensor, firsts: cute.Tensor) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        s_m, s_s = (blackwell.vectors(smem, buffer) for buffer in PLAN.smem)
        pipelines = Pipelines.allocate(PLAN, smem)
        blackwell.prefetch((tma,), warp == Role.LOAD)
        blackwell.init_barriers(pipelines, warp == Role.LOAD)
        cute.arch.sync_threads()
        strip = self.strip(offsets)
        if warp == Role.LOAD:
            self.load(strip, pipelines.m, s_m, tma)
        else:
            self.scan(strip, pipelines.m, s_m, s_s, firsts)

    def strip(self, offsets: cute.Tensor) -> Strip:
        """The calling CTA's. Order: rows of a head, heads of a sequence, sequences. So CTAs that read the
        same M are neighbours."""
        strips = HEAD_DIM // ROWS
        block = cute.arch.block_idx()[0]
        n, head = block // (strips * self.value_heads), block // strips % self.value_heads
        segments = offsets[n + 1] - offsets[n]
        # The second segment's first state is B of the first; the last segment has neither B nor M.
        return Strip(offsets[n] + 1, head, block % strips * ROWS, cutlass.max(segments - 2, 0))

    @cute.jit
    def load(self, strip: Strip, pipe: blackwell.Pipeline, s_m: cute.Tensor, tma: blackwell.Tma) -> None:
        """Load M of each segment, DEPTH rows at a time."""
        m = pipe.producer_state()
        for step in cutlass.range(strip.steps, unroll=1):
            row = ((strip.slot + step) * self.value_heads + strip.head) * HEAD_DIM
            for block in cutlass.range(HEAD_DIM // DEPTH, unroll=1):
                pipe.producer_acquire(m)
                pipe.arrive_and_expect_tx(m)
                tma.load(pipe, m, s_m, row + DEPTH * block)
                m.advance()
        pipe.producer_tail(m)

    @cute.jit
    def scan(
        self,
        strip: Strip,
        pipe: blackwell.Pipeline,
        s_m: cute.Tensor,
        s_s: cute.Tensor,
        firsts: cute.Tensor,
    ) -> None:
        """Add S M to B, segment after segment. A thread has rows 4 (lane / 8) and columns 32 warp + 4 (lane %
        8) of the CTA's; the sums over K are in order."""
        thread = cute.arch.thread_idx()[0]
        lane, warp = thread % WARP, thread // WARP
        row, column = QUAD * (lane // 8), WARP * warp + QUAD * (lane % 8)
        together = pipeline.NamedBarrier(barrier_id=Barrier.SCAN, num_threads=PLAN.threads_of(Role.SCAN))
        m = pipe.consumer_state()
        r_s = cute.make_rmem_tensor((QUAD, QUAD), cutlass.Float32)  # (column, row)
        if strip.steps > 0:
            copy_rows(self.rows_at(firsts, strip, 0, row, column), r_s)
            share(r_s, s_s[None, None, 0], row, column)
            together.arrive_and_wait()
        for step in cutlass.range(strip.steps, unroll=1):
            g_next = self.rows_at(firsts, strip, step + 1, row, column)
            r_b = cute.make_rmem_tensor((QUAD, QUAD), cutlass.Float32)
            copy_rows(g_next, r_b)
            r_s.fill(0.0)
            for block in cutlass.range(HEAD_DIM // DEPTH, unroll=1):
                pipe.consumer_wait(m)
                multiply(r_s, s_m[None, None, m.index], s_s[None, None, step % 2], DEPTH * block, row, column)
                # The next M is written through the async proxy: order this thread's reads before it.
                cute.arch.fence_proxy("async.shared", space="cta")
                pipe.consumer_release(m)
                m.advance()
            r_s.store(r_s.load() + r_b.load())
            copy_rows(r_s, g_next)
            share(r_s, s_s[None, None, (step + 1) % 2], row, column)
            together.arrive_and_wait()

    def rows_at(
        self, firsts: cute.Tensor, strip: Strip, step: Any, row: cutlass.Int32, column: cutlass.Int32
    ) -> cute.Tensor:
        """A thread's elements (column, row) of the state of a slot."""
        g_state = firsts[strip.slot + step, strip.head, None, None]
        tile = cute.local_tile(g_state, (QUAD, QUAD), ((strip.row + row) // QUAD, column // QUAD))
        return blackwell.reordered(tile, 1, 0)


@cute.jit
def copy_rows(source: cute.Tensor, target: cute.Tensor) -> None:
    for i in cutlass.range_constexpr(QUAD):
        cute.autovec_copy(source[None, i], target[None, i])


@cute.jit
def share(r_s: cute.Tensor, s_s: cute.Tensor, row: cutlass.Int32, column: cutlass.Int32) -> None:
    """Write a thread's elements to S^T."""
    for j in cutlass.range_constexpr(QUAD):
        r_rows = cute.make_rmem_tensor((QUAD,), cutlass.Float32)
        r_rows.store(r_s[j, None].load())
        cute.autovec_copy(r_rows, cute.local_tile(s_s[column + j, None], (QUAD,), (row // QUAD,)))


@cute.jit
def multiply(
    r_s: cute.Tensor,
    s_m: cute.Tensor,
    s_s: cute.Tensor,
    first: cutlass.Int32,
    row: cutlass.Int32,
    column: cutlass.Int32,
) -> None:
    """r_s += S[:, first ..] M[first .., :] for the rows of M in the stage s_m."""
    for depth in cutlass.range(DEPTH, unroll=8):
        r_m, r_rows = (cute.make_rmem_tensor((QUAD,), cutlass.Float32) for _ in range(2))
        cute.autovec_copy(cute.local_tile(s_m[depth, None], (QUAD,), (column // QUAD,)), r_m)
        cute.autovec_copy(cute.local_tile(s_s[first + depth, None], (QUAD,), (row // QUAD,)), r_rows)
        for i in cutlass.range_constexpr(QUAD):
            for j in cutlass.range_constexpr(0, QUAD, 2):
                r_s[j, i], r_s[j + 1, i] = cute.arch.fma_packed_f32x2(
                    (r_m[j], r_m[j + 1]), (r_rows[i], r_rows[i]), (r_s[j, i], r_s[j + 1, i])
                )
