"""U and W of every chunk: FLA's `chunk_scaled_dot_kkt`, `solve_tril` and `wy_fast`. CuTe DSL, sm_100a.

The state recurrence reads keys, values and gates only through U and W. For a chunk of C = 64 tokens and value
head hv, with key head hv // (Hv / H) and K = V = 128:

    g_cu = cumsum(g)                                          summed in fp64, rounded once to f32
    A    = strict_lower(beta_i (K K^T)[i,j] exp(g_cu[i] - g_cu[j]))
    Ai   = (I + A)^-1                                         inverse.py
    U    = (Ai beta_j) V
    W    = (Ai beta_j exp(g_cu[j])) K

    product  M   N    K    A operand         B operand         accumulator
    1. KKT   64  64   128  s_k, K-major      s_k, K-major      t_kkt
    2. U     64  128  64   s_aib, K-major    s_v, MN-major     t_u
    3. W     64  128  64   s_aibg, K-major   s_k, MN-major     t_w

A work tile (item) is a (chunk, value head), number chunk x Hv + hv of total_chunks x Hv; CTA b processes b,
b + ctas, ... KKT of an item is issued before U and W of the previous item, so it is ready when that item's
inverse is done. Rows of K and V past the end of a sequence belong to the next sequence. LOAD overwrites them
with zeros before an MMA reads them, and g and beta are 0 there, so rows of U and W past the end are 0.

    tensor         shape            dtype     rows
    k              T, H, K          bfloat16  value head hv reads head hv // (Hv // H)
    v              T, Hv, V         bfloat16
    g, beta        T, Hv            float32
    cu_seqlens     N + 1            int32     sequence n is tokens cu_seqlens[n] ..
    chunk_indices  UB, 2            int32     (sequence, chunk within it); UB >= total_chunks
    total_chunks   1                int32     read on the device
    g_cu           T, Hv            float32   written; token
    u, w           UB C, Hv, V | K  bfloat16  written; chunk c in rows 64 c ..
    a, ai          UB, Hv, C, C     float32   as `tap` says: none, written or read; chunk

    SMEM        shape               dtype     layout
    s_k         64 x 128, 3 stages  bfloat16  two tiles of 64 columns, SW128
    s_v         64 x 128, 3 stages  bfloat16  two tiles of 64 columns, SW128
    s_aib       64 x 64, 2 stages   bfloat16  K-major, SW128: Ai beta_j
    s_aibg      64 x 64, 2 stages   bfloat16  K-major, SW128: Ai beta_j exp(g_cu[j])
    s_u         4 x 16 x 128        bfloat16  of each warp two tiles of 64 columns, SW128
    s_w         4 x 16 x 128        bfloat16  of each warp two tiles of 64 columns, SW128
    s_gate      3 x 64, 3 stages    float32   rows g_cu, beta, exp(g_cu)
    s_blocks    64 x 64             float16   rows contiguous, 128 B swizzle
    s_diagonal  4 x 16 x 20         float32   columns contiguous, padded

    TMEM   shape               columns   lanes  layout
    t_kkt  64 x 64, 2 stages   0..127    low    M = 64
    t_u    64 x 128, 2 stages  128..383  low    M = 64
    t_w    64 x 128, 2 stages  128..383  high   M = 64

    role      warps  does
    INVERT    0..3   KKT from TMEM, A, Ai in registers, the operands of U and W into SMEM
    EPILOGUE  4..7   U and W: TMEM to bf16 to SMEM, a TMA store of its own 16 rows by each warp
    LOAD      8      TMA of K and V; zeros past the end of a sequence
    MMA       9      allocates TMEM; KKT one item ahead of U and W
    GATE      10     scans g; g_cu to global memory, g_cu, beta and exp(g_cu) to SMEM

    pipeline  stages  full: arrivals        empty: arrivals
    tiles     3       1 LOAD + 32768 bytes  1 MMA commit
    tail      1       1 LOAD + 32768 bytes  1 LOAD
    gate      3       1 GATE                4 INVERT warp
    kkt       2       1 MMA commit          4 INVERT warp
    operands  2       4 INVERT warp         1 MMA commit
    uw        2       1 MMA commit          4 EPILOGUE warp

    sync                    who                    orders
    mbarrier init fence     LOAD                   barriers initialised before TMA or commits arrive
    TMEM barrier            all                    barriers initialised, TMEM allocated before a role starts
    relinquish              MMA                    TMEM allocated before another CTA of the SM may ask for it
    tail pipeline           LOAD                   TMA has landed before zeros are stored over its rows
    async fence             LOAD                   zeros of a tail stored before MMA reads them
    barrier                 INVERT                 exchanges within the inverse: inverse.py
    async fence             INVERT                 s_aib, s_aibg stored before MMA reads them
    wait::ld                INVERT, EPILOGUE       TMEM read before its stage is released
    thread fences           INVERT, EPILOGUE, MMA  TMEM accesses on their side of kkt's and uw's arrivals
    bulk wait, warp sync    EPILOGUE               s_u, s_w read by the last store before they are rewritten
    async fence, warp sync  EPILOGUE               s_u, s_w stored by all lanes before a TMA store reads
    last bulk wait          EPILOGUE               stores done before the CTA's memory goes
    producer_tail           each producer          all arrivals there before the CTA's barriers go
    barrier of the CTA      all                    TMEM read for the last time before it is freed

352 threads, 179668 bytes of SMEM, 512 columns of TMEM, 1 CTA an SM

The build for beta above 1, `split`, represents operands of the inverse by two fp16 numbers: s_blocks has 2
stages there, 187860 bytes of SMEM in all.

Limits: beta up to 1, with `split` up to 2. K = V = 128, C = 64, Hv a multiple of H, bf16 tensors, f32 gates;
at most 2^31 - 1 items and 2^31 - 1 elements of g. Keys have norms of about 1, since operands of the inverse
are fp16 (inverse.py). g is at most 0. The sums never increase, even where fp64 rounded, so no exponent is
positive. g = -inf is replaced by -128, a finite g below -2^14 by -2^14, +inf by NaN. A NaN reaches only its
own chunk. A and Ai are f32 in registers and reach memory only in the builds that `Tap` names. An item's bits
depend only on its own inputs, not on ctas or on other items of the batch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill import inverse, triangle
from gdnbench_kernels.gdn_prefill.chunk_table import chunk_at
from gdnbench_kernels.gdn_prefill.gate_scan import Gate, decay, scan
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.triangle import ROWS_OF_WARP, Tap
from gdnbench_kernels.plan import WARP, Accumulator, Buffer, KernelPlan, Pipeline, Sync

__all__ = ["PLAN", "SPLIT_PLAN", "ChunkUW", "Tap"]

OPERAND = cutlass.BFloat16
TILE_STAGES = 3
GROUP_WARPS = CHUNK // ROWS_OF_WARP
TILE = (CHUNK, HEAD_DIM)
ROWS = (ROWS_OF_WARP, HEAD_DIM)
HALVES = "two tiles of 64 columns, SW128"


class Role(IntEnum):
    """First warp of each role."""

    INVERT = 0
    EPILOGUE = 4
    LOAD = 8
    MMA = 9
    GATE = 10


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own."""

    TMEM = 1
    INVERT = 2


BUFFERS = (
    Buffer("s_k", TILE, "bfloat16", HALVES, TILE_STAGES),
    Buffer("s_v", TILE, "bfloat16", HALVES, TILE_STAGES),
    Buffer("s_aib", (CHUNK, CHUNK), "bfloat16", "K-major, SW128: Ai beta_j", 2),
    Buffer("s_aibg", (CHUNK, CHUNK), "bfloat16", "K-major, SW128: Ai beta_j exp(g_cu[j])", 2),
    Buffer("s_u", (GROUP_WARPS, *ROWS), "bfloat16", f"of each warp {HALVES}"),
    Buffer("s_w", (GROUP_WARPS, *ROWS), "bfloat16", f"of each warp {HALVES}"),
    Buffer("s_gate", (len(Gate), CHUNK), "float32", "rows g_cu, beta, exp(g_cu)", TILE_STAGES, align=128),
)

PLAN = KernelPlan(
    name="chunk_uw",
    roles=Role,
    warps={"INVERT": GROUP_WARPS, "EPILOGUE": GROUP_WARPS, "LOAD": 1, "MMA": 1, "GATE": 1},
    does={
        "INVERT": "KKT from TMEM, A, Ai in registers, the operands of U and W into SMEM",
        "EPILOGUE": "U and W: TMEM to bf16 to SMEM, a TMA store of its own 16 rows by each warp",
        "LOAD": "TMA of K and V; zeros past the end of a sequence",
        "MMA": "allocates TMEM; KKT one item ahead of U and W",
        "GATE": "scans g; g_cu to global memory, g_cu, beta and exp(g_cu) to SMEM",
    },
    smem=(*BUFFERS, *inverse.buffers()),
    tmem=(
        Accumulator("t_kkt", (CHUNK, CHUNK), 0, CHUNK, "M = 64", lanes="low", stages=2),
        Accumulator("t_u", TILE, 2 * CHUNK, HEAD_DIM, "M = 64", lanes="low", stages=2),
        Accumulator("t_w", TILE, 2 * CHUNK, HEAD_DIM, "M = 64", lanes="high", stages=2),
    ),
    pipelines=(
        Pipeline("tiles", TILE_STAGES, "LOAD", 1, "MMA commit", 1, 4 * CHUNK * HEAD_DIM),
        Pipeline("tail", 1, "LOAD", 1, "LOAD", 1, 4 * CHUNK * HEAD_DIM),
        Pipeline("gate", TILE_STAGES, "GATE", 1, "INVERT warp", GROUP_WARPS),
        Pipeline("kkt", 2, "MMA commit", 1, "INVERT warp", GROUP_WARPS),
        Pipeline("operands", 2, "INVERT warp", GROUP_WARPS, "MMA commit", 1),
        Pipeline("uw", 2, "MMA commit", 1, "EPILOGUE warp", GROUP_WARPS),
    ),
    syncs=(
        Sync("mbarrier init fence", "LOAD", "barriers initialised before TMA or commits arrive"),
        Sync("TMEM barrier", "all", "barriers initialised, TMEM allocated before a role starts"),
        Sync("relinquish", "MMA", "TMEM allocated before another CTA of the SM may ask for it"),
        Sync("tail pipeline", "LOAD", "TMA has landed before zeros are stored over its rows"),
        Sync("async fence", "LOAD", "zeros of a tail stored before MMA reads them"),
        Sync("barrier", "INVERT", "exchanges within the inverse: inverse.py"),
        Sync("async fence", "INVERT", "s_aib, s_aibg stored before MMA reads them"),
        Sync("wait::ld", "INVERT, EPILOGUE", "TMEM read before its stage is released"),
        Sync(
            "thread fences", "INVERT, EPILOGUE, MMA", "TMEM accesses on their side of kkt's and uw's arrivals"
        ),
        Sync("bulk wait, warp sync", "EPILOGUE", "s_u, s_w read by the last store before they are rewritten"),
        Sync("async fence, warp sync", "EPILOGUE", "s_u, s_w stored by all lanes before a TMA store reads"),
        Sync("last bulk wait", "EPILOGUE", "stores done before the CTA's memory goes"),
        Sync("producer_tail", "each producer", "all arrivals there before the CTA's barriers go"),
        Sync("barrier of the CTA", "all", "TMEM read for the last time before it is freed"),
    ),
)


SPLIT_PLAN = replace(PLAN, smem=(*BUFFERS, *inverse.buffers(split=True)))


@dataclass(frozen=True)
class Pipelines(blackwell.Pipelines):
    tiles: blackwell.Pipeline
    tail: blackwell.Pipeline
    gate: blackwell.Pipeline
    kkt: blackwell.Pipeline
    operands: blackwell.Pipeline
    uw: blackwell.Pipeline


@dataclass(frozen=True)
class Shared:
    """The plan's buffers: tiles (rows, columns, how many), then (rows, tokens, stages)."""

    k: cute.Tensor
    v: cute.Tensor
    aib: cute.Tensor
    aibg: cute.Tensor
    u: cute.Tensor
    w: cute.Tensor
    gate: cute.Tensor

    @staticmethod
    def allocate(smem: Any) -> Shared:
        *tiles, gate = BUFFERS
        buffers = [blackwell.tiles(smem, buffer) for buffer in tiles]
        buffers.append(blackwell.vectors(smem, gate))
        return Shared(*buffers)


@dataclass(frozen=True)
class Tma:
    """The tensors in global memory from and to which TMA copies those tiles."""

    k: blackwell.Tma
    v: blackwell.Tma
    u: blackwell.Tma
    w: blackwell.Tma


def kkt_mma() -> cute.TiledMma:
    """A and B are the K tile, features contiguous."""
    return blackwell.make_tiled_mma(OperandMajorMode.K, CHUNK, CHUNK)


def uw_mma() -> cute.TiledMma:
    """A is Ai's operand, B the K or V tile; the MMA sums over tokens."""
    return blackwell.make_tiled_mma(OperandMajorMode.MN, CHUNK, HEAD_DIM)


@dataclass(frozen=True)
class ChunkUW:
    """The kernel for `heads` key heads and `value_heads` value heads; beta is at most 1, with `split` at most
    2."""

    heads: int
    value_heads: int
    tap: Tap = Tap.NONE
    split: bool = False

    def __post_init__(self) -> None:
        if self.value_heads % self.heads:
            raise ValueError(f"{self.value_heads} value heads are no multiple of {self.heads} key heads")

    @cute.jit
    def __call__(
        self,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        chunk_indices: cute.Tensor,
        total_chunks: cute.Tensor,
        g_cu: cute.Tensor,
        u: cute.Tensor,
        w: cute.Tensor,
        a: cute.Tensor | None,
        ai: cute.Tensor | None,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Inputs: k [T, H, 128] and v [T, Hv, 128] bf16, g and beta [T, Hv] f32, the tables of
        chunk_metadata. Outputs: g_cu [T, Hv] f32, u and w [UB * 64, Hv, 128] bf16. `tap` decides the use of a
        and ai [UB, Hv, 64, 64] f32."""
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma = Tma(
            *(blackwell.Tma.create(load, blackwell.by_head(x), TILE) for x in (k, v)),
            *(blackwell.Tma.create(store, blackwell.by_head(x), ROWS) for x in (u, w)),
        )
        self.kernel(tma, (g, beta, g_cu), (cu_seqlens, chunk_indices), total_chunks, (a, ai)).launch(
            grid=(ctas, 1, 1), block=(PLAN.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        tma: Tma,
        gates: tuple[cute.Tensor, cute.Tensor, cute.Tensor],
        chunks: tuple[cute.Tensor, cute.Tensor],
        total_chunks: cute.Tensor,
        squares: tuple[cute.Tensor | None, cute.Tensor | None],
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(smem)
        scratch = inverse.Scratch.allocate(smem, self.split)
        pipelines = Pipelines.allocate(PLAN, smem)
        blackwell.prefetch((tma.k, tma.v, tma.u, tma.w), warp == Role.LOAD)
        blackwell.init_barriers(pipelines, warp == Role.LOAD)
        tmem, base = blackwell.allocate_tmem(PLAN, smem, Role.MMA, Barrier.TMEM)

        items = total_chunks[0] * self.value_heads
        if warp < Role.EPILOGUE:
            self.invert(pipelines, items, base, shared, scratch, squares)
        if warp >= Role.EPILOGUE and warp < Role.LOAD:
            self.store_uw(pipelines, items, base, shared, tma)
        if warp == Role.LOAD:
            self.load(pipelines, items, chunks, shared, tma)
        if warp == Role.MMA:
            self.mma(pipelines, items, base, shared)
        if warp == Role.GATE:
            self.scan_gates(pipelines, items, chunks, *gates, shared.gate)

        cute.arch.sync_threads()
        tmem.free(base)

    @cute.jit
    def load(
        self,
        pipelines: Pipelines,
        items: cutlass.Int32,
        chunks: tuple[cute.Tensor, cute.Tensor],
        shared: Shared,
        tma: Tma,
    ) -> None:
        """Load K and V of each item, with zeros past the end of the sequence."""
        cu_seqlens, chunk_indices = chunks
        state, tail = pipelines.tiles.producer_state(), pipelines.tail.producer_state()
        landed = pipelines.tail.consumer_state()
        for item in cutlass.range(cute.arch.block_idx()[0], items, cute.arch.grid_dim()[0], unroll=1):
            start, length = chunk_at(item // self.value_heads, chunk_indices, cu_seqlens)
            value_head = item % self.value_heads
            head = value_head // (self.value_heads // self.heads)
            pipelines.tiles.producer_acquire(state)
            if length < CHUNK:
                pipelines.tail.producer_acquire(tail)
                pipelines.tail.arrive_and_expect_tx(tail)
                tma.k.load(pipelines.tail, tail, shared.k, start, head, stage=state.index)
                tma.v.load(pipelines.tail, tail, shared.v, start, value_head, stage=state.index)
                pipelines.tail.consumer_wait(landed)
                for s_tile in (shared.k, shared.v):
                    blackwell.zero_rows(s_tile[None, None, state.index], length)
                pipelines.tail.consumer_release(landed)
                pipelines.tiles.producer_commit(state)
                tail.advance()
                landed.advance()
            else:
                pipelines.tiles.arrive_and_expect_tx(state)
                tma.k.load(pipelines.tiles, state, shared.k, start, head)
                tma.v.load(pipelines.tiles, state, shared.v, start, value_head)
            state.advance()
        pipelines.tiles.producer_tail(state)

    @cute.jit
    def scan_gates(
        self,
        pipelines: Pipelines,
        items: cutlass.Int32,
        chunks: tuple[cute.Tensor, cute.Tensor],
        g: cute.Tensor,
        beta: cute.Tensor,
        g_cu: cute.Tensor,
        s_gate: cute.Tensor,
    ) -> None:
        """Lane l has tokens 2l and 2l + 1. Past the chunk's end g and beta are 0."""
        cu_seqlens, chunk_indices = chunks
        lane = cute.arch.lane_idx()
        state = pipelines.gate.producer_state()
        r_g, r_beta, r_sum = (cute.make_rmem_tensor((2,), cutlass.Float32) for _ in range(3))
        for item in cutlass.range(cute.arch.block_idx()[0], items, cute.arch.grid_dim()[0], unroll=1):
            start, length = chunk_at(item // self.value_heads, chunk_indices, cu_seqlens)
            head = item % self.value_heads
            r_g.fill(0.0)
            r_beta.fill(0.0)
            for j in cutlass.range_constexpr(2):
                if 2 * lane + j < length:
                    r_g[j] = g[start + 2 * lane + j, head]
                    r_beta[j] = beta[start + 2 * lane + j, head]
            scan(r_g, r_sum, lane)
            pipelines.gate.producer_acquire(state)
            for j in cutlass.range_constexpr(2):
                if 2 * lane + j < length:
                    g_cu[start + 2 * lane + j, head] = r_sum[j]
                s_gate[Gate.G_CU, 2 * lane + j, state.index] = r_sum[j]
                s_gate[Gate.BETA, 2 * lane + j, state.index] = r_beta[j]
                s_gate[Gate.DECAY, 2 * lane + j, state.index] = decay(r_sum[j])
            pipelines.gate.producer_commit(state)
            state.advance()
        pipelines.gate.producer_tail(state)

    @cute.jit
    def mma(
        self,
        pipelines: Pipelines,
        items: cutlass.Int32,
        base: cute.Pointer,
        shared: Shared,
    ) -> None:
        """Issue KKT of the next item before U and W, which wait for this item's inverse."""
        kkt, uw = kkt_mma(), uw_mma()
        r_rows, r_columns = blackwell.operands(kkt, shared.k, shared.k, (CHUNK, CHUNK, HEAD_DIM))
        r_aib, r_v = blackwell.operands(uw, shared.aib, shared.v, (CHUNK, HEAD_DIM, CHUNK))
        r_aibg, r_k = blackwell.operands(uw, shared.aibg, shared.k, (CHUNK, HEAD_DIM, CHUNK))
        ahead, used = pipelines.tiles.consumer_state(), pipelines.tiles.consumer_state()
        squares, ready, results = (
            pipelines.kkt.producer_state(),
            pipelines.operands.consumer_state(),
            pipelines.uw.producer_state(),
        )
        first, step = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        # One turn more than items: each turn issues KKT of its item and U, W of the previous one.
        for item in cutlass.range(first, items + step, step, unroll=1):
            if item < items:
                pipelines.tiles.consumer_wait(ahead)
                pipelines.kkt.producer_acquire(squares)
                blackwell.after_thread_sync()
                t_kkt = blackwell.accumulator(kkt, base, PLAN.accumulator("t_kkt"), squares.index)
                stage = (None, None, None, ahead.index)
                blackwell.mma(kkt, t_kkt, r_rows[stage], r_columns[stage])
                pipelines.kkt.umma_commit(squares)
                ahead.advance()
                squares.advance()
            if item >= first + step:
                pipelines.operands.consumer_wait(ready)
                pipelines.uw.producer_acquire(results)
                blackwell.after_thread_sync()
                t_u = blackwell.accumulator(uw, base, PLAN.accumulator("t_u"), results.index)
                t_w = blackwell.accumulator(uw, base, PLAN.accumulator("t_w"), results.index)
                stage, operand = (None, None, None, used.index), (None, None, None, ready.index)
                blackwell.mma(uw, t_u, r_aib[operand], r_v[stage])
                blackwell.mma(uw, t_w, r_aibg[operand], r_k[stage])
                pipelines.uw.umma_commit(results)
                pipelines.operands.umma_release(ready)
                pipelines.tiles.umma_release(used)
                used.advance()
                ready.advance()
                results.advance()
        pipelines.kkt.producer_tail(squares)
        pipelines.uw.producer_tail(results)

    @cute.jit
    def invert(
        self,
        pipelines: Pipelines,
        items: cutlass.Int32,
        base: cute.Pointer,
        shared: Shared,
        scratch: inverse.Scratch,
        squares: tuple[cute.Tensor | None, cute.Tensor | None],
    ) -> None:
        """Warp w has rows 16w .. 16w + 15 of A and Ai, in registers as tcgen05.ld 16x256b delivers them."""
        thread, lane = cute.arch.thread_idx()[0], cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        # The builds with a tap or `split` have no spare registers: recompute the lane's addresses per item.
        spare = self.tap == Tap.NONE and not self.split
        t_kkt = PLAN.accumulator("t_kkt")
        tmem_copy = blackwell.TmemCopy.create(kkt_mma(), t_kkt.shape, base, thread)
        products, gate, ready = (
            pipelines.kkt.consumer_state(),
            pipelines.gate.consumer_state(),
            pipelines.operands.producer_state(),
        )
        for item in cutlass.range(cute.arch.block_idx()[0], items, cute.arch.grid_dim()[0], unroll=1):
            r_kkt = cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32)
            r_a = cute.make_tensor(r_kkt.iterator, cute.make_layout(cute.size(r_kkt)))
            tmem_copy.load_and_release(pipelines.kkt, products, t_kkt, r_kkt)
            pipelines.gate.consumer_wait(gate)
            s_scalars = shared.gate[None, None, gate.index]
            at = (item // self.value_heads, item % self.value_heads)
            lane = lane if cutlass.const_expr(spare) else blackwell.opaque(lane)
            self._form_inverse(r_a, s_scalars, scratch, squares, at, warp, lane)
            pipelines.operands.producer_acquire(ready)
            stage = (None, None, ready.index)
            triangle.write_operands(r_a, s_scalars, shared.aib[stage], shared.aibg[stage], warp, lane)
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.operands.producer_commit(ready)
            pipelines.gate.consumer_release(gate)
            products.advance()
            gate.advance()
            ready.advance()
        pipelines.operands.producer_tail(ready)

    @cute.jit
    def _form_inverse(
        self,
        r_a: cute.Tensor,
        s_scalars: cute.Tensor,
        scratch: inverse.Scratch,
        squares: tuple[cute.Tensor | None, cute.Tensor | None],
        at: tuple[cutlass.Int32, cutlass.Int32],
        warp: cutlass.Int32,
        lane: cutlass.Int32,
    ) -> None:
        """Replace KKT in r_a by Ai. With a tap, `at` is the (chunk, head) of A and Ai in global memory."""
        together = pipeline.NamedBarrier(barrier_id=Barrier.INVERT, num_threads=PLAN.threads_of(Role.INVERT))
        r_square = triangle.fragment(r_a)
        g_a, g_ai = (
            None if square is None else triangle.fragment_of(square[(*at, None, None)], warp, lane)
            for square in squares
        )
        if cutlass.const_expr(self.tap == Tap.INJECT_AI):
            cute.autovec_copy(g_ai, r_square)
        else:
            if cutlass.const_expr(self.tap in (Tap.INJECT_A, Tap.INVERT)):
                cute.autovec_copy(g_a, r_square)
            else:
                triangle.form_a(r_a, s_scalars, warp, lane)
            if cutlass.const_expr(self.tap == Tap.DUMP):
                cute.autovec_copy(r_square, g_a)
            inverse.invert(r_a, scratch, warp, lane, together)
            if cutlass.const_expr(self.tap in (Tap.DUMP, Tap.INVERT)):
                cute.autovec_copy(r_square, g_ai)

    @cute.jit
    def store_uw(
        self, pipelines: Pipelines, items: cutlass.Int32, base: cute.Pointer, shared: Shared, tma: Tma
    ) -> None:
        """Each warp stores its own 16 rows, so no warp waits for another."""
        thread, lane = cute.arch.thread_idx()[0] - WARP * Role.EPILOGUE, cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - Role.EPILOGUE
        tmem_copy = blackwell.TmemCopy.create(kkt_mma(), (CHUNK, CHUNK), base, thread)
        outputs = (
            (PLAN.accumulator("t_u"), shared.u[None, None, warp], tma.u),
            (PLAN.accumulator("t_w"), shared.w[None, None, warp], tma.w),
        )
        results = pipelines.uw.consumer_state()
        r_values = cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32)
        r_flat = cute.make_tensor(r_values.iterator, cute.make_layout(cute.size(r_values)))
        r_rounded = cute.make_rmem_tensor(r_flat.shape, OPERAND)
        for item in cutlass.range(cute.arch.block_idx()[0], items, cute.arch.grid_dim()[0], unroll=1):
            chunk, head = item // self.value_heads, item % self.value_heads
            pipelines.uw.consumer_wait(results)
            blackwell.after_thread_sync()
            for i in cutlass.range_constexpr(2):
                part, s_rows, tma_rows = outputs[i]
                # Stores of U and W alternate: with at most one pending, the last store of this buffer has
                # read its rows.
                cute.arch.cp_async_bulk_wait_group(1, read=True)
                cute.arch.sync_warp()
                for half in cutlass.range_constexpr(2):
                    tmem_copy.load(part, results.index, half * CHUNK, r_values)
                    cute.arch.fence_view_async_tmem_load()
                    r_rounded.store(r_flat.load().to(OPERAND))
                    triangle.store_rows(
                        r_rounded, cute.local_tile(s_rows, (ROWS_OF_WARP, CHUNK), (0, half)), lane
                    )
                if cutlass.const_expr(i == 1):
                    blackwell.before_thread_sync()
                    pipelines.uw.consumer_release(results)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    tma_rows.store(s_rows, CHUNK * chunk + ROWS_OF_WARP * warp, head)
                    cute.arch.cp_async_bulk_commit_group()
            results.advance()
        cute.arch.cp_async_bulk_wait_group(0)
