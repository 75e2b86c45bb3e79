"""A product whose left operand is in tensor memory, written there by the threads.

    D[m, n] = sum over k of A[m, k] B[n, k]            M 128, N 64, K 64; A, B of 16 bits, D in float32

    name    where   columns     layout
    tA      TMEM    0 .. 31     lane = row; two neighbours of K a column
    tD      TMEM    64 .. 127   lane = row; one column of N a column
    sB      SMEM                canonical, K-major, 128-byte swizzle; one TMA box

Thread m carries row m of A from global memory to tA and row m of D back. Warp 0 loads B and multiplies.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from enum import IntEnum
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils.blackwell_helpers as sm100
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

M, N, K = TILE = (128, 64, 64)
THREADS = 128
COLUMNS = 128
LANE_STRIDE = 1 << 16


class Column(IntEnum):
    """Where the operand and the result start."""

    A = 0
    D = 64


class TmemOperand:
    """`dtype` is a CuTe 16-bit float."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, stream: cuda.CUstream) -> None:
        mma = sm100.make_trivial_tiled_mma(
            self.dtype,
            self.dtype,
            OperandMajorMode.K,
            OperandMajorMode.K,
            cutlass.Float32,
            tcgen05.CtaGroup.ONE,
            (M, N),
            tcgen05.OperandSource.TMEM,
        )
        b_layout = sm100.make_smem_layout_b(mma, TILE, self.dtype, 1)
        load, tma_b = cute.nvgpu.make_tiled_tma_atom_B(
            cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE),
            b,
            cute.select(b_layout, mode=[0, 1, 2]),
            TILE,
            mma,
        )
        self.kernel(mma, a, load, tma_b, d, b_layout).launch(
            grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        a: cute.Tensor,
        load: cute.CopyAtom,
        tma_b: cute.Tensor,
        d: cute.Tensor,
        b_layout: cute.ComposedLayout,
    ) -> None:
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        s_b = smem.allocate_tensor(self.dtype, b_layout.outer, 1024, b_layout.inner)
        loaded = smem.allocate_array(cutlass.Int64, 1)
        multiplied = smem.allocate_array(cutlass.Int64, 1)
        tmem = cutlass.memory.TmemAllocator(
            smem.allocate(cutlass.Int32),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS),
        )
        if thread == 0:
            cute.arch.mbarrier_init(loaded, 1)
            cute.arch.mbarrier_init(multiplied, 1)
        cute.arch.mbarrier_init_fence()
        tmem.allocate(COLUMNS)
        tmem.wait_for_alloc()
        tmem.relinquish_alloc_permit()
        base = tmem.retrieve_ptr(cutlass.Float32)

        g_b = cute.local_tile(tma_b, TILE, (None, 0, 0), proj=(None, 1, 1))
        t_s, t_g = cpasync.tma_partition(
            load,
            0,
            cute.make_layout(1),
            cute.group_modes(s_b, 0, 3),
            cute.group_modes(mma.get_slice(0).partition_B(g_b), 0, 3),
        )
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(loaded, N * K * self.dtype.width // 8)
            cute.copy(load, t_g, t_s[(None, 0)], tma_bar_ptr=loaded)
        self._fill_operand(base + Column.A, a, thread)
        cute.arch.sync_threads()
        if warp == 0:
            cute.arch.mbarrier_wait(loaded, 0)
            self._multiply(mma, base, s_b)
            with cute.arch.elect_one():
                tcgen05.commit(multiplied)
        cute.arch.mbarrier_wait(multiplied, 0)
        self._store_result(base + Column.D, d, thread)
        cute.arch.sync_threads()
        tmem.free(base)

    @cute.jit
    def _fill_operand(self, address: cute.Pointer, a: cute.Tensor, thread: cutlass.Int32) -> None:
        """Row `thread` of A, two neighbours in a 32-bit register."""
        t_a = cute.make_tensor(address, cute.make_layout((M, K // 2), stride=(LANE_STRIDE, 1)))
        atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition.x32), cutlass.Float32)
        store = tcgen05.make_tmem_copy(atom, t_a)
        slice_ = store.get_slice(thread)
        pairs = cute.make_rmem_tensor(slice_.partition_S(t_a).shape, cutlass.Float32)
        cute.autovec_copy(cute.recast_tensor(a[thread, None], cutlass.Float32), cute.coalesce(pairs))
        cute.copy(store, pairs, slice_.partition_D(t_a))
        cute.arch.fence_view_async_tmem_store()

    @cute.jit
    def _multiply(self, mma: cute.TiledMma, base: cute.Pointer, s_b: cute.Tensor) -> None:
        shape_a = mma.partition_shape_A((M, K))
        t_a = cute.make_tensor(
            cute.recast_ptr(base + Column.A, dtype=self.dtype), mma.make_fragment_A(shape_a).layout
        )
        shape_d = mma.partition_shape_C((M, N))
        t_d = cute.make_tensor(base + Column.D, mma.make_fragment_C(shape_d).layout)
        r_b = mma.make_fragment_B(s_b)
        mma.set(tcgen05.Field.ACCUMULATE, False)
        for block in cutlass.range_constexpr(cute.size(t_a, mode=[2])):
            cute.gemm(mma, t_d, t_a[None, None, block], r_b[None, None, block, 0], t_d)
            mma.set(tcgen05.Field.ACCUMULATE, True)

    @cute.jit
    def _store_result(self, address: cute.Pointer, d: cute.Tensor, thread: cutlass.Int32) -> None:
        """Row `thread` of D."""
        t_d = cute.make_tensor(address, cute.make_layout((M, N), stride=(LANE_STRIDE, 1)))
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x64), cutlass.Float32)
        load = tcgen05.make_tmem_copy(atom, t_d)
        slice_ = load.get_slice(thread)
        values = cute.make_rmem_tensor(slice_.partition_D(t_d).shape, cutlass.Float32)
        cute.copy(load, slice_.partition_S(t_d), values)
        cute.arch.fence_view_async_tmem_load()
        cute.autovec_copy(cute.coalesce(values), d[thread, None])
