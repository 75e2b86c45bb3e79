"""Outputs of every chunk, from the state before it and the updates within it. CuTe DSL, sm_100a.

    Gamma[i,j] = exp(g_cu[i] - g_cu[j])                 i >= j only: the exponent is never positive
    P          = lower(Q K^T Gamma)                     diagonal kept, rounded to bf16
    o          = scale (exp(g_cu) Q S^T + P V_new)      S = state before the chunk, h its rounding

An item is a chunk of one value head, number chunk Hv + head; CTA b of `ctas` takes items b, b + ctas, ...
below total_chunks Hv, a number read on the device. With C = 64 tokens, K = V = 128, for each item:

    1. QK = Q K^T        M, N, K = C, C, K       one item ahead of the others
    2. QS = Q h^T        M, N, K = C, V, K
    3. PV = P V_new      M, N, K = C, V, C       V_new read MN-major

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
    MMA       9      all products; allocates TMEM
    GATE      10     g_cu of the chunk's tokens into s_g

    ring    stages  full: arrivals        empty: arrivals
    qk      3       1 LOAD + 32768 bytes  1 MMA
    hv      2       1 LOAD + 49152 bytes  1 MMA
    g       4       1 GATE                8 MASK, EPILOGUE
    scores  2       1 MMA                 4 MASK
    p       2       4 MASK                1 MMA
    o       2       1 MMA                 4 EPILOGUE

    sync                         who                  orders
    mbarrier_init, barrier TMEM  all                  mbarriers and tensor memory exist before their first use
    fence before, after          MMA, MASK, EPILOGUE  tcgen05 operations with the arrivals between them
    wait::ld                     MASK, EPILOGUE       a stage of tensor memory read before it is released
    fence.proxy.async, s_p       MASK                 P written before products read it
    bulk wait_group.read         EPILOGUE, 1 lane     the last TMA store has read s_o
    barrier EPILOGUE, first      EPILOGUE             s_o read by the last store before it is written
    fence.proxy.async, s_o       EPILOGUE             o in s_o before the TMA store reads it
    barrier EPILOGUE, second     EPILOGUE             all of s_o written before it is stored
    bulk wait_group              EPILOGUE, 1 lane     o stored before the CTA ends
    drain of a ring              its producer         no arrival after the CTA ends
    barrier of the CTA           all                  tensor memory read before it is freed

352 threads, 230644 bytes of SMEM, 512 columns of TMEM, 1 CTA an SM

A chunk of fewer than 64 tokens: rows of Q and K past its end belong to the next sequence and may be NaN.
Such a row of Q makes the same row of QK, QS, PV, and no other; such a row of K makes a column of QK that is
above the diagonal for every row below the chunk's end, where P is replaced by 0, not multiplied. Rows past
the end are not stored: TMA stores full chunks alone, vector stores the rows of shorter ones. V_new's rows
past the end must be finite, since P's zeros meet them: chunk_state writes zeros.

Limits: K = V = 128, bf16 but for g_cu in f32, which is finite or NaN and falls within a chunk; Hv a multiple
of H; T Hv, UB Hv < 2^31; tensors contiguous, aligned to 16 bytes. Rows of v_new and h past total_chunks are
not read. NaN in a token of a chunk may reach all of the sequence's outputs in that chunk, and no other
sequence. An item's bits depend on its own chunk and head alone; sums have one order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils.blackwell_helpers as sm100
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill.chunk_table import CHUNK, HEAD_DIM, chunk_at
from gdnbench_kernels.plan import WARP, Accumulator, Buffer, KernelPlan, Ring, Sync

BF16 = cutlass.BFloat16
LOG2_E = 1.4426950408889634


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
        "MMA": "all products; allocates TMEM",
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
    rings=(
        Ring("qk", 3, "LOAD", 1, "MMA", 1, 2 * CHUNK * HEAD_DIM * 2),
        Ring("hv", 2, "LOAD", 1, "MMA", 1, (HEAD_DIM + CHUNK) * HEAD_DIM * 2),
        Ring("g", 4, "GATE", 1, "MASK, EPILOGUE", 8),
        Ring("scores", 2, "MMA", 1, "MASK", 4),
        Ring("p", 2, "MASK", 4, "MMA", 1),
        Ring("o", 2, "MMA", 1, "EPILOGUE", 4),
    ),
    syncs=(
        Sync(
            "mbarrier_init, barrier TMEM", "all", "mbarriers and tensor memory exist before their first use"
        ),
        Sync(
            "fence before, after", "MMA, MASK, EPILOGUE", "tcgen05 operations with the arrivals between them"
        ),
        Sync("wait::ld", "MASK, EPILOGUE", "a stage of tensor memory read before it is released"),
        Sync("fence.proxy.async, s_p", "MASK", "P written before products read it"),
        Sync(
            "bulk wait_group.read",
            "EPILOGUE, 1 lane",
            "the last TMA store has read s_o",
        ),
        Sync(
            "barrier EPILOGUE, first",
            "EPILOGUE",
            "s_o read by the last store before it is written",
        ),
        Sync("fence.proxy.async, s_o", "EPILOGUE", "o in s_o before the TMA store reads it"),
        Sync("barrier EPILOGUE, second", "EPILOGUE", "all of s_o written before it is stored"),
        Sync("bulk wait_group", "EPILOGUE, 1 lane", "o stored before the CTA ends"),
        Sync("drain of a ring", "its producer", "no arrival after the CTA ends"),
        Sync("barrier of the CTA", "all", "tensor memory read before it is freed"),
    ),
)


@dataclass(frozen=True)
class Rings:
    """The plan's rings at work."""

    qk: blackwell.Ring
    hv: blackwell.Ring
    g: blackwell.Ring
    scores: blackwell.Ring
    p: blackwell.Ring
    o: blackwell.Ring

    @staticmethod
    def allocate(smem: Any) -> Rings:
        return Rings(*(blackwell.Ring.allocate(ring, smem) for ring in PLAN.rings))

    def init(self) -> None:
        for ring in (self.qk, self.hv, self.g, self.scores, self.p, self.o):
            ring.init()


class ChunkOutput:
    """The kernel for `heads` key heads and `value_heads` value heads, a multiple of them."""

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
        major, minor = OperandMajorMode.K, OperandMajorMode.MN
        qk = self._product(major, CHUNK)
        qs = self._product(major, HEAD_DIM)
        pv = self._product(minor, HEAD_DIM)
        tokens = blackwell.load_layout(BF16, *TOKENS, 1)
        state = blackwell.load_layout(BF16, *STATE, 1)
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        load_q, tma_q = self._tma(load, self._by_head(q), tokens, TOKENS)
        load_k, tma_k = self._tma(load, self._by_head(k), tokens, TOKENS)
        load_v, tma_v = self._tma(load, self._by_head(v_new), tokens, TOKENS)
        states = cute.make_tensor(h.iterator, cute.select(h.layout, mode=[2, 3, 1, 0]))
        load_h, tma_h = self._tma(load, states, state, STATE)
        store_o, tma_o = self._tma(store, self._by_head(o), tokens, TOKENS)
        self.kernel(
            (qk, qs, pv),
            (load_q, load_k, load_h, load_v, store_o),
            (tma_q, tma_k, tma_h, tma_v, tma_o),
            g_cu,
            cu_seqlens,
            chunk_indices,
            total_chunks,
            o,
            scale,
        ).launch(grid=(ctas, 1, 1), block=(PLAN.threads, 1, 1), stream=stream)

    def _product(self, b_major: Any, columns: int) -> Any:
        return sm100.make_trivial_tiled_mma(
            BF16, BF16, OperandMajorMode.K, b_major, cutlass.Float32, tcgen05.CtaGroup.ONE, (CHUNK, columns)
        )

    def _by_head(self, x: cute.Tensor) -> cute.Tensor:
        """(tokens, features, heads) of a tensor (tokens, heads, features)."""
        return cute.make_tensor(x.iterator, cute.select(x.layout, mode=[0, 2, 1]))

    def _tma(self, operation: Any, x: cute.Tensor, ring: cute.ComposedLayout, box: Any) -> Any:
        return cpasync.make_tiled_tma_atom(operation, x, cute.select(ring, mode=[0, 1]), box)

    @cute.kernel
    def kernel(
        self,
        products: tuple[Any, Any, Any],
        copies: tuple[Any, Any, Any, Any, Any],
        tma: tuple[Any, Any, Any, Any, Any],
        g_cu: cute.Tensor,
        cu_seqlens: cute.Tensor,
        chunk_indices: cute.Tensor,
        total_chunks: cute.Tensor,
        o: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        s_q, s_k, s_h, s_v, s_p, s_o = (self._ring_buffer(smem, buffer) for buffer in PLAN.smem[:6])
        g_buffer = PLAN.buffer("s_g")
        s_g = smem.allocate_tensor(
            cutlass.Float32, cute.make_layout((*g_buffer.shape, g_buffer.stages)), g_buffer.align
        )
        rings = Rings.allocate(smem)
        tmem = cutlass.memory.TmemAllocator(
            smem.allocate(cutlass.Int32),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=Barrier.TMEM, num_threads=PLAN.threads),
            allocator_warp_id=Role.MMA,
        )
        if warp == Role.LOAD:
            with cute.arch.elect_one():
                rings.init()
        cute.arch.mbarrier_init_fence()
        tmem.allocate(PLAN.tmem_columns)
        tmem.wait_for_alloc()
        base = tmem.retrieve_ptr(cutlass.Float32)
        table = (cu_seqlens, chunk_indices, total_chunks)
        if warp < Role.EPILOGUE:
            self.mask(rings, table, products[0], base, s_g, s_p)
        if warp >= Role.EPILOGUE and warp < Role.LOAD:
            self.epilogue(rings, table, products[0], base, s_g, s_o, copies[4], tma[4], o, scale)
        if warp == Role.LOAD:
            self.load(rings, table, copies[:4], tma[:4], (s_q, s_k, s_h, s_v))
        if warp == Role.MMA:
            self.multiply(rings, table, products, base, (s_q, s_k, s_h, s_v, s_p))
            tmem.relinquish_alloc_permit()
        if warp == Role.GATE:
            self.gate(rings, table, g_cu, s_g)
        cute.arch.sync_threads()
        tmem.free(base)

    def _ring_buffer(self, smem: Any, buffer: Buffer) -> cute.Tensor:
        rows, columns = buffer.shape
        layout = blackwell.load_layout(BF16, rows, columns, buffer.stages)
        return smem.allocate_tensor(BF16, layout.outer, buffer.align, layout.inner)

    @cute.jit
    def load(
        self,
        rings: Rings,
        table: tuple[cute.Tensor, cute.Tensor, cute.Tensor],
        copies: tuple[Any, Any, Any, Any],
        tma: tuple[Any, Any, Any, Any],
        buffers: tuple[cute.Tensor, cute.Tensor, cute.Tensor, cute.Tensor],
    ) -> None:
        """Q and K first: their product and its mask can be under way before the state has come."""
        cu_seqlens, chunk_indices, total_chunks = table
        load_q, load_k, load_h, load_v = copies
        tma_q, tma_k, tma_h, tma_v = tma
        s_q, s_k, s_h, s_v = buffers
        qk, hv = rings.qk.producing(), rings.hv.producing()
        items = total_chunks[0] * self.value_heads
        for item in cutlass.range(cute.arch.block_idx()[0], items, cute.arch.grid_dim()[0], unroll=1):
            chunk, value_head = item // self.value_heads, item % self.value_heads
            head = value_head // (self.value_heads // self.heads)
            start, _ = chunk_at(chunk, chunk_indices, cu_seqlens)
            rings.qk.acquire(qk)
            rings.qk.expect(qk)
            self._load_tile(load_q, tma_q, s_q, start, head, qk.index, rings.qk.full(qk))
            self._load_tile(load_k, tma_k, s_k, start, head, qk.index, rings.qk.full(qk))
            qk.advance()
            rings.hv.acquire(hv)
            rings.hv.expect(hv)
            g_h = cute.local_tile(tma_h, STATE, (0, 0, value_head, chunk))
            t_s, t_g = blackwell.tma_slices(load_h, s_h, g_h)
            cute.copy(load_h, t_g, t_s[None, hv.index], tma_bar_ptr=rings.hv.full(hv))
            self._load_tile(load_v, tma_v, s_v, CHUNK * chunk, value_head, hv.index, rings.hv.full(hv))
            hv.advance()
        rings.qk.drain(qk)
        rings.hv.drain(hv)

    @cute.jit
    def _load_tile(
        self,
        copy: cute.CopyAtom,
        tma: cute.Tensor,
        s_ring: cute.Tensor,
        start: cutlass.Int32,
        head: cutlass.Int32,
        stage: cutlass.Int32,
        full: cute.Pointer,
    ) -> None:
        """64 rows from `start` of one head; rows past the chunk's end are those of whoever comes next."""
        g_tile = cute.local_tile(cute.domain_offset((start, 0, 0), tma), TOKENS, (0, 0, head))
        t_s, t_g = blackwell.tma_slices(copy, s_ring, g_tile)
        cute.copy(copy, t_g, t_s[None, stage], tma_bar_ptr=full)

    @cute.jit
    def multiply(
        self,
        rings: Rings,
        table: tuple[cute.Tensor, cute.Tensor, cute.Tensor],
        products: tuple[Any, Any, Any],
        base: cute.Pointer,
        buffers: tuple[cute.Tensor, cute.Tensor, cute.Tensor, cute.Tensor, cute.Tensor],
    ) -> None:
        """QK runs an item ahead of QS and PV, so that P is masked while the products before it run."""
        qk, qs, pv = products
        s_q, s_k, s_h, s_v, s_p = buffers
        a_qk, b_qk = self._operands(qk, s_q, s_k, CHUNK, HEAD_DIM)
        a_qs, b_qs = self._operands(qs, s_q, s_h, HEAD_DIM, HEAD_DIM)
        a_pv, b_pv = self._operands(pv, s_p, s_v, HEAD_DIM, CHUNK)
        ahead, behind = rings.qk.consuming(), rings.qk.consuming()
        hv, p = rings.hv.consuming(), rings.p.consuming()
        scores, o = rings.scores.producing(), rings.o.producing()
        first, step = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        items = (table[2][0] * self.value_heads - first + step - 1) // step
        for turn in cutlass.range(items + 1, unroll=1):
            if turn < items:
                rings.qk.wait(ahead)
                rings.scores.acquire(scores)
                blackwell.after_thread_sync()
                t_qk = blackwell.accumulator(qk, base, PLAN.accumulator("t_qk"), scores.index)
                blackwell.multiply(
                    qk, t_qk, a_qk[None, None, None, ahead.index], b_qk[None, None, None, ahead.index]
                )
                rings.scores.fill_after_mma(scores)
                ahead.advance()
                scores.advance()
            if turn > 0:
                rings.hv.wait(hv)
                rings.o.acquire(o)
                blackwell.after_thread_sync()
                t_qs = blackwell.accumulator(qs, base, PLAN.accumulator("t_qs"), o.index)
                blackwell.multiply(
                    qs, t_qs, a_qs[None, None, None, behind.index], b_qs[None, None, None, hv.index]
                )
                rings.qk.release_after_mma(behind)
                rings.p.wait(p)
                t_pv = blackwell.accumulator(pv, base, PLAN.accumulator("t_pv"), o.index)
                blackwell.multiply(
                    pv, t_pv, a_pv[None, None, None, p.index], b_pv[None, None, None, hv.index]
                )
                rings.hv.release_after_mma(hv)
                rings.p.release_after_mma(p)
                rings.o.fill_after_mma(o)
                behind.advance()
                hv.advance()
                p.advance()
                o.advance()
        rings.scores.drain(scores)
        rings.o.drain(o)

    def _operands(
        self, mma: cute.TiledMma, s_a: cute.Tensor, s_b: cute.Tensor, columns: int, depth: int
    ) -> tuple[cute.Tensor, cute.Tensor]:
        """Fragments (MMA, M or N, K, stages) of A [64, depth] and B [columns, depth]."""
        shape = (CHUNK, columns, depth)
        a = sm100.make_smem_layout_a(mma, shape, BF16, cute.size(s_a, mode=[2]))
        b = sm100.make_smem_layout_b(mma, shape, BF16, cute.size(s_b, mode=[2]))
        return mma.make_fragment_A(blackwell.view(s_a, a)), mma.make_fragment_B(blackwell.view(s_b, b))

    @cute.jit
    def gate(
        self,
        rings: Rings,
        table: tuple[cute.Tensor, cute.Tensor, cute.Tensor],
        g_cu: cute.Tensor,
        s_g: cute.Tensor,
    ) -> None:
        """Rows past the chunk's end get the last token's: finite, and no exponent is positive there."""
        cu_seqlens, chunk_indices, total_chunks = table
        lane = cute.arch.lane_idx()
        g = rings.g.producing()
        items = total_chunks[0] * self.value_heads
        for item in cutlass.range(cute.arch.block_idx()[0], items, cute.arch.grid_dim()[0], unroll=1):
            value_head = item % self.value_heads
            start, length = chunk_at(item // self.value_heads, chunk_indices, cu_seqlens)
            low = g_cu[start + cutlass.min(lane, length - 1), value_head]
            high = g_cu[start + cutlass.min(lane + WARP, length - 1), value_head]
            rings.g.acquire(g)
            s_g[lane, g.index] = low
            s_g[lane + WARP, g.index] = high
            rings.g.fill_by_warp(g)
            g.advance()
        rings.g.drain(g)

    @cute.jit
    def mask(
        self,
        rings: Rings,
        table: tuple[cute.Tensor, cute.Tensor, cute.Tensor],
        qk: cute.TiledMma,
        base: cute.Pointer,
        s_g: cute.Tensor,
        s_p: cute.Tensor,
    ) -> None:
        """P = lower(QK Gamma). What lies above the diagonal, as all that row i < length could take from rows
        past the end does, is replaced, not multiplied: it may be NaN."""
        thread = cute.arch.thread_idx()[0]
        part = PLAN.accumulator("t_qk")
        reader = blackwell.Reader.of(qk, part.shape, base, thread)
        g, scores, p = rings.g.consuming(), rings.scores.consuming(), rings.p.producing()
        values = cute.make_rmem_tensor(reader.where.shape, cutlass.Float32)
        rounded = cute.make_rmem_tensor(reader.where.shape, BF16)
        first, step = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        for _ in cutlass.range(first, table[2][0] * self.value_heads, step, unroll=1):
            rings.g.wait(g)
            decay = cute.make_rmem_tensor(reader.where.shape, cutlass.Float32)
            for i in cutlass.range_constexpr(cute.size(values)):
                row, column = reader.where[i]
                decay[i] = s_g[row, g.index] - s_g[column, g.index]
            rings.g.release_by_warp(g)
            for i in cutlass.range_constexpr(cute.size(values)):
                row, column = reader.where[i]
                decay[i] = cute.math.exp2(
                    LOG2_E * (decay[i] if column <= row else cutlass.Float32(0.0)), fastmath=True
                )
            rings.scores.wait(scores)
            blackwell.after_thread_sync()
            reader.read(part, scores.index, 0, values)
            cute.arch.fence_view_async_tmem_load()
            blackwell.before_thread_sync()
            rings.scores.release_by_warp(scores)
            for i in cutlass.range_constexpr(cute.size(values)):
                row, column = reader.where[i]
                rounded[i] = ((values[i] * decay[i]) if column <= row else cutlass.Float32(0.0)).to(BF16)
            rings.p.acquire(p)
            reader.write(rounded, s_p[None, None, p.index])
            cute.arch.fence_proxy("async.shared", space="cta")
            rings.p.fill_by_warp(p)
            g.advance()
            scores.advance()
            p.advance()
        rings.p.drain(p)

    @cute.jit
    def epilogue(
        self,
        rings: Rings,
        table: tuple[cute.Tensor, cute.Tensor, cute.Tensor],
        mma: cute.TiledMma,
        base: cute.Pointer,
        s_g: cute.Tensor,
        s_o: cute.Tensor,
        store: cute.CopyAtom,
        tma_o: cute.Tensor,
        o: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        cu_seqlens, chunk_indices, total_chunks = table
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread = cute.arch.thread_idx()[0] - WARP * Role.EPILOGUE
        together = pipeline.NamedBarrier(
            barrier_id=Barrier.EPILOGUE, num_threads=PLAN.threads_of(Role.EPILOGUE)
        )
        reader = blackwell.Reader.of(mma, PLAN.accumulator("t_qk").shape, base, thread)
        g, acc = rings.g.consuming(), rings.o.consuming()
        items = total_chunks[0] * self.value_heads
        for item in cutlass.range(cute.arch.block_idx()[0], items, cute.arch.grid_dim()[0], unroll=1):
            value_head = item % self.value_heads
            start, length = chunk_at(item // self.value_heads, chunk_indices, cu_seqlens)
            # s_o is free once the last store has read it, which only the warp that issued it knows.
            if warp == Role.EPILOGUE:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            together.arrive_and_wait()
            self._form_o(rings, g, acc, reader, base, s_g, s_o[None, None, 0], scale)
            g.advance()
            acc.advance()
            cute.arch.fence_proxy("async.shared", space="cta")
            together.arrive_and_wait()
            if length == CHUNK:
                if warp == Role.EPILOGUE:
                    g_o = cute.local_tile(
                        cute.domain_offset((start, 0, 0), tma_o), TOKENS, (0, 0, value_head)
                    )
                    t_s, t_g = blackwell.tma_slices(store, s_o, g_o)
                    with cute.arch.elect_one():
                        cute.copy(store, t_s[None, 0], t_g)
                        cute.arch.cp_async_bulk_commit_group()
            else:
                self._store_tail(s_o[None, None, 0], o, start, length, value_head, thread)
        if warp == Role.EPILOGUE:
            cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def _form_o(
        self,
        rings: Rings,
        g: Any,
        acc: Any,
        reader: Any,
        base: cute.Pointer,
        s_g: cute.Tensor,
        s_o: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        """o into s_o, half of the columns at a time; no thread reads s_g or tensor memory afterwards."""
        t_qs, t_pv = PLAN.accumulator("t_qs"), PLAN.accumulator("t_pv")
        decay = cute.make_rmem_tensor(reader.where.shape, cutlass.Float32)
        from_state = cute.make_rmem_tensor(reader.where.shape, cutlass.Float32)
        from_chunk = cute.make_rmem_tensor(reader.where.shape, cutlass.Float32)
        rounded = cute.make_rmem_tensor(reader.where.shape, BF16)
        rings.g.wait(g)
        for i in cutlass.range_constexpr(cute.size(decay)):
            decay[i] = s_g[reader.where[i][0], g.index]
        rings.g.release_by_warp(g)
        for i in cutlass.range_constexpr(cute.size(decay)):
            decay[i] = cute.math.exp2(LOG2_E * decay[i], fastmath=True)
        rings.o.wait(acc)
        blackwell.after_thread_sync()
        for half in cutlass.range_constexpr(2):
            reader.read(t_qs, acc.index, half * CHUNK, from_state)
            reader.read(t_pv, acc.index, half * CHUNK, from_chunk)
            cute.arch.fence_view_async_tmem_load()
            if cutlass.const_expr(half == 1):
                blackwell.before_thread_sync()
                rings.o.release_by_warp(acc)
            for i in cutlass.range_constexpr(cute.size(decay)):
                rounded[i] = (scale * (decay[i] * from_state[i] + from_chunk[i])).to(BF16)
            reader.write(rounded, cute.local_tile(s_o, (CHUNK, CHUNK), (0, half)))

    @cute.jit
    def _store_tail(
        self,
        s_o: cute.Tensor,
        o: cute.Tensor,
        start: cutlass.Int32,
        length: cutlass.Int32,
        value_head: cutlass.Int32,
        thread: cutlass.Int32,
    ) -> None:
        """16 bytes a thread and step, rows below `length` alone: those after belong to the next sequence."""
        # The offset in 64 bits: T Hv 128 may pass 2^31.
        stride = self.value_heads * HEAD_DIM
        first = cutlass.Int64(start) * stride + value_head * HEAD_DIM
        g_o = cute.make_tensor((o.iterator + first).align(16), cute.make_layout(TOKENS, stride=(stride, 1)))
        vector = 8
        threads = PLAN.threads_of(Role.EPILOGUE)
        layout = cute.make_layout(
            (threads * vector // HEAD_DIM, HEAD_DIM // vector), stride=(HEAD_DIM // vector, 1)
        )
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), BF16, num_bits_per_copy=128)
        copy = cute.make_tiled_copy_tv(atom, layout, cute.make_layout((1, vector))).get_slice(thread)
        source, target = copy.partition_S(s_o), copy.partition_D(g_o)
        where = copy.partition_S(cute.make_identity_tensor(TOKENS))
        for step in cutlass.range_constexpr(cute.size(source, mode=[1])):
            if where[0, step, 0][0] < length:
                part = cute.make_rmem_tensor_like(source[None, step, 0])
                cute.autovec_copy(source[None, step, 0], part)
                cute.autovec_copy(part, target[None, step, 0])
