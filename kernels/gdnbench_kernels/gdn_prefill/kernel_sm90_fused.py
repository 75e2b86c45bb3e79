"""Prefill in one kernel for Hopper."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import load_own_rows
from gdnbench_kernels.gdn_prefill import sm90_squares, sm90_state
from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import ChunkFused, is_tail
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import GROUP_ROWS, GROUP_WARPS, Tuning, planned, roles_of
from gdnbench_kernels.gdn_prefill.sm90_tiles import (
    Pipelines,
    Shared,
    SliceTile,
    States,
    Tma,
    allocate_scratch,
    scratch_of_group,
)
from gdnbench_kernels.plan import WARP, KernelPlan

BF16 = cutlass.BFloat16


@dataclass(frozen=True)
class FusedSm90(ChunkFused):
    """The kernel for `heads` key heads and `value_heads` value heads; beta is at most 1, with `split` at most
    2."""

    tuning: Tuning = Tuning()  # noqa: RUF009 - it is frozen
    maps = False
    """Whether a work may be rows of M of a segment: see sm90_segments.py."""

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
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """q, k [T, H, 128] and v, o [T, Hv, 128] bf16, g and beta [T, Hv] f32, cu_seqlens [N+1] int32, states
        [N, Hv, 128, 128] f32 or bf16."""
        tma = Tma.create(k, q, v, o, self.tuning.slices)
        states = States(initial_state, final_state)
        self.kernel(tma, (g, beta), cu_seqlens, states, o, scale).launch(
            grid=(ctas, 1, 1), block=(self.plan.threads, 1, 1), min_blocks_per_mp=1, stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        tma: Tma,
        gates: tuple[cute.Tensor, cute.Tensor],
        cuts: Any,
        states: Any,
        o: cute.Tensor | None,
        scale: cutlass.Float32,
    ) -> None:
        """`cuts` is what `work` finds a CTA's tokens by; `states` has methods `load` and `store`."""
        plan, tuning, role = self.plan, self.tuning, roles_of(self.tuning)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(plan, smem)
        scratch = allocate_scratch(plan, smem, self.split)
        pipelines = Pipelines.allocate(plan, smem)
        blackwell.prefetch(tma.used(), warp == role.LOAD)
        blackwell.init_barriers(pipelines, warp == role.LOAD)
        cute.arch.sync_threads()
        # Each role finds its work itself: ptxas spills values that live across setmaxnreg.
        if warp < role.INVERT:
            cute.arch.setmaxregister_increase(tuning.state_registers)
            sm90_state.recurrence(self, cuts, pipelines, shared, states, scale)
        elif warp < role.GATE:
            if cutlass.const_expr(tuning.invert_registers > self.start_registers):
                cute.arch.setmaxregister_increase(tuning.invert_registers)
            else:
                cute.arch.setmaxregister_decrease(tuning.invert_registers)
            group = (warp - role.INVERT) // GROUP_WARPS
            sm90_squares.invert(self, cuts, pipelines, shared, scratch_of_group(scratch, group), group)
        else:
            cute.arch.setmaxregister_decrease(tuning.other_registers)
        if warp == role.GATE:
            self.scan_gates(cuts, pipelines, shared, *gates)
        if warp == role.LOAD:
            self.load_keys(cuts, pipelines, shared, tma)
        if warp == role.VALUES:
            self.load_values(cuts, pipelines, shared, tma)
        if cutlass.const_expr(self.outputs):  # noqa: SIM102 - the other condition is one of run time
            if warp == role.STORE:
                self.store_outputs(cuts, pipelines, shared, tma, o)

    gate_unit = sm90_squares.LOG2

    @property
    def plan(self) -> KernelPlan:
        return planned(self.tuning, self.split)

    @property
    def start_registers(self) -> int:
        """Registers per thread at launch."""
        return min(65536 // self.plan.threads, 255) // 8 * 8

    def works(self, cuts: Any) -> cutlass.Int32:
        return (cute.size(cuts) - 1) * (self.value_heads * self.tuning.slices)

    def work(self, cuts: Any, number: cutlass.Int32) -> SliceTile:
        return SliceTile.locate(cuts, self.value_heads, self.tuning.slices, number)

    def first_row(self, work: SliceTile, group: Any) -> Any:
        """The first V row of a warpgroup of STATE."""
        return (work.slice * self.tuning.groups + group) * GROUP_ROWS

    def column(self, work: SliceTile) -> Any:
        """The number of a work's V columns, among those of all heads."""
        return work.head * self.tuning.slices + work.slice

    @cute.jit
    def load_keys(self, cuts: Any, pipelines: Pipelines, shared: Shared, tma: Tma) -> None:
        """Load K and Q of each chunk. Past the end of a sequence, rows of Q affect only rows of o that are
        not stored; rows of K would affect all others, so they are zeroed."""
        keys = self.tuning.keys
        chunks = self.chunks(cuts)
        number, i = self.nonempty(cuts, cute.arch.block_idx()[0]), cutlass.Int32(0)
        tails = cutlass.Int32(0)
        for turn in cutlass.range(chunks, unroll=1):
            work = self.work(cuts, number)
            token = work.start + CHUNK * i
            length = work.stop - token
            head = self.key_head(work)
            k = blackwell.Turn.producer(turn, keys)
            pipelines.k.producer_acquire(k)
            tail = blackwell.Turn(0, tails % 2)
            load_own_rows(pipelines.tail_k, pipelines.k, k, tail, tma.k, shared.k, length, token, head)
            if cutlass.const_expr(self.outputs):
                pipelines.q.producer_acquire(k)
                pipelines.q.arrive_and_expect_tx(k)
                tma.q.load(pipelines.q, k, shared.q, token, head)
            tails = tails + is_tail(length)
            number, i = self.following(cuts, work, number, i)
        pipelines.k.producer_tail_after(chunks)
        if cutlass.const_expr(self.outputs):
            pipelines.q.producer_tail_after(chunks)

    @cute.jit
    def load_values(self, cuts: Any, pipelines: Pipelines, shared: Shared, tma: Tma) -> None:
        """Load V of each chunk, with zeros past the end of a sequence."""
        chunks = self.chunks(cuts)
        number, i = self.nonempty(cuts, cute.arch.block_idx()[0]), cutlass.Int32(0)
        tails = cutlass.Int32(0)
        for turn in cutlass.range(chunks, unroll=1):
            work = self.work(cuts, number)
            token = work.start + CHUNK * i
            length = work.stop - token
            v = blackwell.Turn.producer(turn, self.tuning.values)
            pipelines.v.producer_acquire(v)
            tail = blackwell.Turn(0, tails % 2)
            column = self.column(work)
            load_own_rows(pipelines.tail_v, pipelines.v, v, tail, tma.v, shared.v, length, token, column)
            tails = tails + is_tail(length)
            number, i = self.following(cuts, work, number, i)
        pipelines.v.producer_tail_after(chunks)

    @cute.jit
    def store_outputs(self, cuts: Any, pipelines: Pipelines, shared: Shared, tma: Tma, o: cute.Tensor) -> None:
        """Store the o of each chunk: of a full chunk by TMA, of a shorter one only its own rows, because the
        next sequence follows."""
        done = cutlass.Int32(0)
        first, step = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        for number in cutlass.range(first, self.works(cuts), step, unroll=1):
            work = self.work(cuts, number)
            for i in cutlass.range(work.chunks, unroll=1):
                token = work.start + CHUNK * i
                stage = blackwell.Turn.consumer(done + i, self.tuning.outputs)
                s_o = shared.o[None, None, stage.index]
                pipelines.o.consumer_wait(stage)
                if token + CHUNK <= work.stop:
                    with cute.arch.elect_one():
                        tma.o.store(s_o, token, self.column(work))
                        cute.arch.cp_async_bulk_commit_group()
                        cute.arch.cp_async_bulk_wait_group(0, read=True)
                        pipelines.o.consumer_release_thread(stage)
                else:
                    store_rows(s_o, o, token, work.stop, self.column(work), self.value_heads)
                    pipelines.o.consumer_release(stage)
            done = done + work.chunks
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def store_rows(
    s_o: cute.Tensor,
    o: cute.Tensor,
    token: cutlass.Int32,
    stop: cutlass.Int32,
    column: cutlass.Int32,
    value_heads: cutlass.Constexpr,
) -> None:
    """Store rows up to the end of the sequence, 16 bytes per lane."""
    columns = cute.size(s_o, mode=[1])
    # In 64 bits: T Hv 128 may exceed 2^31.
    stride = value_heads * HEAD_DIM
    first = cutlass.Int64(token) * stride + column * columns
    g_o = cute.make_tensor((o.iterator + first).align(16), cute.make_layout((CHUNK, columns), stride=(stride, 1)))
    lane, lanes = cute.arch.lane_idx(), columns // blackwell.VECTOR
    for row in cutlass.range(lane // lanes, stop - token, WARP // lanes, unroll=1):
        r_vector = cute.make_rmem_tensor((1, blackwell.VECTOR), BF16)
        s_vector, g_vector = (
            cute.local_tile(tile, (1, blackwell.VECTOR), (row, lane % lanes)) for tile in (s_o, g_o)
        )
        cute.autovec_copy(s_vector, r_vector)
        cute.autovec_copy(r_vector, g_vector)
