"""EPILOGUE of kernel_sm100.py: outputs from TMEM to memory."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline

from gdnbench_kernels import blackwell
from gdnbench_kernels.plan import WARP
from gdnbench_kernels.swa_decode.sm100_plan import (
    FEATURES,
    HALF,
    HEADS,
    PLAN,
    T_EVEN,
    Barrier,
    Pipelines,
    PipelineState,
    Role,
    Shared,
    TileScheduler,
    base_of,
    consumer_state,
    half_mma,
)
from gdnbench_kernels.swa_decode.sm100_softmax import BF16, ROWS, row_of, thread_of


@dataclass(frozen=True)
class Output:
    """The role. `tiled`: an item may have several tiles of entries, as in `sm100_softmax`."""

    tiled: bool
    tma_o: Any

    @property
    def tmas(self) -> tuple[blackwell.Tma, ...]:
        """The TMA copies of the role."""
        return (self.tma_o,)

    @cute.jit
    def write(
        self, scheduler: TileScheduler, pipelines: Pipelines, shared: Shared, base: cute.Pointer
    ) -> None:
        """Divide, round and store o, a quarter of the features at a time. Between the tiles of an item,
        multiply o by what SOFTMAX says."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        r_inverse = cute.make_rmem_tensor((ROWS,), cutlass.Float32)
        step = cutlass.Int32(0)
        for turn in cutlass.range(scheduler.count, unroll=1):
            if cutlass.const_expr(self.tiled):
                tiles = scheduler.tiles_of(turn)
                for index in cutlass.range(tiles - 1, unroll=1):
                    take_factors(step + index, pipelines, shared, thread_of(step), r_inverse)
                    self._rescale(step + index, scheduler, pipelines, base, r_inverse)
                step += tiles
                self._write_item(turn, step - 1, scheduler, pipelines, shared, base, warp, r_inverse)
            else:
                self._write_item(turn, turn, scheduler, pipelines, shared, base, warp, r_inverse)
        self._drain(warp)

    @cute.jit
    def _drain(self, warp: cutlass.Int32) -> None:
        if warp == Role.EPILOGUE:
            cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def _rescale(
        self,
        step: cutlass.Int32,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        base: cute.Pointer,
        r_change: cute.Tensor,
    ) -> None:
        """Multiply the CTA's features of o in tensor memory."""
        changes = cute.arch.vote_any_sync((r_change[0] != 1.0) | (r_change[1] != 1.0))
        for quarter in cutlass.range(scheduler.first, scheduler.stop, unroll=1):
            state = consumer_state(step, quarter)
            pipelines.o.consumer_wait(state)
            if changes:
                blackwell.after_thread_sync()
                thread = thread_of(quarter)
                copy = blackwell.TmemCopy.create(half_mma(), (HEADS, HALF), base_of(quarter, base), thread)
                r_acc = cute.make_rmem_tensor(copy.coords.shape, cutlass.Float32)
                for half in cutlass.range_constexpr(FEATURES // HALF):
                    copy.load(T_EVEN, quarter // 2, half * HALF, r_acc)
                    cute.arch.fence_view_async_tmem_load()
                    for i in cutlass.range_constexpr(cute.size(r_acc)):
                        r_acc[i] = r_acc[i] * r_change[i // 2 % ROWS]
                    copy.store(T_EVEN, quarter // 2, half * HALF, r_acc)
                cute.arch.fence_view_async_tmem_store()
                blackwell.before_thread_sync()
            pipelines.o.consumer_release(state)

    @cute.jit
    def _write_item(
        self,
        turn: cutlass.Int32,
        step: cutlass.Int32,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        shared: Shared,
        base: cute.Pointer,
        warp: cutlass.Int32,
        r_inverse: cute.Tensor,
    ) -> None:
        thread = cute.arch.thread_idx()[0] - WARP * Role.EPILOGUE
        threads = PLAN.threads_of(Role.EPILOGUE)
        together = pipeline.NamedBarrier(barrier_id=Barrier.EPILOGUE, num_threads=threads)
        token, head = scheduler.work_tile(turn)
        take_factors(step, pipelines, shared, thread, r_inverse)
        for quarter in cutlass.range(scheduler.first, scheduler.stop, unroll=1):
            if warp == Role.EPILOGUE:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            together.arrive_and_wait()
            if cutlass.const_expr(self.tiled):
                thread = thread_of(quarter)
            tmem_copy = blackwell.TmemCopy.create(half_mma(), (HEADS, HALF), base_of(quarter, base), thread)
            form_o(consumer_state(step, quarter), pipelines, shared.o[None, None, 0], tmem_copy, r_inverse)
            cute.arch.fence_proxy("async.shared", space="cta")
            together.arrive_and_wait()
            if warp == Role.EPILOGUE:
                with cute.arch.elect_one():
                    self.tma_o.store(shared.o[None, None, 0], head, quarter, token)
                    cute.arch.cp_async_bulk_commit_group()


@cute.jit
def take_factors(
    step: cutlass.Int32,
    pipelines: Pipelines,
    shared: Shared,
    thread: cutlass.Int32,
    r_inverse: cute.Tensor,
) -> None:
    """What SOFTMAX wrote for this thread's rows after tile `step`."""
    pipelines.inverse.consumer_wait(consumer_state(step))
    for row in cutlass.range_constexpr(ROWS):
        r_inverse[row] = shared.inverse[row_of(thread, row), 0]
    pipelines.inverse.consumer_release(consumer_state(step))


@cute.jit
def form_o(
    state: PipelineState,
    pipelines: Pipelines,
    s_o: cute.Tensor,
    tmem_copy: blackwell.TmemCopy,
    r_inverse: cute.Tensor,
) -> None:
    """Write a quarter of o to s_o, half of its columns at a time."""
    r_acc = cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32)
    r_o = cute.make_rmem_tensor(tmem_copy.coords.shape, BF16)
    pipelines.o.consumer_wait(state)
    blackwell.after_thread_sync()
    for half in cutlass.range_constexpr(FEATURES // HALF):
        load_scaled(half, state, pipelines, tmem_copy, r_acc, r_inverse)
        r_o.store(r_acc.load().to(BF16))
        tmem_copy.stmatrix(r_o, cute.local_tile(s_o, (HEADS, HALF), (0, half)))


@cute.jit
def load_scaled(
    half: cutlass.Constexpr,
    state: PipelineState,
    pipelines: Pipelines,
    tmem_copy: blackwell.TmemCopy,
    r_acc: cute.Tensor,
    r_inverse: cute.Tensor,
) -> None:
    """Half of the columns of a quarter of o, divided; releases the quarter after the last half."""
    tmem_copy.load(T_EVEN, state.index // 2, half * HALF, r_acc)
    cute.arch.fence_view_async_tmem_load()
    if cutlass.const_expr(half == FEATURES // HALF - 1):
        blackwell.before_thread_sync()
        pipelines.o.consumer_release(state)
    for i in cutlass.range_constexpr(cute.size(r_acc)):
        r_acc[i] = r_acc[i] * r_inverse[i // 2 % ROWS]
