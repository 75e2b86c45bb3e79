"""Kimi Delta Attention prefill in one kernel. CuTe DSL, sm_100a."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill import inverse
from gdnbench_kernels.gdn_prefill.fused_plan import WorkTile
from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import TileMma
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.kda_prefill import fused_invert, fused_scale, fused_state
from gdnbench_kernels.kda_prefill.fused_plan import (
    LEVELS,
    T_KKT,
    T_KS,
    T_O,
    T_QK,
    T_S,
    T_V_NEW,
    TOKENS,
    Barrier,
    Pipelines,
    Role,
    Shared,
    planned,
)
from gdnbench_kernels.plan import WARP

BF16 = cutlass.BFloat16
STATE_REGISTERS, SCALE_REGISTERS, INVERT_REGISTERS, OTHER_REGISTERS = 88, 112, 136, 56
"""Registers per thread after setmaxnreg; 96 at launch."""

PLAN = planned(split=False)
SPLIT_PLAN = planned(split=True)


@dataclass(frozen=True)
class Tma:
    """The tensors in global memory from and to which TMA copies tiles."""

    k: blackwell.Tma
    q: blackwell.Tma
    g: blackwell.Tma
    v: blackwell.Tma
    o: blackwell.Tma


@dataclass(frozen=True)
class KdaFused:
    """The kernel for `heads` key heads and `value_heads` value heads; beta is at most 1, with `split` at most
    2."""

    heads: int
    value_heads: int
    split: bool = False

    def __post_init__(self) -> None:
        if self.value_heads % self.heads:
            raise ValueError(f"{self.value_heads} value heads are no multiple of {self.heads} key heads")

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        initial_state: cute.Tensor | None,
        o: cute.Tensor,
        final_state: cute.Tensor | None,
        scale: cutlass.Float32,
        stream: cuda.CUstream,
    ) -> None:
        """q, k [T, H, 128] and v, o [T, Hv, 128] bf16, g [T, Hv, 128] and beta [T, Hv] f32, cu_seqlens [N+1]
        int32, states [N, Hv, 128, 128] f32 or bf16."""
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma = Tma(
            *(blackwell.Tma.create(load, blackwell.by_head(x), TOKENS) for x in (k, q, g, v)),
            *(blackwell.Tma.create(store, blackwell.by_head(x), TOKENS) for x in (o,)),
        )
        self.kernel(tma, beta, cu_seqlens, (initial_state, final_state), o, scale).launch(
            grid=((cute.size(cu_seqlens) - 1) * self.value_heads, 1, 1),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        tma: Tma,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        states: tuple[cute.Tensor | None, cute.Tensor | None],
        o: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        plan = SPLIT_PLAN if self.split else PLAN
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(plan, smem)
        scratch = inverse.Scratch.allocate(smem, self.split)
        pipelines = Pipelines.allocate(plan, smem)
        blackwell.prefetch((tma.k, tma.q, tma.g, tma.v, tma.o), warp == Role.LOAD)
        blackwell.init_barriers(pipelines, warp == Role.LOAD)
        tmem, base = blackwell.allocate_tmem(plan, smem, Role.MMA, Barrier.TMEM)
        # Each role computes its work tile itself: ptxas spills values that live across setmaxnreg.
        if warp < Role.SCALE:
            cute.arch.setmaxregister_decrease(STATE_REGISTERS)
            fused_state.recurrence(self.work_tile(cu_seqlens), pipelines, shared, base, *states, scale)
        elif warp < Role.INVERT:
            cute.arch.setmaxregister_increase(SCALE_REGISTERS)
            fused_scale.scale(self.work_tile(cu_seqlens), pipelines, shared)
        elif warp < Role.LOAD:
            cute.arch.setmaxregister_increase(INVERT_REGISTERS)
            fused_invert.invert(self.work_tile(cu_seqlens), pipelines, shared, scratch, base, beta)
        else:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
        if warp == Role.LOAD:
            self.load(self.work_tile(cu_seqlens), pipelines, shared, tma)
        if warp == Role.SCORES:
            self.scores(self.work_tile(cu_seqlens), pipelines, shared, base)
        if warp == Role.MMA:
            self.mma(self.work_tile(cu_seqlens), pipelines, shared, base)
        if warp == Role.STORE:
            self.store(self.work_tile(cu_seqlens), pipelines, shared, tma, o)
        cute.arch.sync_threads()
        tmem.free(base)

    def work_tile(self, cu_seqlens: cute.Tensor) -> WorkTile:
        """Order: heads of a sequence, sequences. So CTAs that read the same Q and K are neighbours."""
        block = cute.arch.block_idx()[0]
        n = block // self.value_heads
        start, stop = cu_seqlens[n], cu_seqlens[n + 1]
        return WorkTile(n, block % self.value_heads, start, stop, (stop - start + CHUNK - 1) // CHUNK)

    @cute.jit
    def load(self, work: WorkTile, pipelines: Pipelines, shared: Shared, tma: Tma) -> None:
        """Load K, Q, g and V of each chunk. Past the end of the sequence, SCALE ignores rows of g, and rows
        of Q affect only rows of o that are not stored; rows of K and V would affect all others, so they are
        zeroed."""
        key_head = work.head // (self.value_heads // self.heads)
        k, q, g, v = (
            pipe.producer_state() for pipe in (pipelines.k, pipelines.q, pipelines.g, pipelines.v)
        )
        k_tail, v_tail = pipelines.tail.consumer_state(), pipelines.tail.consumer_state()
        v_tail.advance()
        for i in cutlass.range(work.chunks, unroll=1):
            token = work.start + CHUNK * i
            pipelines.g.producer_acquire(g)
            pipelines.g.arrive_and_expect_tx(g)
            tma.g.load(pipelines.g, g, shared.g, token, work.head)
            pipelines.k.producer_acquire(k)
            self._load_own_rows(
                pipelines, pipelines.k, k, k_tail, tma.k, shared.k, work.stop - token, token, key_head
            )
            pipelines.q.producer_acquire(q)
            pipelines.q.arrive_and_expect_tx(q)
            tma.q.load(pipelines.q, q, shared.q, token, key_head)
            pipelines.v.producer_acquire(v)
            self._load_own_rows(
                pipelines, pipelines.v, v, v_tail, tma.v, shared.v, work.stop - token, token, work.head
            )
            k.advance()
            q.advance()
            g.advance()
            v.advance()
        pipelines.k.producer_tail(k)
        pipelines.q.producer_tail(q)
        pipelines.g.producer_tail(g)
        pipelines.v.producer_tail(v)

    @cute.jit
    def _load_own_rows(
        self,
        pipelines: Pipelines,
        pipe: blackwell.Pipeline,
        state: Any,
        tail: Any,
        tma: blackwell.Tma,
        s_tiles: cute.Tensor,
        length: cutlass.Int32,
        token: cutlass.Int32,
        head: cutlass.Int32,
    ) -> None:
        """Load a tile, with zeros in its rows from `length` on. A sequence has one tail, which uses its stage
        once."""
        if length >= CHUNK:
            pipe.arrive_and_expect_tx(state)
            tma.load(pipe, state, s_tiles, token, head)
        else:
            pipelines.tail.arrive_and_expect_tx(tail)
            tma.load(pipelines.tail, tail, s_tiles, token, head, stage=state.index)
            pipelines.tail.consumer_wait(tail)
            blackwell.zero_rows(s_tiles[None, None, state.index], length)
            pipe.producer_commit(state)

    @cute.jit
    def scores(self, work: WorkTile, pipelines: Pipelines, shared: Shared, base: cute.Pointer) -> None:
        """Issue Q K^T for the diagonal of P, then the products of each level."""
        diagonal = TileMma.create(base, T_QK, shared.q, shared.k)
        kkt = TileMma.create(base, T_KKT, shared.scaled_k, shared.scaled_k)
        qk = TileMma.create(base, T_QK, shared.scaled_q, shared.scaled_k)
        k, q, scaled = (
            pipe.consumer_state() for pipe in (pipelines.k, pipelines.q, pipelines.scaled)
        )
        scores = pipelines.scores.producer_state()
        for _ in cutlass.range(work.chunks, unroll=1):
            pipelines.k.consumer_wait(k)
            pipelines.q.consumer_wait(q)
            pipelines.scores.producer_acquire(scores)
            blackwell.after_thread_sync()
            diagonal.issue(q, k, scores.index)
            pipelines.scores.umma_commit(scores)
            pipelines.q.umma_release(q)
            scores.advance()
            for _ in cutlass.range(len(LEVELS), unroll=1):
                pipelines.scaled.consumer_wait(scaled)
                pipelines.scores.producer_acquire(scores)
                blackwell.after_thread_sync()
                kkt.issue(scaled, scaled, scores.index)
                qk.issue(scaled, scaled, scores.index)
                pipelines.scores.umma_commit(scores)
                pipelines.scaled.umma_release(scaled)
                scaled.advance()
                scores.advance()
            k.advance()
            q.advance()
        pipelines.scores.producer_tail(scores)

    @cute.jit
    def mma(self, work: WorkTile, pipelines: Pipelines, shared: Shared, base: cute.Pointer) -> None:
        """Issue the products with the state."""
        read_k = TileMma.create(base, T_KS, shared.h, shared.scaled_k)
        read_q = TileMma.create(base, T_O, shared.h, shared.scaled_q)
        update = TileMma.create(base, T_V_NEW, shared.left, shared.aib)
        add = TileMma.create(base, T_S, shared.left, shared.k, OperandMajorMode.MN)
        read_p = TileMma.create(base, T_O, shared.left, shared.p)
        k, reads, ends, squares, h, left = (
            pipe.consumer_state()
            for pipe in (
                pipelines.k,
                pipelines.reads,
                pipelines.ends,
                pipelines.squares,
                pipelines.h,
                pipelines.left,
            )
        )
        ks, updates, added, out = (
            pipe.producer_state()
            for pipe in (pipelines.ks, pipelines.update, pipelines.added, pipelines.out)
        )
        for _ in cutlass.range(work.chunks, unroll=1):
            pipelines.reads.consumer_wait(reads)
            pipelines.ks.producer_acquire(ks)
            pipelines.h.consumer_wait(h)
            blackwell.after_thread_sync()
            read_k.issue(h, reads)
            pipelines.ks.umma_commit(ks)
            pipelines.out.producer_acquire(out)
            blackwell.after_thread_sync()
            read_q.issue(h, reads)
            pipelines.h.umma_release(h)
            pipelines.reads.umma_release(reads)

            pipelines.squares.consumer_wait(squares)
            pipelines.update.producer_acquire(updates)
            pipelines.left.consumer_wait(left)
            blackwell.after_thread_sync()
            update.issue(left, squares)
            pipelines.update.umma_commit(updates)
            pipelines.left.umma_release(left)
            left.advance()

            pipelines.ends.consumer_wait(ends)
            pipelines.added.producer_acquire(added)
            pipelines.left.consumer_wait(left)
            blackwell.after_thread_sync()
            add.issue(left, k, add=True)
            pipelines.added.umma_commit(added)
            pipelines.k.umma_release(k)
            read_p.issue(left, squares, add=True)
            pipelines.out.umma_commit(out)
            pipelines.left.umma_release(left)
            pipelines.squares.umma_release(squares)
            left.advance()
            k.advance()
            reads.advance()
            ends.advance()
            squares.advance()
            h.advance()
            ks.advance()
            updates.advance()
            added.advance()
            out.advance()
        pipelines.ks.producer_tail(ks)
        pipelines.update.producer_tail(updates)
        pipelines.added.producer_tail(added)
        pipelines.out.producer_tail(out)

    @cute.jit
    def store(self, work: WorkTile, pipelines: Pipelines, shared: Shared, tma: Tma, o: cute.Tensor) -> None:
        """Store a full chunk by TMA. Of a shorter one store only its own rows, because the next sequence
        follows."""
        state = pipelines.o.consumer_state()
        for i in cutlass.range(work.chunks, unroll=1):
            token = work.start + CHUNK * i
            s_o = shared.o[None, None, state.index]
            pipelines.o.consumer_wait(state)
            if token + CHUNK <= work.stop:
                with cute.arch.elect_one():
                    tma.o.store(s_o, token, work.head)
                    cute.arch.cp_async_bulk_commit_group()
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                    pipelines.o.consumer_release_thread(state)
            else:
                self._store_rows(s_o, o, token, work)
                pipelines.o.consumer_release(state)
            state.advance()
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def _store_rows(self, s_o: cute.Tensor, o: cute.Tensor, token: cutlass.Int32, work: WorkTile) -> None:
        """Store rows up to the end of the sequence, 16 bytes per lane."""
        # In 64 bits: T Hv 128 may exceed 2^31.
        stride = self.value_heads * HEAD_DIM
        first = cutlass.Int64(token) * stride + work.head * HEAD_DIM
        g_o = cute.make_tensor((o.iterator + first).align(16), cute.make_layout(TOKENS, stride=(stride, 1)))
        lane, lanes = cute.arch.lane_idx(), HEAD_DIM // blackwell.VECTOR
        for row in cutlass.range(lane // lanes, work.stop - token, WARP // lanes, unroll=1):
            r_vector = cute.make_rmem_tensor((1, blackwell.VECTOR), BF16)
            s_vector, g_vector = (
                cute.local_tile(tile, (1, blackwell.VECTOR), (row, lane % lanes)) for tile in (s_o, g_o)
            )
            cute.autovec_copy(s_vector, r_vector)
            cute.autovec_copy(r_vector, g_vector)
