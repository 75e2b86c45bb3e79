"""Outputs of every chunk: FLA's `chunk_o`. CuTe DSL, sm_100a.

Computes o from the state before the chunk and the updates within it:

    Gamma[i,j] = exp(g_cu[i] - g_cu[j])                 i >= j only: the exponent is never positive
    P          = lower(Q K^T Gamma)                     diagonal kept, rounded to bf16
    o          = scale (exp(g_cu) Q S^T + P V_new)      S = state before the chunk, h its rounding

A work tile (item) is a chunk of one value head, number chunk Hv + head. CTA b of `ctas` processes items b, b
+ ctas, ... below total_chunks Hv, which it reads on the device. With C = 64 tokens, K = V = 128, for each
item:

    1. QK = Q K^T        M, N, K = C, C, K       one item ahead of 2 and 3
    2. QS = Q h^T        M, N, K = C, V, K
    3. PV = P V_new      M, N, K = C, V, C       V_new read MN-major

    tensor         shape            dtype     rows
    q, k           T, H, K          bfloat16  value head hv reads head hv // (Hv // H)
    v_new          UB C, Hv, V      bfloat16  chunk c in rows 64 c ..
    h              UB, Hv, V, K     bfloat16  chunk c in row c
    g_cu           T, Hv            float32
    chunk_indices  UB, 2            int32     (sequence, chunk within it); UB >= total_chunks
    o              T, Hv, V         bfloat16

    SMEM  shape                dtype     layout
    s_q   64 x 128, 3 stages   bfloat16  K-major, 128-byte swizzle
    s_k   64 x 128, 3 stages   bfloat16  K-major, 128-byte swizzle
    s_h   128 x 128, 2 stages  bfloat16  K-major, 128-byte swizzle
    s_v   64 x 128, 2 stages   bfloat16  K-major, 128-byte swizzle; read as MN-major
    s_p   64 x 64, 2 stages    bfloat16  K-major, 128-byte swizzle
    s_o   64 x 128             bfloat16  rows of two 128-byte halves, swizzled
    s_g   64, 4 stages         float32   contiguous

    TMEM  shape               columns   lanes  layout
    t_qk  64 x 64, 2 stages   0..127    low    M=64: row r in lane 32 (r/16) + r%16
    t_qs  64 x 128, 2 stages  128..383  low    M=64: row r in lane 32 (r/16) + r%16
    t_pv  64 x 128, 2 stages  128..383  high   M=64: row r in lane 32 (r/16) + r%16, + 16

    role      warps  does
    MASK      0..3   QK from TMEM, decay and causal mask, P into s_p
    EPILOGUE  4..7   QS and PV from TMEM, o into s_o, stores o
    LOAD      8      TMA of Q, K, h and V_new
    MMA       9      allocates TMEM; all products
    GATE      10     g_cu of the chunk's tokens into s_g

    pipeline  stages  full: arrivals        empty: arrivals
    qk        3       1 LOAD + 32768 bytes  1 MMA
    hv        2       1 LOAD + 49152 bytes  1 MMA
    g         4       1 GATE                8 MASK, EPILOGUE
    scores    2       1 MMA                 4 MASK
    p         2       4 MASK                1 MMA
    o         2       1 MMA                 4 EPILOGUE

    sync                               who                  orders
    fence.mbarrier_init, barrier TMEM  all                  mbarriers, TMEM there before they are used
    relinquish                         MMA                  TMEM taken before another CTA may ask for it
    tcgen05.fence before, after        MMA, MASK, EPILOGUE  products and loads of TMEM with arrivals, waits
    tcgen05.wait::ld                   MASK, EPILOGUE       a stage of TMEM read before it is released
    fence.proxy.async, s_p             MASK                 P written before products read it
    bulk wait_group.read               EPILOGUE, warp 4     the last TMA store has read s_o
    barrier EPILOGUE, first            EPILOGUE             s_o read by the last store before it is written
    fence.proxy.async, s_o             EPILOGUE             o in s_o before the TMA store reads it
    barrier EPILOGUE, second           EPILOGUE             all of s_o written before it is stored
    bulk wait_group                    EPILOGUE, warp 4     o stored before the CTA ends
    producer_tail                      each producer        no arrival after the CTA ends
    barrier of the CTA                 all                  TMEM read before it is freed

352 threads, 230644 bytes of SMEM, 512 columns of TMEM, 1 CTA an SM

A chunk of fewer than 64 tokens: rows of Q and K past its end belong to the next sequence and may be NaN. Such
a row of Q affects only the same row of QK, QS and PV. Such a row of K affects a column of QK that is above
the diagonal in every row of the chunk, where P is replaced by 0, not multiplied. Rows past the end are not
stored: TMA stores full chunks, vector stores write the rows of shorter ones. V_new's rows past the end must
be finite, since P's zeros multiply them; chunk_state writes zeros there.

Limits: K = V = 128, bf16 except g_cu in f32, which is finite or NaN and does not increase within a chunk; Hv
a multiple of H; T Hv, UB Hv < 2^31; tensors contiguous, aligned to 16 bytes. Rows of v_new and h past
total_chunks are not read. NaN in a token may reach all outputs of its sequence in its chunk, and no other
sequence. An item's bits depend only on its chunk and head; sums have a fixed order.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill.chunk_table import CHUNK, HEAD_DIM, chunk_at
from gdnbench_kernels.gdn_prefill.gate_scan import decay
from gdnbench_kernels.plan import WARP, Accumulator, Buffer, KernelPlan, Pipeline, Sync

BF16 = cutlass.BFloat16


class Role(IntEnum):
    """First warp of each role."""

    MASK = 0
    EPILOGUE = 4
    LOAD = 8
    MMA = 9
    GATE = 10


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own."""

    TMEM = 1
    EPILOGUE = 2


TOKENS = (CHUNK, HEAD_DIM)
STATE = (HEAD_DIM, HEAD_DIM)
SWIZZLED = "K-major, 128-byte swizzle"
LANES = "M=64: row r in lane 32 (r/16) + r%16"

PLAN = KernelPlan(
    name="chunk_output",
    roles=Role,
    warps={"MASK": 4, "EPILOGUE": 4, "LOAD": 1, "MMA": 1, "GATE": 1},
    does={
        "MASK": "QK from TMEM, decay and causal mask, P into s_p",
        "EPILOGUE": "QS and PV from TMEM, o into s_o, stores o",
        "LOAD": "TMA of Q, K, h and V_new",
        "MMA": "allocates TMEM; all products",
        "GATE": "g_cu of the chunk's tokens into s_g",
    },
    smem=(
        Buffer("s_q", TOKENS, "bfloat16", SWIZZLED, 3),
        Buffer("s_k", TOKENS, "bfloat16", SWIZZLED, 3),
        Buffer("s_h", STATE, "bfloat16", SWIZZLED, 2),
        Buffer("s_v", TOKENS, "bfloat16", f"{SWIZZLED}; read as MN-major", 2),
        Buffer("s_p", (CHUNK, CHUNK), "bfloat16", SWIZZLED, 2),
        Buffer("s_o", TOKENS, "bfloat16", "rows of two 128-byte halves, swizzled"),
        Buffer("s_g", (CHUNK,), "float32", "contiguous", 4, align=16),
    ),
    tmem=(
        Accumulator("t_qk", (CHUNK, CHUNK), 0, CHUNK, LANES, "low", 2),
        Accumulator("t_qs", TOKENS, 2 * CHUNK, HEAD_DIM, LANES, "low", 2),
        Accumulator("t_pv", TOKENS, 2 * CHUNK, HEAD_DIM, f"{LANES}, + 16", "high", 2),
    ),
    pipelines=(
        Pipeline("qk", 3, "LOAD", 1, "MMA", 1, 2 * CHUNK * HEAD_DIM * 2),
        Pipeline("hv", 2, "LOAD", 1, "MMA", 1, (HEAD_DIM + CHUNK) * HEAD_DIM * 2),
        Pipeline("g", 4, "GATE", 1, "MASK, EPILOGUE", 8),
        Pipeline("scores", 2, "MMA", 1, "MASK", 4),
        Pipeline("p", 2, "MASK", 4, "MMA", 1),
        Pipeline("o", 2, "MMA", 1, "EPILOGUE", 4),
    ),
    syncs=(
        Sync("fence.mbarrier_init, barrier TMEM", "all", "mbarriers, TMEM there before they are used"),
        Sync("relinquish", "MMA", "TMEM taken before another CTA may ask for it"),
        Sync(
            "tcgen05.fence before, after",
            "MMA, MASK, EPILOGUE",
            "products and loads of TMEM with arrivals, waits",
        ),
        Sync("tcgen05.wait::ld", "MASK, EPILOGUE", "a stage of TMEM read before it is released"),
        Sync("fence.proxy.async, s_p", "MASK", "P written before products read it"),
        Sync("bulk wait_group.read", "EPILOGUE, warp 4", "the last TMA store has read s_o"),
        Sync("barrier EPILOGUE, first", "EPILOGUE", "s_o read by the last store before it is written"),
        Sync("fence.proxy.async, s_o", "EPILOGUE", "o in s_o before the TMA store reads it"),
        Sync("barrier EPILOGUE, second", "EPILOGUE", "all of s_o written before it is stored"),
        Sync("bulk wait_group", "EPILOGUE, warp 4", "o stored before the CTA ends"),
        Sync("producer_tail", "each producer", "no arrival after the CTA ends"),
        Sync("barrier of the CTA", "all", "TMEM read before it is freed"),
    ),
)


@dataclass(frozen=True)
class Pipelines(blackwell.Pipelines):
    qk: blackwell.Pipeline
    hv: blackwell.Pipeline
    g: blackwell.Pipeline
    scores: blackwell.Pipeline
    p: blackwell.Pipeline
    o: blackwell.Pipeline


@dataclass(frozen=True)
class Tiles:
    """The plan's buffers of tiles in shared memory, each (rows, columns, stages)."""

    q: cute.Tensor
    k: cute.Tensor
    h: cute.Tensor
    v: cute.Tensor
    p: cute.Tensor
    o: cute.Tensor

    @staticmethod
    def allocate(smem: Any) -> Tiles:
        return Tiles(*(blackwell.tiles(smem, buffer) for buffer in PLAN.smem[:-1]))


@dataclass(frozen=True)
class TileScheduler:
    """The work tiles of one CTA: chunks of one value head each."""

    value_heads: int
    group: int
    count: cutlass.Int32
    cu_seqlens: cute.Tensor
    chunk_indices: cute.Tensor

    def work_tile(self, turn: cutlass.Int32) -> tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]:
        """(chunk, value head, key head) of the CTA's item number `turn`."""
        item = cute.arch.block_idx()[0] + turn * cute.arch.grid_dim()[0]
        value_head = item % self.value_heads
        return item // self.value_heads, value_head, value_head // self.group

    def tokens(self, chunk: cutlass.Int32) -> tuple[cutlass.Int32, cutlass.Int32]:
        """(first token, number of tokens)."""
        start, length = chunk_at(chunk, self.chunk_indices, self.cu_seqlens)
        return start, length


class ChunkOutput:
    """The kernel for `heads` key heads and `value_heads` value heads, a multiple of `heads`."""

    def __init__(self, heads: int, value_heads: int) -> None:
        self.heads = heads
        self.value_heads = value_heads

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v_new: cute.Tensor,
        h: cute.Tensor,
        g_cu: cute.Tensor,
        cu_seqlens: cute.Tensor,
        chunk_indices: cute.Tensor,
        total_chunks: cute.Tensor,
        o: cute.Tensor,
        scale: cutlass.Float32,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_q, tma_k, tma_v = (
            blackwell.Tma.create(load, blackwell.by_head(x), TOKENS) for x in (q, k, v_new)
        )
        tma_h = blackwell.Tma.create(load, blackwell.reordered(h, 2, 3, 1, 0), STATE)
        tma_o = blackwell.Tma.create(store, blackwell.by_head(o), TOKENS)
        self.kernel(
            tma_q, tma_k, tma_h, tma_v, tma_o, g_cu, cu_seqlens, chunk_indices, total_chunks, o, scale
        ).launch(grid=(ctas, 1, 1), block=(PLAN.threads, 1, 1), stream=stream)

    @cute.kernel
    def kernel(
        self,
        tma_q: blackwell.Tma,
        tma_k: blackwell.Tma,
        tma_h: blackwell.Tma,
        tma_v: blackwell.Tma,
        tma_o: blackwell.Tma,
        g_cu: cute.Tensor,
        cu_seqlens: cute.Tensor,
        chunk_indices: cute.Tensor,
        total_chunks: cute.Tensor,
        o: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        tiles = Tiles.allocate(smem)
        s_g = blackwell.vectors(smem, PLAN.buffer("s_g"))
        pipelines = Pipelines.allocate(PLAN, smem)
        blackwell.prefetch((tma_q, tma_k, tma_h, tma_v, tma_o), warp == Role.LOAD)
        blackwell.init_barriers(pipelines, warp == Role.LOAD)
        tmem, base = blackwell.allocate_tmem(PLAN, smem, Role.MMA, Barrier.TMEM)
        block, ctas = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        count = (total_chunks[0] * self.value_heads - block + ctas - 1) // ctas
        group = self.value_heads // self.heads
        scheduler = TileScheduler(self.value_heads, group, count, cu_seqlens, chunk_indices)
        if warp < Role.EPILOGUE:
            self.mask(pipelines, scheduler, base, s_g, tiles.p)
        if warp >= Role.EPILOGUE and warp < Role.LOAD:
            self.epilogue(pipelines, scheduler, base, s_g, tiles.o, tma_o, o, scale)
        if warp == Role.LOAD:
            self.load(pipelines, scheduler, tiles, tma_q, tma_k, tma_h, tma_v)
        if warp == Role.MMA:
            self.mma(pipelines, scheduler, tiles, base)
        if warp == Role.GATE:
            self.gate(pipelines, scheduler, g_cu, s_g)
        cute.arch.sync_threads()
        tmem.free(base)

    @cute.jit
    def load(
        self,
        pipelines: Pipelines,
        scheduler: TileScheduler,
        tiles: Tiles,
        tma_q: blackwell.Tma,
        tma_k: blackwell.Tma,
        tma_h: blackwell.Tma,
        tma_v: blackwell.Tma,
    ) -> None:
        """Load Q and K first: MASK can process their product before the state arrives."""
        qk, hv = pipelines.qk.producer_state(), pipelines.hv.producer_state()
        for turn in cutlass.range(scheduler.count, unroll=1):
            chunk, value_head, head = scheduler.work_tile(turn)
            start, _ = scheduler.tokens(chunk)
            pipelines.qk.producer_acquire(qk)
            pipelines.qk.arrive_and_expect_tx(qk)
            tma_q.load(pipelines.qk, qk, tiles.q, start, head)
            tma_k.load(pipelines.qk, qk, tiles.k, start, head)
            qk.advance()
            pipelines.hv.producer_acquire(hv)
            pipelines.hv.arrive_and_expect_tx(hv)
            tma_h.load(pipelines.hv, hv, tiles.h, 0, value_head, chunk)
            tma_v.load(pipelines.hv, hv, tiles.v, CHUNK * chunk, value_head)
            hv.advance()
        pipelines.qk.producer_tail(qk)
        pipelines.hv.producer_tail(hv)

    @cute.jit
    def gate(
        self, pipelines: Pipelines, scheduler: TileScheduler, g_cu: cute.Tensor, s_g: cute.Tensor
    ) -> None:
        """Rows past the chunk's end get the last token's g_cu, so no exponent is positive there either."""
        lane = cute.arch.lane_idx()
        g = pipelines.g.producer_state()
        for turn in cutlass.range(scheduler.count, unroll=1):
            chunk, value_head, _ = scheduler.work_tile(turn)
            start, length = scheduler.tokens(chunk)
            # Load before producer_acquire: its wait hides the latency of three dependent loads.
            low = g_cu[start + cutlass.min(lane, length - 1), value_head]
            high = g_cu[start + cutlass.min(lane + WARP, length - 1), value_head]
            pipelines.g.producer_acquire(g)
            s_g[lane, g.index] = low
            s_g[lane + WARP, g.index] = high
            pipelines.g.producer_commit(g)
            g.advance()
        pipelines.g.producer_tail(g)

    @cute.jit
    def mma(self, pipelines: Pipelines, scheduler: TileScheduler, tiles: Tiles, base: cute.Pointer) -> None:
        """Issue QK one item ahead of QS and PV, so that MASK processes it while the previous item is
        multiplied."""
        qk, qs, pv = qk_mma(), qs_mma(), pv_mma()
        r_q, r_k = blackwell.operands(qk, tiles.q, tiles.k, (CHUNK, CHUNK, HEAD_DIM))
        r_qs, r_h = blackwell.operands(qs, tiles.q, tiles.h, (CHUNK, HEAD_DIM, HEAD_DIM))
        r_p, r_v = blackwell.operands(pv, tiles.p, tiles.v, (CHUNK, HEAD_DIM, CHUNK))
        ahead, behind, hv, p = (
            pipe.consumer_state() for pipe in (pipelines.qk, pipelines.qk, pipelines.hv, pipelines.p)
        )
        scores, o = pipelines.scores.producer_state(), pipelines.o.producer_state()
        for turn in cutlass.range(scheduler.count + 1, unroll=1):
            if turn < scheduler.count:
                pipelines.qk.consumer_wait(ahead)
                pipelines.scores.producer_acquire(scores)
                blackwell.after_thread_sync()
                t_qk = blackwell.accumulator(qk, base, PLAN.accumulator("t_qk"), scores.index)
                blackwell.mma(
                    qk, t_qk, r_q[None, None, None, ahead.index], r_k[None, None, None, ahead.index]
                )
                pipelines.scores.umma_commit(scores)
                ahead.advance()
                scores.advance()
            if turn > 0:
                pipelines.hv.consumer_wait(hv)
                pipelines.o.producer_acquire(o)
                blackwell.after_thread_sync()
                t_qs = blackwell.accumulator(qs, base, PLAN.accumulator("t_qs"), o.index)
                blackwell.mma(qs, t_qs, r_qs[None, None, None, behind.index], r_h[None, None, None, hv.index])
                pipelines.qk.umma_release(behind)
                pipelines.p.consumer_wait(p)
                blackwell.after_thread_sync()
                t_pv = blackwell.accumulator(pv, base, PLAN.accumulator("t_pv"), o.index)
                blackwell.mma(pv, t_pv, r_p[None, None, None, p.index], r_v[None, None, None, hv.index])
                pipelines.hv.umma_release(hv)
                pipelines.p.umma_release(p)
                pipelines.o.umma_commit(o)
                behind.advance()
                hv.advance()
                p.advance()
                o.advance()
        pipelines.scores.producer_tail(scores)
        pipelines.o.producer_tail(o)

    @cute.jit
    def mask(
        self,
        pipelines: Pipelines,
        scheduler: TileScheduler,
        base: cute.Pointer,
        s_g: cute.Tensor,
        s_p: cute.Tensor,
    ) -> None:
        """P = lower(QK Gamma). Above the diagonal QK may be NaN, so it is replaced by 0, not multiplied."""
        part = PLAN.accumulator("t_qk")
        tmem_copy = blackwell.TmemCopy.create(qk_mma(), part.shape, base, cute.arch.thread_idx()[0])
        g, scores, p = (
            pipelines.g.consumer_state(),
            pipelines.scores.consumer_state(),
            pipelines.p.producer_state(),
        )
        r_decay = cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32)
        r_qk = cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32)
        r_p = cute.make_rmem_tensor(tmem_copy.coords.shape, BF16)
        for _ in cutlass.range(scheduler.count, unroll=1):
            pipelines.g.consumer_wait(g)
            for i in cutlass.range_constexpr(cute.size(r_decay)):
                row, column = tmem_copy.coords[i]
                r_decay[i] = s_g[row, g.index] - s_g[column, g.index]
            pipelines.g.consumer_release(g)
            for i in cutlass.range_constexpr(cute.size(r_decay)):
                # Above the diagonal the difference is positive: clamp it. NaN stays.
                r_decay[i] = decay(cute.arch.fmin(r_decay[i], 0.0, nan=True))
            tmem_copy.load_and_release(pipelines.scores, scores, part, r_qk)
            for i in cutlass.range_constexpr(cute.size(r_qk)):
                row, column = tmem_copy.coords[i]
                r_qk[i] = (r_qk[i] if column <= row else cutlass.Float32(0.0)) * r_decay[i]
            r_p.store(r_qk.load().to(BF16))
            pipelines.p.producer_acquire(p)
            tmem_copy.stmatrix(r_p, s_p[None, None, p.index])
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.p.producer_commit(p)
            g.advance()
            scores.advance()
            p.advance()
        pipelines.p.producer_tail(p)

    @cute.jit
    def epilogue(
        self,
        pipelines: Pipelines,
        scheduler: TileScheduler,
        base: cute.Pointer,
        s_g: cute.Tensor,
        s_o: cute.Tensor,
        tma_o: blackwell.Tma,
        o: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        """Scale and round o and store it through s_o: a full chunk by TMA, a shorter one row by row."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        threads = PLAN.threads_of(Role.EPILOGUE)
        thread = cute.arch.thread_idx()[0] - WARP * Role.EPILOGUE
        together = pipeline.NamedBarrier(barrier_id=Barrier.EPILOGUE, num_threads=threads)
        tmem_copy = blackwell.TmemCopy.create(qk_mma(), (CHUNK, CHUNK), base, thread)
        g, acc = pipelines.g.consumer_state(), pipelines.o.consumer_state()
        for turn in cutlass.range(scheduler.count, unroll=1):
            chunk, value_head, _ = scheduler.work_tile(turn)
            start, length = scheduler.tokens(chunk)
            if warp == Role.EPILOGUE:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            together.arrive_and_wait()
            self._form_o(pipelines, g, acc, tmem_copy, s_g, s_o[None, None, 0], scale)
            g.advance()
            acc.advance()
            cute.arch.fence_proxy("async.shared", space="cta")
            together.arrive_and_wait()
            if length == CHUNK:
                if warp == Role.EPILOGUE:
                    with cute.arch.elect_one():
                        tma_o.store(s_o[None, None, 0], start, value_head)
                        cute.arch.cp_async_bulk_commit_group()
            else:
                self._store_rows(s_o[None, None, 0], o, start, length, value_head, thread)
        if warp == Role.EPILOGUE:
            cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def _form_o(
        self,
        pipelines: Pipelines,
        g: Any,
        acc: Any,
        tmem_copy: blackwell.TmemCopy,
        s_g: cute.Tensor,
        s_o: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        """Write o = scale (exp(g_cu) QS + PV) to s_o, half of the columns at a time."""
        r_decay, r_qs, r_pv = (
            cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32) for _ in range(3)
        )
        r_o = cute.make_rmem_tensor(tmem_copy.coords.shape, BF16)
        pipelines.g.consumer_wait(g)
        for i in cutlass.range_constexpr(cute.size(r_decay)):
            r_decay[i] = s_g[tmem_copy.coords[i][0], g.index]
        pipelines.g.consumer_release(g)
        for i in cutlass.range_constexpr(cute.size(r_decay)):
            r_decay[i] = decay(r_decay[i])
        pipelines.o.consumer_wait(acc)
        blackwell.after_thread_sync()
        for half in cutlass.range_constexpr(2):
            tmem_copy.load(PLAN.accumulator("t_qs"), acc.index, half * CHUNK, r_qs)
            tmem_copy.load(PLAN.accumulator("t_pv"), acc.index, half * CHUNK, r_pv)
            cute.arch.fence_view_async_tmem_load()
            if cutlass.const_expr(half == 1):
                blackwell.before_thread_sync()
                pipelines.o.consumer_release(acc)
            r_o.store((scale * (r_decay.load() * r_qs.load() + r_pv.load())).to(BF16))
            tmem_copy.stmatrix(r_o, cute.local_tile(s_o, (CHUNK, CHUNK), (0, half)))

    @cute.jit
    def _store_rows(
        self,
        s_o: cute.Tensor,
        o: cute.Tensor,
        start: cutlass.Int32,
        length: cutlass.Int32,
        value_head: cutlass.Int32,
        thread: cutlass.Int32,
    ) -> None:
        """Store rows below `length`, 16 bytes per thread. The row after them belongs to the next sequence."""
        # In 64 bits: T Hv 128 may exceed 2^31.
        stride = self.value_heads * HEAD_DIM
        first = cutlass.Int64(start) * stride + value_head * HEAD_DIM
        g_o = cute.make_tensor((o.iterator + first).align(16), cute.make_layout(TOKENS, stride=(stride, 1)))
        across = HEAD_DIM // blackwell.VECTOR
        threads = cute.make_layout((PLAN.threads_of(Role.EPILOGUE) // across, across), stride=(across, 1))
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), BF16, num_bits_per_copy=blackwell.VECTOR * BF16.width
        )
        copy = cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, blackwell.VECTOR))).get_slice(
            thread
        )
        source, target = copy.partition_S(s_o), copy.partition_D(g_o)
        where = copy.partition_S(cute.make_identity_tensor(TOKENS))
        for step in cutlass.range_constexpr(cute.size(source, mode=[1])):
            if where[0, step, 0][0] < length:
                r_o = cute.make_rmem_tensor_like(source[None, step, 0])
                cute.autovec_copy(source[None, step, 0], r_o)
                cute.autovec_copy(r_o, target[None, step, 0])


def qk_mma() -> cute.TiledMma:
    return blackwell.make_tiled_mma(OperandMajorMode.K, CHUNK, CHUNK)


def qs_mma() -> cute.TiledMma:
    return blackwell.make_tiled_mma(OperandMajorMode.K, CHUNK, HEAD_DIM)


def pv_mma() -> cute.TiledMma:
    return blackwell.make_tiled_mma(OperandMajorMode.MN, CHUNK, HEAD_DIM)
