# SPDX-License-Identifier: Apache-2.0
"""Kernels that commit one fault each if told to, at the line marked `# here`, and are right otherwise."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import cpasync, tcgen05

THREADS = 128
TILE = (64, 64)
COLUMNS = 32


class Faulty:
    """`broken` is fixed at compile time; `__call__(x, y)` writes y from x."""

    def __init__(self, broken: bool) -> None:
        self.broken = broken


class OutOfBounds(Faulty):
    """y = x, with a guard that is off by one."""

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(x, y).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor) -> None:
        thread = cute.arch.thread_idx()[0]
        limit = x.shape[0]
        if cutlass.const_expr(self.broken):
            limit += 1
        if thread < limit:
            y[thread] = x[thread]  # here


class Deadlock(Faulty):
    """y = x after all threads have met at an mbarrier that expects one thread more than comes."""

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(x, y).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor) -> None:
        thread = cute.arch.thread_idx()[0]
        barrier = cutlass.memory.SmemAllocator().allocate_array(cutlass.Int64, 1)
        if thread == 0:
            cute.arch.mbarrier_init(barrier, THREADS + (1 if self.broken else 0))
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        cute.arch.mbarrier_arrive(barrier)
        cute.arch.mbarrier_wait(barrier, 0)  # here
        if thread < x.shape[0]:
            y[thread] = x[thread]


class Uninitialised(Faulty):
    """y = x reversed, through shared memory that one half of the threads forgets to write."""

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(x, y).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor) -> None:
        thread = cute.arch.thread_idx()[0]
        buffer = cutlass.memory.SmemAllocator().allocate_tensor(
            cutlass.Float32, cute.make_layout(THREADS), 16
        )
        if thread < (THREADS // 2 if self.broken else THREADS):
            buffer[thread] = x[thread]
        cute.arch.sync_threads()
        y[thread] = buffer[THREADS - 1 - thread]  # here


class TmemLeak(Faulty):
    """y = x through TMEM that is not given back."""

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(x, y).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor) -> None:
        thread = cute.arch.thread_idx()[0]
        tmem = cutlass.memory.TmemAllocator(
            cutlass.memory.SmemAllocator().allocate(cutlass.Int32),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS),
        )
        tmem.allocate(COLUMNS)  # here
        tmem.wait_for_alloc()
        address = tmem.retrieve_ptr(cutlass.Float32)
        t_all = cute.make_tensor(address, cute.make_layout((THREADS, COLUMNS), stride=(65536, 1)))
        store = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition.x32), cutlass.Float32), t_all
        )
        load = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), cutlass.Float32), t_all
        )
        place = store.get_slice(thread).partition_D(t_all)
        values = cute.make_rmem_tensor(store.get_slice(thread).partition_S(t_all).shape, cutlass.Float32)
        values.fill(x[thread])
        cute.copy(store, values, place)
        cute.arch.fence_view_async_tmem_store()
        back = cute.make_rmem_tensor(values.shape, cutlass.Float32)
        cute.copy(load, load.get_slice(thread).partition_S(t_all), back)
        cute.arch.fence_view_async_tmem_load()
        y[thread] = back[COLUMNS - 1]
        cute.arch.sync_threads()
        if cutlass.const_expr(not self.broken):
            tmem.free(address)


class MissingWait(Faulty):
    """y = x by a TMA load that nobody waits for."""

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream) -> None:
        layout = cute.make_layout(TILE, stride=(TILE[1], 1))
        load, tma_x = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, TILE)
        self.kernel(load, tma_x, y, layout).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, load: cute.CopyAtom, tma_x: cute.Tensor, y: cute.Tensor, layout: cute.Layout) -> None:
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        s_x = smem.allocate_tensor(cutlass.Float32, layout, 1024)
        full = smem.allocate_array(cutlass.Int64, 1)
        g_x = cute.local_tile(tma_x, TILE, (0, 0))
        t_s, t_g = cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(s_x, 0, 2), cute.group_modes(g_x, 0, 2)
        )
        if thread == 0:
            cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, cute.size_in_bytes(cutlass.Float32, layout))
            cute.copy(load, t_g, t_s, tma_bar_ptr=full)
        if cutlass.const_expr(not self.broken):
            cute.arch.mbarrier_wait(full, 0)
        for index in cutlass.range(thread, TILE[0] * TILE[1], THREADS):
            place = (index // TILE[1], index % TILE[1])
            y[place] = s_x[place]
        if cutlass.const_expr(self.broken):
            # Late enough that the numbers are wrong, early enough that the load does not outlive the CTA.
            cute.arch.mbarrier_wait(full, 0)


class Divergence(Faulty):
    """y = x with a CTA barrier that the upper half of each warp does not reach."""

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(x, y).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor) -> None:
        thread = cute.arch.thread_idx()[0]
        if thread % 32 < (16 if self.broken else 32):
            cute.arch.sync_threads()  # here
        y[thread] = x[thread]
