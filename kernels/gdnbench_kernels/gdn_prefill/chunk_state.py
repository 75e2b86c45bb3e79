"""The recurrence of the state over chunks: FLA's `chunk_delta_h`. CuTe DSL, sm_100a.

Writes h = bf16(S), the rounded state before each chunk, and V_new, the updates within it:

    V_new = U - W h^T                                        rows: tokens
    S     = exp(g_last) S + (V_new exp(g_last - g_cu))^T K   f32; rows: V, columns: K

The rows of S are independent. CTA (n Hv + hv) 2 + tile updates TILE = 64 of the 128 rows of S of value head
hv through sequence n, chunk after chunk. S stays in registers, unrounded. A chunk has C = 64 tokens; UB is a
bound on the number of chunks; K = V = 128 are the head dims; g_last is a chunk's last g_cu. For each chunk:

    1. D1 = h W^T = (W h^T)^T                64 rows of V x 64 tokens, summed over 128
    2. D2 = (V_new exp(g_last - g_cu))^T K   64 rows of V x 128, summed over 64 tokens; s_k is read N-major

tcgen05.ld 16x256b, stmatrix and ldmatrix give a thread the same elements. So a thread of STATE has the same
elements of S, h and D2, and of U^T, D1 and V_new^T; threads exchange nothing between the products.
s_vs holds (V_new exp(g_last - g_cu))^T, s_decay exp(g_last - g_cu), s_carry exp(g_last). Product 2 could read
s_vs from tensor memory, but only from the lanes of D2; in shared memory it reads s_vs as product 1 reads s_h.

    tensor         shape            dtype     rows
    k              T, H, K          bfloat16  value head hv reads head hv // (Hv // H)
    u, w           UB C, Hv, V | K  bfloat16  chunk c in rows 64 c ..
    g_cu           T, Hv            float32
    chunk_offsets  N + 1            int32     chunks before each sequence
    h              UB, Hv, V, K     bfloat16  chunk c in row c
    v_new          UB C, Hv, V      bfloat16  chunk c in rows 64 c ..
    initial_state  N, Hv, V, K      float32 or bfloat16, as final_state

    SMEM     shape               dtype     layout
    s_w      64 x 128, 2 stages  bfloat16  K-major, 128-byte swizzle
    s_u      64 x 64, 2 stages   bfloat16  row = token, 128-byte swizzle
    s_k      64 x 128, 2 stages  bfloat16  row = token, 128-byte swizzle; read as N-major
    s_h      64 x 128            bfloat16  K-major, 128-byte swizzle
    s_vs     64 x 64             bfloat16  K-major, 128-byte swizzle
    s_v_new  64 x 64             bfloat16  row = token, 128-byte swizzle
    s_decay  64, 2 stages        float32   contiguous
    s_carry  1, 2 stages         float32   contiguous

    TMEM  shape     columns  lanes  layout
    t_d1  64 x 64   0..63    high   M=64: row r in lane 32 (r/16) + r%16, + 16
    t_d2  64 x 128  0..127   low    M=64: row r in lane 32 (r/16) + r%16

    role   warps  does
    STATE  0..3   carries S in registers; h and V_new from it, exp(g_last) S + D2 into it
    LOAD   4      TMA of W, U and K; zeros past the end of the sequence
    MMA    5      both products; allocates TMEM
    GATE   6      exp(g_last - g_cu) of the chunk's tokens; exp(g_last) by rounded_decay
    STORE  7      TMA of h and V_new to global memory

    pipeline  stages  full: arrivals        empty: arrivals
    w         2       1 LOAD + 16384 bytes  1 MMA
    u         2       1 LOAD + 8192 bytes   4 STATE
    k         2       1 LOAD + 16384 bytes  1 MMA
    tail      1       1 LOAD + 16384 bytes  1 LOAD
    gate      2       1 GATE                4 STATE
    h         1       4 STATE               2 MMA, STORE
    d1        1       1 MMA                 4 STATE
    vs        1       4 STATE               1 MMA
    d2        1       1 MMA                 4 STATE
    v_new     1       4 STATE               1 STORE

    sync                               who            orders
    fence.mbarrier_init, barrier TMEM  all            mbarriers, tensor memory: before their use
    relinquish                         MMA            lets the SM's other CTA allocate tensor memory
    setmaxnreg                         all            STATE's increase waits for the others' decrease
    tail pipeline                      LOAD           K has landed before zeros are stored over its rows
    fence.proxy.async                  LOAD           zeros in s_k written before product 2 reads them
    fence.proxy.async                  STATE          s_h, s_vs, s_v_new written before they are read
    fence.proxy.async                  STATE          s_u read before TMA overwrites it
    tcgen05.wait::ld                   STATE          tensor memory read before its release
    tcgen05.fence before, after        MMA, STATE     tensor memory, with the mbarriers around
    bulk wait_group.read               STORE          the TMA store has read s_h, s_v_new before their release
    bulk wait_group                    STORE          h and V_new stored before the CTA ends
    producer_tail                      each producer  no arrival after the CTA ends
    barrier of the CTA                 all            tensor memory read before it is freed

256 threads, 115436 bytes of SMEM, 128 columns of TMEM, 2 CTAs an SM

With two CTAs per SM one computes in registers while the other waits for a product.

A last chunk of fewer than 64 tokens: past its end U and W are zero, LOAD sets K to zero, and the gate is the
last token's. V_new's rows there are 0 if S is finite. A sequence without tokens has no chunks: its final
state is its initial one.

Limits: K = V = 128, bf16 except g_cu in f32, which is finite or NaN and does not increase within a chunk, so
that no exponent is positive. Initial and final states are f32, bf16 or absent; an absent initial state is 0.
Hv a multiple of H; N >= 1; T Hv, N Hv V K < 2^31; tensors contiguous, aligned to 16 bytes. Rows of u and w
past the last chunk are not read, those of h and v_new not written. NaN in a sequence stays in its own h,
V_new and final state. A sequence's bits depend only on its own data; sums have a fixed order.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill.chunk_table import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.gate_scan import decay, rounded_decay
from gdnbench_kernels.plan import WARP, Accumulator, Buffer, KernelPlan, Pipeline, Sync

BF16 = cutlass.BFloat16
TILE = 64
"""Rows of S that a CTA updates."""
TILES = HEAD_DIM // TILE
AHEAD = 2
"""Chunks of operands and gates in shared memory: the current one and the next."""
STATE_REGISTERS, OTHER_REGISTERS = 168, 88
"""Registers per thread after setmaxnreg; 128 at launch."""
ALL_SHARED = 100
"""Shared-memory carveout in percent: with less a second CTA would not fit."""


class Role(IntEnum):
    """First warp of each role. STATE is one warpgroup, all others another, because setmaxnreg applies to
    warpgroups."""

    STATE = 0
    LOAD = 4
    MMA = 5
    GATE = 6
    STORE = 7


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own."""

    TMEM = 1


TOKENS = (CHUNK, HEAD_DIM)
K_MAJOR = "K-major, 128-byte swizzle"
BY_TOKEN = "row = token, 128-byte swizzle"
LANES = "M=64: row r in lane 32 (r/16) + r%16"

PLAN = KernelPlan(
    name="chunk_state",
    roles=Role,
    warps={"STATE": 4, "LOAD": 1, "MMA": 1, "GATE": 1, "STORE": 1},
    does={
        "STATE": "carries S in registers; h and V_new from it, exp(g_last) S + D2 into it",
        "LOAD": "TMA of W, U and K; zeros past the end of the sequence",
        "MMA": "both products; allocates TMEM",
        "GATE": "exp(g_last - g_cu) of the chunk's tokens; exp(g_last) by rounded_decay",
        "STORE": "TMA of h and V_new to global memory",
    },
    smem=(
        Buffer("s_w", TOKENS, "bfloat16", K_MAJOR, AHEAD),
        Buffer("s_u", (CHUNK, TILE), "bfloat16", BY_TOKEN, AHEAD),
        Buffer("s_k", TOKENS, "bfloat16", f"{BY_TOKEN}; read as N-major", AHEAD),
        Buffer("s_h", (TILE, HEAD_DIM), "bfloat16", K_MAJOR),
        Buffer("s_vs", (TILE, CHUNK), "bfloat16", K_MAJOR),
        Buffer("s_v_new", (CHUNK, TILE), "bfloat16", BY_TOKEN),
        Buffer("s_decay", (CHUNK,), "float32", "contiguous", AHEAD, align=16),
        Buffer("s_carry", (1,), "float32", "contiguous", AHEAD, align=8),
    ),
    tmem=(
        Accumulator("t_d1", (TILE, CHUNK), 0, CHUNK, f"{LANES}, + 16", "high"),
        Accumulator("t_d2", (TILE, HEAD_DIM), 0, HEAD_DIM, LANES, "low"),
    ),
    pipelines=(
        Pipeline("w", AHEAD, "LOAD", 1, "MMA", 1, CHUNK * HEAD_DIM * 2),
        Pipeline("u", AHEAD, "LOAD", 1, "STATE", 4, CHUNK * TILE * 2),
        Pipeline("k", AHEAD, "LOAD", 1, "MMA", 1, CHUNK * HEAD_DIM * 2),
        Pipeline("tail", 1, "LOAD", 1, "LOAD", 1, CHUNK * HEAD_DIM * 2),
        Pipeline("gate", AHEAD, "GATE", 1, "STATE", 4),
        Pipeline("h", 1, "STATE", 4, "MMA, STORE", 2),
        Pipeline("d1", 1, "MMA", 1, "STATE", 4),
        Pipeline("vs", 1, "STATE", 4, "MMA", 1),
        Pipeline("d2", 1, "MMA", 1, "STATE", 4),
        Pipeline("v_new", 1, "STATE", 4, "STORE", 1),
    ),
    syncs=(
        Sync("fence.mbarrier_init, barrier TMEM", "all", "mbarriers, tensor memory: before their use"),
        Sync("relinquish", "MMA", "lets the SM's other CTA allocate tensor memory"),
        Sync("setmaxnreg", "all", "STATE's increase waits for the others' decrease"),
        Sync("tail pipeline", "LOAD", "K has landed before zeros are stored over its rows"),
        Sync("fence.proxy.async", "LOAD", "zeros in s_k written before product 2 reads them"),
        Sync("fence.proxy.async", "STATE", "s_h, s_vs, s_v_new written before they are read"),
        Sync("fence.proxy.async", "STATE", "s_u read before TMA overwrites it"),
        Sync("tcgen05.wait::ld", "STATE", "tensor memory read before its release"),
        Sync("tcgen05.fence before, after", "MMA, STATE", "tensor memory, with the mbarriers around"),
        Sync("bulk wait_group.read", "STORE", "the TMA store has read s_h, s_v_new before their release"),
        Sync("bulk wait_group", "STORE", "h and V_new stored before the CTA ends"),
        Sync("producer_tail", "each producer", "no arrival after the CTA ends"),
        Sync("barrier of the CTA", "all", "tensor memory read before it is freed"),
    ),
    ctas_per_sm=2,
)


@dataclass(frozen=True)
class Pipelines(blackwell.Pipelines):
    w: blackwell.Pipeline
    u: blackwell.Pipeline
    k: blackwell.Pipeline
    tail: blackwell.Pipeline
    gate: blackwell.Pipeline
    h: blackwell.Pipeline
    d1: blackwell.Pipeline
    vs: blackwell.Pipeline
    d2: blackwell.Pipeline
    v_new: blackwell.Pipeline


@dataclass(frozen=True)
class Shared:
    """The plan's buffers: tiles (rows, columns, stages), vectors (elements, stages)."""

    w: cute.Tensor
    u: cute.Tensor
    k: cute.Tensor
    h: cute.Tensor
    vs: cute.Tensor
    v_new: cute.Tensor
    decay: cute.Tensor
    carry: cute.Tensor

    @staticmethod
    def allocate(smem: Any) -> Shared:
        tiles = [blackwell.tiles(smem, buffer) for buffer in PLAN.smem[:-2]]
        return Shared(*tiles, *(blackwell.vectors(smem, buffer) for buffer in PLAN.smem[-2:]))


@dataclass(frozen=True)
class Tma:
    """The tensors in global memory from and to which TMA copies those tiles."""

    w: blackwell.Tma
    u: blackwell.Tma
    k: blackwell.Tma
    h: blackwell.Tma
    v_new: blackwell.Tma


@dataclass(frozen=True)
class WorkTile:
    """The work of a CTA: the chunks of a sequence, for a tile of rows of one value head's state."""

    sequence: cutlass.Int32
    head: cutlass.Int32
    tile: cutlass.Int32
    chunk: cutlass.Int32  # the first chunk
    chunks: cutlass.Int32
    start: cutlass.Int32  # the first token
    stop: cutlass.Int32

    def state_tile(self, states: cute.Tensor) -> cute.Tensor:
        """The CTA's tile (V, K) of states (N, Hv, V, K)."""
        whole = states[self.sequence, self.head, None, None]
        return cute.local_tile(whole, (TILE, HEAD_DIM), (self.tile, 0))


class ChunkState:
    """The kernel for `heads` key heads and `value_heads` value heads, a multiple of `heads`."""

    def __init__(self, heads: int, value_heads: int) -> None:
        self.heads, self.value_heads = heads, value_heads

    @cute.jit
    def __call__(
        self,
        k: cute.Tensor,
        u: cute.Tensor,
        w: cute.Tensor,
        g_cu: cute.Tensor,
        cu_seqlens: cute.Tensor,
        chunk_offsets: cute.Tensor,
        initial_state: cute.Tensor | None,
        h: cute.Tensor,
        v_new: cute.Tensor,
        final_state: cute.Tensor | None,
        stream: cuda.CUstream,
    ) -> None:
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma = Tma(
            w=blackwell.Tma.create(load, blackwell.by_head(w), TOKENS),
            u=blackwell.Tma.create(load, self._by_tile(u), (CHUNK, TILE)),
            k=blackwell.Tma.create(load, blackwell.by_head(k), TOKENS),
            h=blackwell.Tma.create(store, blackwell.reordered(h, 2, 3, 1, 0), (TILE, HEAD_DIM)),
            v_new=blackwell.Tma.create(store, self._by_tile(v_new), (CHUNK, TILE)),
        )
        ctas = (cute.size(cu_seqlens) - 1) * self.value_heads * TILES
        self.kernel(tma, g_cu, (cu_seqlens, chunk_offsets), initial_state, final_state).launch(
            grid=(ctas, 1, 1),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            preferred_smem_carveout=ALL_SHARED,
            stream=stream,
        )

    def _by_tile(self, x: cute.Tensor) -> cute.Tensor:
        """View a tensor (tokens, heads, features) as (tokens, features of a tile, heads, tiles)."""
        tiled = cute.flatten(cute.logical_divide(x.layout, (None, None, TILE)))
        return blackwell.reordered(cute.make_tensor(x.iterator, tiled), 0, 2, 1, 3)

    @cute.kernel
    def kernel(
        self,
        tma: Tma,
        g_cu: cute.Tensor,
        tables: tuple[cute.Tensor, cute.Tensor],
        initial_state: cute.Tensor | None,
        final_state: cute.Tensor | None,
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared, pipelines = Shared.allocate(smem), Pipelines.allocate(PLAN, smem)
        blackwell.prefetch((tma.w, tma.u, tma.k, tma.h, tma.v_new), warp == Role.LOAD)
        blackwell.init_barriers(pipelines, warp == Role.LOAD)
        tmem, base = blackwell.allocate_tmem(PLAN, smem, Role.MMA, Barrier.TMEM)
        # Each role computes its work tile itself: ptxas spills values that live across setmaxnreg.
        if warp < Role.LOAD:
            cute.arch.setmaxregister_increase(STATE_REGISTERS)
            self.recurrence(self.work_tile(tables), pipelines, shared, base, initial_state, final_state)
        else:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
        if warp == Role.LOAD:
            self.load(self.work_tile(tables), pipelines, shared, tma)
        if warp == Role.MMA:
            self.mma(self.work_tile(tables), pipelines, shared, base)
        if warp == Role.GATE:
            self.gate(self.work_tile(tables), pipelines, shared, g_cu)
        if warp == Role.STORE:
            self.store(self.work_tile(tables), pipelines, shared, tma)
        cute.arch.sync_threads()
        tmem.free(base)

    def work_tile(self, tables: tuple[cute.Tensor, cute.Tensor]) -> WorkTile:
        """Order: tiles of a head, heads of a sequence, sequences. So CTAs that read the same K and W are
        neighbours."""
        cu_seqlens, chunk_offsets = tables
        block = cute.arch.block_idx()[0]
        row = block // TILES
        n = row // self.value_heads
        chunk, chunks = chunk_offsets[n], chunk_offsets[n + 1] - chunk_offsets[n]
        head, tile = row % self.value_heads, block % TILES
        return WorkTile(n, head, tile, chunk, chunks, cu_seqlens[n], cu_seqlens[n + 1])

    @cute.jit
    def load(self, work: WorkTile, pipelines: Pipelines, shared: Shared, tma: Tma) -> None:
        """Load W, U and K of each chunk, in the order of their use. Past the end of the sequence U and W have
        zero rows; K has the next sequence there, so LOAD overwrites those rows with zeros."""
        key_head = work.head // (self.value_heads // self.heads)
        w, u, k = pipelines.w.producer_state(), pipelines.u.producer_state(), pipelines.k.producer_state()
        tail, landed = pipelines.tail.producer_state(), pipelines.tail.consumer_state()
        for i in cutlass.range(work.chunks, unroll=1):
            row, token = CHUNK * (work.chunk + i), work.start + CHUNK * i
            pipelines.w.producer_acquire(w)
            pipelines.w.arrive_and_expect_tx(w)
            tma.w.load(pipelines.w, w, shared.w, row, work.head)
            pipelines.u.producer_acquire(u)
            pipelines.u.arrive_and_expect_tx(u)
            tma.u.load(pipelines.u, u, shared.u, row, work.head, work.tile)
            pipelines.k.producer_acquire(k)
            if token + CHUNK <= work.stop:
                pipelines.k.arrive_and_expect_tx(k)
                tma.k.load(pipelines.k, k, shared.k, token, key_head)
            else:
                pipelines.tail.producer_acquire(tail)
                pipelines.tail.arrive_and_expect_tx(tail)
                tma.k.load(pipelines.tail, tail, shared.k, token, key_head, stage=k.index)
                pipelines.tail.consumer_wait(landed)
                blackwell.zero_rows(shared.k[None, None, k.index], work.stop - token)
                pipelines.tail.consumer_release(landed)
                pipelines.k.producer_commit(k)
            w.advance()
            u.advance()
            k.advance()
        pipelines.w.producer_tail(w)
        pipelines.u.producer_tail(u)
        pipelines.k.producer_tail(k)

    @cute.jit
    def gate(self, work: WorkTile, pipelines: Pipelines, shared: Shared, g_cu: cute.Tensor) -> None:
        """Compute the decay of each token's update, and of the state before the chunk, up to the chunk's
        end."""
        lane = cute.arch.lane_idx()
        gate = pipelines.gate.producer_state()
        for i in cutlass.range(work.chunks, unroll=1):
            first = work.start + CHUNK * i
            last = cutlass.min(first + CHUNK, work.stop) - 1
            # Load the gates before producer_acquire: its wait hides their latency. Past the end of the
            # sequence use the last token's gate: a decay of 1, for rows of zeros.
            g_last = g_cu[last, work.head]
            low = g_cu[cutlass.min(first + lane, last), work.head]
            high = g_cu[cutlass.min(first + lane + WARP, last), work.head]
            carry = rounded_decay(g_last)
            pipelines.gate.producer_acquire(gate)
            shared.decay[lane, gate.index] = decay(g_last - low)
            shared.decay[lane + WARP, gate.index] = decay(g_last - high)
            if lane == 0:
                shared.carry[0, gate.index] = carry
            pipelines.gate.producer_commit(gate)
            gate.advance()
        pipelines.gate.producer_tail(gate)

    @cute.jit
    def mma(self, work: WorkTile, pipelines: Pipelines, shared: Shared, base: cute.Pointer) -> None:
        """Issue D1 and D2 of each chunk. D1 of the next chunk needs STATE's h, so nothing is issued ahead."""
        d1_mma, d2_mma = tiled_mmas()
        r_h, r_w = blackwell.operands(d1_mma, shared.h, shared.w, (TILE, CHUNK, HEAD_DIM))
        r_vs, r_k = blackwell.operands(d2_mma, shared.vs, shared.k, (TILE, HEAD_DIM, CHUNK))
        t_d1 = blackwell.accumulator(d1_mma, base, PLAN.accumulator("t_d1"))
        t_d2 = blackwell.accumulator(d2_mma, base, PLAN.accumulator("t_d2"))
        w, k = pipelines.w.consumer_state(), pipelines.k.consumer_state()
        h, vs = pipelines.h.consumer_state(), pipelines.vs.consumer_state()
        d1, d2 = pipelines.d1.producer_state(), pipelines.d2.producer_state()
        for _ in cutlass.range(work.chunks, unroll=1):
            pipelines.w.consumer_wait(w)
            pipelines.d1.producer_acquire(d1)
            pipelines.h.consumer_wait(h)
            blackwell.after_thread_sync()
            blackwell.mma(d1_mma, t_d1, r_h[None, None, None, h.index], r_w[None, None, None, w.index])
            pipelines.d1.umma_commit(d1)
            pipelines.w.umma_release(w)
            pipelines.h.umma_release(h)
            pipelines.k.consumer_wait(k)
            pipelines.d2.producer_acquire(d2)
            pipelines.vs.consumer_wait(vs)
            blackwell.after_thread_sync()
            blackwell.mma(d2_mma, t_d2, r_vs[None, None, None, vs.index], r_k[None, None, None, k.index])
            pipelines.d2.umma_commit(d2)
            pipelines.k.umma_release(k)
            pipelines.vs.umma_release(vs)
            w.advance()
            d1.advance()
            h.advance()
            k.advance()
            d2.advance()
            vs.advance()
        pipelines.d1.producer_tail(d1)
        pipelines.d2.producer_tail(d2)

    @cute.jit
    def store(self, work: WorkTile, pipelines: Pipelines, shared: Shared, tma: Tma) -> None:
        """One lane copies, commits and waits, because bulk groups belong to the committing thread."""
        h, v_new = pipelines.h.consumer_state(), pipelines.v_new.consumer_state()
        for chunk in cutlass.range(work.chunk, work.chunk + work.chunks, unroll=1):
            pipelines.h.consumer_wait(h)
            with cute.arch.elect_one():
                tma.h.store(shared.h[None, None, h.index], TILE * work.tile, work.head, chunk)
                self.release_when_read(pipelines.h, h)
            h.advance()
            pipelines.v_new.consumer_wait(v_new)
            with cute.arch.elect_one():
                tma.v_new.store(shared.v_new[None, None, v_new.index], CHUNK * chunk, work.head, work.tile)
                self.release_when_read(pipelines.v_new, v_new)
            v_new.advance()
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(0)

    def release_when_read(self, pipe: blackwell.Pipeline, state: Any) -> None:
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
        pipe.consumer_release_thread(state)

    @cute.jit
    def recurrence(
        self,
        work: WorkTile,
        pipelines: Pipelines,
        shared: Shared,
        base: cute.Pointer,
        initial_state: cute.Tensor | None,
        final_state: cute.Tensor | None,
    ) -> None:
        """Compute the states from the initial to the final one. Work that does not need product 1 is done
        before the wait for it; V_new is packed for global memory during product 2."""
        thread = cute.arch.thread_idx()[0]
        d1_mma, d2_mma = tiled_mmas()
        v_copy = blackwell.TmemCopy.create(d1_mma, (TILE, CHUNK), base, thread)
        s_copy = blackwell.TmemCopy.create(d2_mma, (TILE, HEAD_DIM), base, thread)
        r_s = cute.make_rmem_tensor(s_copy.coords.shape, cutlass.Float32)
        r_u = cute.make_rmem_tensor(v_copy.coords.shape, BF16)
        r_decay = cute.make_rmem_tensor_like(r_u, cutlass.Float32)
        self.load_initial_state(s_copy, work, initial_state, r_s)
        u, gate = pipelines.u.consumer_state(), pipelines.gate.consumer_state()
        d1, d2 = pipelines.d1.consumer_state(), pipelines.d2.consumer_state()
        h, vs, v_new = (
            pipelines.h.producer_state(),
            pipelines.vs.producer_state(),
            pipelines.v_new.producer_state(),
        )
        for _ in cutlass.range(work.chunks, unroll=1):
            pipelines.h.producer_acquire(h)
            self.store_h(s_copy, r_s, shared.h[None, None, h.index])
            pipelines.h.producer_commit(h)

            pipelines.u.consumer_wait(u)
            v_copy.ldmatrix(blackwell.reordered(shared.u[None, None, u.index], 1, 0), r_u, transpose=True)
            # Order this thread's generic-proxy reads before TMA's next async-proxy writes.
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.u.consumer_release(u)
            pipelines.gate.consumer_wait(gate)
            by_column = cute.make_layout((TILE, CHUNK), stride=(0, 1))
            s_decay = cute.make_tensor(shared.decay[None, gate.index].iterator, by_column)
            cute.autovec_copy(v_copy.partition(s_decay), r_decay)
            carry = shared.carry[0, gate.index]
            pipelines.gate.consumer_release(gate)
            pipelines.vs.producer_acquire(vs)

            pipelines.d1.consumer_wait(d1)
            r_v_new = self.form_v_new(v_copy, r_u, r_decay, shared.vs[None, None, vs.index])
            pipelines.vs.producer_commit(vs)
            pipelines.d1.consumer_release(d1)

            pipelines.v_new.producer_acquire(v_new)
            s_v_new = blackwell.reordered(shared.v_new[None, None, v_new.index], 1, 0)
            v_copy.stmatrix(r_v_new, s_v_new, transpose=True)
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.v_new.producer_commit(v_new)

            pipelines.d2.consumer_wait(d2)
            self.update_state(s_copy, carry, r_s)
            pipelines.d2.consumer_release(d2)
            u.advance()
            gate.advance()
            d1.advance()
            d2.advance()
            h.advance()
            vs.advance()
            v_new.advance()
        self.store_final_state(s_copy, work, r_s, final_state)
        pipelines.h.producer_tail(h)
        pipelines.vs.producer_tail(vs)
        pipelines.v_new.producer_tail(v_new)

    @cute.jit
    def load_initial_state(
        self, s_copy: blackwell.TmemCopy, work: WorkTile, initial_state: Any, r_s: cute.Tensor
    ) -> None:
        """Load S from the initial state; zeros if there is none."""
        if cutlass.const_expr(initial_state is None):
            r_s.fill(0.0)
        else:
            r_given = cute.make_rmem_tensor_like(r_s, initial_state.element_type)
            cute.autovec_copy(s_copy.partition(work.state_tile(initial_state)), r_given)
            r_s.store(r_given.load().to(cutlass.Float32))

    @cute.jit
    def store_final_state(
        self, s_copy: blackwell.TmemCopy, work: WorkTile, r_s: cute.Tensor, final_state: Any
    ) -> None:
        """Store S as the final state, if the call asks for it."""
        if cutlass.const_expr(final_state is not None):
            r_kept = cute.make_rmem_tensor_like(r_s, final_state.element_type)
            r_kept.store(r_s.load().to(final_state.element_type))
            cute.autovec_copy(r_kept, s_copy.partition(work.state_tile(final_state)))

    @cute.jit
    def store_h(self, s_copy: blackwell.TmemCopy, r_s: cute.Tensor, s_h: cute.Tensor) -> None:
        """Write h to s_h, for product 1 and for the TMA store."""
        r_h = cute.make_rmem_tensor_like(r_s, BF16)
        r_h.store(r_s.load().to(BF16))
        s_copy.stmatrix(r_h, s_h)
        cute.arch.fence_proxy("async.shared", space="cta")

    @cute.jit
    def form_v_new(
        self, v_copy: blackwell.TmemCopy, r_u: cute.Tensor, r_decay: cute.Tensor, s_vs: cute.Tensor
    ) -> cute.Tensor:
        """Return V_new^T = U^T - D1 and write its decayed form to s_vs; both are rounded from the same
        difference."""
        r_d1 = cute.make_rmem_tensor_like(r_decay)
        blackwell.after_thread_sync()
        v_copy.load(PLAN.accumulator("t_d1"), 0, 0, r_d1)
        cute.arch.fence_view_async_tmem_load()
        blackwell.before_thread_sync()
        difference = r_u.load().to(cutlass.Float32) - r_d1.load()
        r_v_new, r_vs = cute.make_rmem_tensor_like(r_u), cute.make_rmem_tensor_like(r_u)
        r_v_new.store(difference.to(BF16))
        r_vs.store((difference * r_decay.load()).to(BF16))
        v_copy.stmatrix(r_vs, s_vs)
        cute.arch.fence_proxy("async.shared", space="cta")
        return r_v_new

    @cute.jit
    def update_state(self, s_copy: blackwell.TmemCopy, carry: cutlass.Float32, r_s: cute.Tensor) -> None:
        """S = exp(g_last) S + D2."""
        r_d2 = cute.make_rmem_tensor_like(r_s)
        blackwell.after_thread_sync()
        s_copy.load(PLAN.accumulator("t_d2"), 0, 0, r_d2)
        cute.arch.fence_view_async_tmem_load()
        blackwell.before_thread_sync()
        r_s.store(cute.math.fma(r_s.load(), cute.full_like(r_s, carry), r_d2.load()))


def tiled_mmas() -> tuple[cute.TiledMma, cute.TiledMma]:
    """Products 1 and 2: the right operand is K-major, then N-major."""
    return (
        blackwell.make_tiled_mma(OperandMajorMode.K, TILE, CHUNK),
        blackwell.make_tiled_mma(OperandMajorMode.MN, TILE, HEAD_DIM),
    )
