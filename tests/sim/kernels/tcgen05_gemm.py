"""A warp-specialised tcgen05 GEMM, one output tile a CTA, any M, N and K.

    C[m, n] = sum over k of A[m, k] B[n, k]            A, B of `Gemm.dtype`, sums and C in float32

    name    where   shape                       layout
    sA      SMEM    (tile_m, tile_k, STAGES)    canonical, 128-byte swizzle, K- or M-major
    sB      SMEM    (tile_n, tile_k, STAGES)    the same for N
    tAcc    TMEM    (tile_m, tile_n)            f32; lane = row; for tile_m 64: 32 (row/16) + row%16

    role        warps   does
    EPILOGUE    0 .. 3  TMEM -> registers -> C, each warp its own quarter of the lanes
    LOAD        4       TMA of A and B into the ring
    MMA         5       allocates TMEM, tcgen05.mma over K, commits

    pipeline    full (who arrives)          empty (who arrives)
    operands    TMA: 1 + box bytes          MMA commit: 1
    accumulator MMA commit: 1               128 epilogue threads

Tails: a load fills with zeros outside A and B, which add nothing; the epilogue compares each coordinate with
the shape of C. K = 0 is not allowed (the accumulator would never be written).
"""  # SPDX-License-Identifier: Apache-2.0

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

STAGES = 3
TILE_K_BYTES = 128


class Role(IntEnum):
    """First warp of each role."""

    EPILOGUE = 0
    LOAD = 4
    MMA = 5


EPILOGUE_THREADS = 128
THREADS = 192


# Each takes 16 columns. With tile_m 64 only 16 of each warp's 32 lanes are filled: no 32-lane shape there.
LOADS = {
    "32x32b": tcgen05.Ld32x32bOp(tcgen05.Repetition.x16),
    "16x64b": tcgen05.Ld16x64bOp(tcgen05.Repetition.x8),
    "16x128b": tcgen05.Ld16x128bOp(tcgen05.Repetition.x4),
    "16x256b": tcgen05.Ld16x256bOp(tcgen05.Repetition.x2),
}


@dataclass(frozen=True)
class Gemm:
    """The choices fixed at compile time; `a_major` and `b_major` name the contiguous mode of the operands."""

    dtype: Any
    a_major: OperandMajorMode = OperandMajorMode.K
    b_major: OperandMajorMode = OperandMajorMode.K
    tile_m: int = 128
    tile_n: int = 64
    load_shape: str = "32x32b"
    # Bytes between a multiple of 1,024 and the start of sA; a multiple of 128.
    displaced: int = 0

    @property
    def operand(self) -> Any:
        """float32 in memory multiplies as tf32."""
        return cutlass.TFloat32 if self.dtype is cutlass.Float32 else self.dtype

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.tile_m, self.tile_n, TILE_K_BYTES * 8 // self.dtype.width)

    @property
    def columns(self) -> int:
        """TMEM columns of the accumulator: a power of two, at least 32."""
        return max(32, 1 << (self.tile_n - 1).bit_length())

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: cuda.CUstream) -> None:
        mma = sm100.make_trivial_tiled_mma(
            self.operand,
            self.operand,
            self.a_major,
            self.b_major,
            cutlass.Float32,
            tcgen05.CtaGroup.ONE,
            (self.tile_m, self.tile_n),
            tcgen05.OperandSource.SMEM,
        )
        a_ring = sm100.make_smem_layout_a(mma, self.tile, self.operand, STAGES)
        b_ring = sm100.make_smem_layout_b(mma, self.tile, self.operand, STAGES)
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        load_a, tma_a = cute.nvgpu.make_tiled_tma_atom_A(
            load, a, cute.select(a_ring, mode=[0, 1, 2]), self.tile, mma
        )
        load_b, tma_b = cute.nvgpu.make_tiled_tma_atom_B(
            load, b, cute.select(b_ring, mode=[0, 1, 2]), self.tile, mma
        )
        grid = (*cute.ceil_div(c.shape, self.tile[:2]), 1)
        self.kernel(mma, load_a, tma_a, load_b, tma_b, c, a_ring, b_ring).launch(
            grid=grid, block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        load_a: cute.CopyAtom,
        tma_a: cute.Tensor,
        load_b: cute.CopyAtom,
        tma_b: cute.Tensor,
        c: cute.Tensor,
        a_ring: cute.ComposedLayout,
        b_ring: cute.ComposedLayout,
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        row, column, _ = cute.arch.block_idx()
        smem = cutlass.memory.SmemAllocator()
        alignment = 1024
        if cutlass.const_expr(self.displaced > 0):
            smem.allocate(self.displaced, 1024)
            alignment = 128
        s_a = smem.allocate_tensor(self.operand, a_ring.outer, alignment, a_ring.inner)
        s_b = smem.allocate_tensor(self.operand, b_ring.outer, alignment, b_ring.inner)
        operand_barriers = smem.allocate_array(cutlass.Int64, 2 * STAGES)
        accumulator_barriers = smem.allocate_array(cutlass.Int64, 2)
        tmem = cutlass.memory.TmemAllocator(
            smem.allocate(cutlass.Int32),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS),
            allocator_warp_id=Role.MMA,
        )
        if warp == Role.LOAD:
            cpasync.prefetch_descriptor(load_a)
            cpasync.prefetch_descriptor(load_b)
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        operands = pipeline.PipelineTmaUmma.create(
            num_stages=STAGES,
            producer_group=one,
            consumer_group=one,
            tx_count=self._stage_bytes(a_ring, b_ring),
            barrier_storage=operand_barriers,
        )
        accumulator = pipeline.PipelineUmmaAsync.create(
            num_stages=1,
            producer_group=one,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, EPILOGUE_THREADS),
            barrier_storage=accumulator_barriers,
        )
        tmem.allocate(self.columns)
        tmem.wait_for_alloc()
        tmem_address = tmem.retrieve_ptr(cutlass.Float32)
        shape = mma.partition_shape_C(self.tile[:2])
        t_acc = cute.make_tensor(tmem_address, mma.make_fragment_C(shape).layout)

        thread_mma = mma.get_slice(0)
        g_a = cute.local_tile(tma_a, self.tile, (row, None, None), proj=(1, None, 1))
        g_b = cute.local_tile(tma_b, self.tile, (None, column, None), proj=(None, 1, 1))
        if warp == Role.LOAD:
            self._load(
                operands, load_a, thread_mma.partition_A(g_a), s_a, load_b, thread_mma.partition_B(g_b), s_b
            )
        if warp == Role.MMA:
            self._multiply(operands, accumulator, mma, s_a, s_b, t_acc, cute.size(g_a, mode=[2]))
            tmem.relinquish_alloc_permit()
        if warp < Role.LOAD:
            self._store(accumulator, thread_mma, t_acc, c, row, column)
        cute.arch.sync_threads()
        tmem.free(tmem_address)

    def _stage_bytes(self, a_ring: cute.ComposedLayout, b_ring: cute.ComposedLayout) -> int:
        layouts = (cute.select(ring, mode=[0, 1, 2]) for ring in (a_ring, b_ring))
        return sum(cute.size_in_bytes(self.operand, layout) for layout in layouts)

    @cute.jit
    def _load(
        self,
        operands: pipeline.PipelineTmaUmma,
        load_a: cute.CopyAtom,
        g_a: cute.Tensor,
        s_a: cute.Tensor,
        load_b: cute.CopyAtom,
        g_b: cute.Tensor,
        s_b: cute.Tensor,
    ) -> None:
        one = cute.make_layout(1)
        t_sa, t_ga = cpasync.tma_partition(
            load_a, 0, one, cute.group_modes(s_a, 0, 3), cute.group_modes(g_a, 0, 3)
        )
        t_sb, t_gb = cpasync.tma_partition(
            load_b, 0, one, cute.group_modes(s_b, 0, 3), cute.group_modes(g_b, 0, 3)
        )
        producer = operands.make_producer()
        for k in cutlass.range(cute.size(g_a, mode=[3])):
            empty = producer.acquire_and_advance()
            cute.copy(load_a, t_ga[(None, k)], t_sa[(None, empty.index)], tma_bar_ptr=empty.barrier)
            cute.copy(load_b, t_gb[(None, k)], t_sb[(None, empty.index)], tma_bar_ptr=empty.barrier)
        producer.tail()

    @cute.jit
    def _multiply(
        self,
        operands: pipeline.PipelineTmaUmma,
        accumulator: pipeline.PipelineUmmaAsync,
        mma: cute.TiledMma,
        s_a: cute.Tensor,
        s_b: cute.Tensor,
        t_acc: cute.Tensor,
        k_tiles: cutlass.Int32,
    ) -> None:
        r_a = mma.make_fragment_A(s_a)
        r_b = mma.make_fragment_B(s_b)
        consumer = operands.make_consumer()
        producer = accumulator.make_producer()
        result = producer.acquire_and_advance()
        mma.set(tcgen05.Field.ACCUMULATE, False)
        for _ in cutlass.range(k_tiles):
            full = consumer.wait_and_advance()
            for block in cutlass.range_constexpr(cute.size(r_a, mode=[2])):
                place = (None, None, block, full.index)
                cute.gemm(mma, t_acc, r_a[place], r_b[place], t_acc)
                mma.set(tcgen05.Field.ACCUMULATE, True)
            full.release()
        result.commit()
        producer.tail()

    @cute.jit
    def _store(
        self,
        accumulator: pipeline.PipelineUmmaAsync,
        thread_mma: cute.ThrMma,
        t_acc: cute.Tensor,
        c: cute.Tensor,
        row: cutlass.Int32,
        column: cutlass.Int32,
    ) -> None:
        thread = cute.arch.thread_idx()[0]
        coordinates = cute.local_tile(cute.make_identity_tensor(c.shape), self.tile[:2], (row, column))
        g_c = cute.local_tile(c, self.tile[:2], (row, column))
        atom = cute.make_copy_atom(LOADS[self.load_shape], cutlass.Float32)
        copy = tcgen05.make_tmem_copy(atom, t_acc[(None, None), 0, 0])
        slice_ = copy.get_slice(thread)
        source = slice_.partition_S(t_acc[(None, None), 0, 0])
        where = slice_.partition_D(thread_mma.partition_C(coordinates)[(None, None), 0, 0])
        target = slice_.partition_D(thread_mma.partition_C(g_c)[(None, None), 0, 0])
        values = cute.make_rmem_tensor(where.shape, cutlass.Float32)
        full = accumulator.make_consumer().wait_and_advance()
        cute.copy(copy, source, values)
        cute.arch.fence_view_async_tmem_load()
        full.release()
        for index in cutlass.range(cute.size(values), unroll_full=True):
            if cute.elem_less(where[index], c.shape):
                target[index] = values[index]
