"""A persistent tcgen05 GEMM: fewer CTAs than tiles, the epilogue of one tile under the products of the next.

    C[m, n] = sum over k of A[m, k] B[n, k]            A, B of 16 bits, K contiguous; C float32

    name    where   shape                           layout
    sA, sB  SMEM    (TILE_M or N, TILE_K, STAGES)   canonical K-major, 128-byte swizzle
    sC      SMEM    (TILE_M, TILE_N)                rows of 128 bytes, 128-byte swizzle, for the TMA store
    tAcc    TMEM    (TILE_M, TILE_N, 2)             two accumulators side by side

    role        warps   for each of the CTA's tiles
    EPILOGUE    0 .. 3  wait for an accumulator, TMEM -> registers -> sC, release; warp 0 stores sC by TMA
    LOAD        4       TMA of A and B into the ring, over tile boundaries
    MMA         5       wait for a free accumulator, multiply over K, commit

Tile t of CTA b is number b + t x CTAs, rows first. The ring's state runs on from tile to tile, so phases of
all pipelines differ between tiles whenever K / TILE_K is not a multiple of STAGES.
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

TILE_M = 128
TILE_N = 64
TILE_K = 64
STAGES = 3
ACCUMULATORS = 2
EPILOGUE_THREADS = 128
THREADS = 192


class Role(IntEnum):
    """First warp of each role."""

    EPILOGUE = 0
    LOAD = 4
    MMA = 5


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own."""

    TMEM = 1
    EPILOGUE = 2


class PersistentGemm:
    """`ctas` is the size of the grid; each takes every `ctas`-th tile."""

    TILE = (TILE_M, TILE_N, TILE_K)

    def __init__(self, dtype: Any, ctas: int) -> None:
        self.dtype = dtype
        self.ctas = ctas

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: cuda.CUstream) -> None:
        mma = sm100.make_trivial_tiled_mma(
            self.dtype,
            self.dtype,
            OperandMajorMode.K,
            OperandMajorMode.K,
            cutlass.Float32,
            tcgen05.CtaGroup.ONE,
            (TILE_M, TILE_N),
        )
        a_ring = sm100.make_smem_layout_a(mma, self.TILE, self.dtype, STAGES)
        b_ring = sm100.make_smem_layout_b(mma, self.TILE, self.dtype, STAGES)
        c_tile = cute.tile_to_shape(
            tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, cutlass.Float32),
            (TILE_M, TILE_N),
            order=(0, 1),
        )
        a_box = cute.select(a_ring, mode=[0, 1, 2])
        b_box = cute.select(b_ring, mode=[0, 1, 2])
        self.stage_bytes = cute.size_in_bytes(self.dtype, a_box) + cute.size_in_bytes(self.dtype, b_box)
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        load_a, tma_a = cute.nvgpu.make_tiled_tma_atom_A(load, a, a_box, self.TILE, mma)
        load_b, tma_b = cute.nvgpu.make_tiled_tma_atom_B(load, b, b_box, self.TILE, mma)
        store, tma_c = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), c, c_tile, (TILE_M, TILE_N)
        )
        self.kernel(mma, load_a, tma_a, load_b, tma_b, store, tma_c, a_ring, b_ring, c_tile).launch(
            grid=(self.ctas, 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        load_a: cute.CopyAtom,
        tma_a: cute.Tensor,
        load_b: cute.CopyAtom,
        tma_b: cute.Tensor,
        store: cute.CopyAtom,
        tma_c: cute.Tensor,
        a_ring: cute.ComposedLayout,
        b_ring: cute.ComposedLayout,
        c_tile: cute.ComposedLayout,
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        s_a = smem.allocate_tensor(self.dtype, a_ring.outer, 1024, a_ring.inner)
        s_b = smem.allocate_tensor(self.dtype, b_ring.outer, 1024, b_ring.inner)
        s_c = smem.allocate_tensor(cutlass.Float32, c_tile.outer, 1024, c_tile.inner)
        operand_barriers = smem.allocate_array(cutlass.Int64, 2 * STAGES)
        accumulator_barriers = smem.allocate_array(cutlass.Int64, 2 * ACCUMULATORS)
        tmem = cutlass.memory.TmemAllocator(
            smem.allocate(cutlass.Int32),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=Barrier.TMEM, num_threads=THREADS),
            allocator_warp_id=Role.MMA,
        )
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        operands = pipeline.PipelineTmaUmma.create(
            num_stages=STAGES,
            producer_group=one,
            consumer_group=one,
            tx_count=self.stage_bytes,
            barrier_storage=operand_barriers,
        )
        accumulators = pipeline.PipelineUmmaAsync.create(
            num_stages=ACCUMULATORS,
            producer_group=one,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, EPILOGUE_THREADS),
            barrier_storage=accumulator_barriers,
        )
        tmem.allocate(ACCUMULATORS * TILE_N)
        tmem.wait_for_alloc()
        tmem_address = tmem.retrieve_ptr(cutlass.Float32)
        shape = cute.append(mma.partition_shape_C((TILE_M, TILE_N)), ACCUMULATORS)
        t_acc = cute.make_tensor(tmem_address, mma.make_fragment_C(shape).layout)

        math = mma.get_slice(0)
        g_a = math.partition_A(cute.local_tile(tma_a, self.TILE, (None, None, None), proj=(1, None, 1)))
        g_b = math.partition_B(cute.local_tile(tma_b, self.TILE, (None, None, None), proj=(None, 1, 1)))
        g_c = cute.local_tile(tma_c, (TILE_M, TILE_N), (None, None))
        rows = cute.size(g_c, mode=[2])
        tiles = rows * cute.size(g_c, mode=[3])
        if warp == Role.LOAD:
            self._load(operands, tiles, rows, load_a, g_a, s_a, load_b, g_b, s_b)
        if warp == Role.MMA:
            self._multiply(operands, accumulators, tiles, cute.size(g_a, mode=[4]), mma, s_a, s_b, t_acc)
            tmem.relinquish_alloc_permit()
        if warp < Role.LOAD:
            self._store(accumulators, tiles, rows, math, t_acc, s_c, store, g_c)
        cute.arch.sync_threads()
        tmem.free(tmem_address)

    @cute.jit
    def _load(
        self,
        operands: pipeline.PipelineTmaUmma,
        tiles: cutlass.Int32,
        rows: cutlass.Int32,
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
        for tile in cutlass.range(cute.arch.block_idx()[0], tiles, self.ctas):
            row, column = tile % rows, tile // rows
            for k in cutlass.range(cute.size(g_a, mode=[4]), unroll=1):
                empty = producer.acquire_and_advance()
                cute.copy(load_a, t_ga[(None, row, k)], t_sa[(None, empty.index)], tma_bar_ptr=empty.barrier)
                cute.copy(
                    load_b, t_gb[(None, column, k)], t_sb[(None, empty.index)], tma_bar_ptr=empty.barrier
                )
        producer.tail()

    @cute.jit
    def _multiply(
        self,
        operands: pipeline.PipelineTmaUmma,
        accumulators: pipeline.PipelineUmmaAsync,
        tiles: cutlass.Int32,
        k_tiles: cutlass.Int32,
        mma: cute.TiledMma,
        s_a: cute.Tensor,
        s_b: cute.Tensor,
        t_acc: cute.Tensor,
    ) -> None:
        r_a = mma.make_fragment_A(s_a)
        r_b = mma.make_fragment_B(s_b)
        consumer = operands.make_consumer()
        producer = accumulators.make_producer()
        for _ in cutlass.range(cute.arch.block_idx()[0], tiles, self.ctas):
            result = producer.acquire_and_advance()
            t_sum = t_acc[None, None, None, result.index]
            mma.set(tcgen05.Field.ACCUMULATE, False)
            for _k in cutlass.range(k_tiles, unroll=1):
                full = consumer.wait_and_advance()
                for block in cutlass.range_constexpr(cute.size(r_a, mode=[2])):
                    place = (None, None, block, full.index)
                    cute.gemm(mma, t_sum, r_a[place], r_b[place], t_sum)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                full.release()
            result.commit()
        producer.tail()

    @cute.jit
    def _store(
        self,
        accumulators: pipeline.PipelineUmmaAsync,
        tiles: cutlass.Int32,
        rows: cutlass.Int32,
        math: cute.ThrMma,
        t_acc: cute.Tensor,
        s_c: cute.Tensor,
        store: cute.CopyAtom,
        g_c: cute.Tensor,
    ) -> None:
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        together = pipeline.NamedBarrier(barrier_id=Barrier.EPILOGUE, num_threads=EPILOGUE_THREADS)
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), cutlass.Float32)
        copy = tcgen05.make_tmem_copy(atom, t_acc[(None, None), 0, 0, 0])
        slice_ = copy.get_slice(thread)
        source = slice_.partition_S(t_acc[(None, None), 0, 0, None])
        target = slice_.partition_D(math.partition_C(s_c)[(None, None), 0, 0])
        values = cute.make_rmem_tensor(target.shape, cutlass.Float32)
        t_sc, t_gc = cpasync.tma_partition(
            store, 0, cute.make_layout(1), cute.group_modes(s_c, 0, 2), cute.group_modes(g_c, 0, 2)
        )
        consumer = accumulators.make_consumer()
        for tile in cutlass.range(cute.arch.block_idx()[0], tiles, self.ctas, unroll=1):
            full = consumer.wait_and_advance()
            cute.copy(copy, source[None, None, None, full.index], values)
            cute.arch.fence_view_async_tmem_load()
            full.release()
            # sC is free again once the last store has read it; only warp 0 knows.
            if warp == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            together.arrive_and_wait()
            cute.autovec_copy(values, target)
            cute.arch.fence_proxy("async.shared", space="cta")
            together.arrive_and_wait()
            if warp == 0:
                cute.copy(store, t_sc, t_gc[(None, tile % rows, tile // rows)])
                cute.arch.cp_async_bulk_commit_group()
        if warp == 0:
            cute.arch.cp_async_bulk_wait_group(0)
