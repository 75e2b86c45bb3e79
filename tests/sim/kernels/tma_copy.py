"""TMA copies: one tile a CTA through two differently swizzled buffers, and a pipelined stream of tiles.

    TmaScale    out = 2 in; source and destination each with its own major mode and swizzle
    TmaStream   out = in; one CTA walks down its column of tiles, STAGES loads and STAGES stores in flight

    name    shape            layout
    sIn     (TILE_M, TILE_N) CuTe's canonical atom of `load_kind`, 1024-byte aligned: the box of a TMA load
    sOut    (TILE_M, TILE_N) the same for `store_kind`: the box of a TMA store

Threads read sIn and write sOut element by element through CuTe's own layouts, so that a wrong swizzle in the
load cannot be undone by the same error in the store. 2x is exact in every format. Extents need not be
multiples of the tile: a load fills with zeros, a store clips.

    barrier     arrivals            who waits
    full        1 + box bytes       every thread that reads sIn
    empty       one a reading warp  the loading warp (TmaStream)
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import cpasync, tcgen05

TILE_M = 64
TILE_N = 64
STAGES = 2
THREADS = 128

AtomKind = tcgen05.SmemLayoutAtomKind


def _tile_layout(kind: Any, dtype: Any, tile: tuple[int, int]) -> cute.ComposedLayout:
    """The canonical swizzled layout of a tile; `kind` names the contiguous mode and the swizzle."""
    atom = tcgen05.make_smem_layout_atom(kind, dtype)
    return cute.tile_to_shape(atom, tile, order=(0, 1))


class TmaScale:
    """out = 2 in; `load_kind` and `store_kind` must agree with the contiguous modes of the matrices."""

    def __init__(self, load_kind: Any, store_kind: Any, tile: tuple[int, int] = (TILE_M, TILE_N)) -> None:
        self.load_kind = load_kind
        self.store_kind = store_kind
        self.tile = tile

    @cute.jit
    def __call__(self, source: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream) -> None:
        self.dtype = source.element_type
        in_layout = _tile_layout(self.load_kind, self.dtype, self.tile)
        out_layout = _tile_layout(self.store_kind, self.dtype, self.tile)
        load, tma_source = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), source, in_layout, self.tile
        )
        store, tma_out = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), out, out_layout, self.tile
        )
        grid = (*cute.ceil_div(source.shape, self.tile), 1)
        self.kernel(load, tma_source, store, tma_out, in_layout, out_layout).launch(
            grid=grid, block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        load: cute.CopyAtom,
        tma_source: cute.Tensor,
        store: cute.CopyAtom,
        tma_out: cute.Tensor,
        in_layout: cute.ComposedLayout,
        out_layout: cute.ComposedLayout,
    ) -> None:
        thread = cute.arch.thread_idx()[0]
        row, column, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        s_in = smem.allocate_tensor(self.dtype, in_layout.outer, 1024, in_layout.inner)
        s_out = smem.allocate_tensor(self.dtype, out_layout.outer, 1024, out_layout.inner)
        full = smem.allocate_array(cutlass.Int64, 1)

        g_source = cute.local_tile(tma_source, self.tile, (None, None))
        g_out = cute.local_tile(tma_out, self.tile, (None, None))
        t_in, t_source = cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(s_in, 0, 2), cute.group_modes(g_source, 0, 2)
        )
        t_out, t_target = cpasync.tma_partition(
            store, 0, cute.make_layout(1), cute.group_modes(s_out, 0, 2), cute.group_modes(g_out, 0, 2)
        )

        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, cute.size_in_bytes(self.dtype, in_layout))
            cute.copy(load, t_source[(None, row, column)], t_in, tma_bar_ptr=full)
        cute.arch.mbarrier_wait(full, 0)

        for index in cutlass.range(thread, cute.size(s_in), THREADS):
            place = (index // self.tile[1], index % self.tile[1])
            s_out[place] = (s_in[place].to(cutlass.Float32) * 2.0).to(self.dtype)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        if warp == 0:
            cute.copy(store, t_out, t_target[(None, row, column)])
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0)


class TmaStream:
    """out = in: warp 0 loads, warps 1 .. 3 copy from the load ring to the store ring, one of them stores."""

    WORKERS = 96

    @cute.jit
    def __call__(self, source: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream) -> None:
        self.dtype = source.element_type
        tile = (TILE_M, TILE_N)
        one = _tile_layout(AtomKind.K_SW128, self.dtype, tile)
        ring = cute.tile_to_shape(
            tcgen05.make_smem_layout_atom(AtomKind.K_SW128, self.dtype), (*tile, STAGES), order=(0, 1, 2)
        )
        load, tma_source = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), source, one, tile)
        store, tma_out = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), out, one, tile)
        self.box_bytes = cute.size_in_bytes(self.dtype, one)
        self.kernel(load, tma_source, store, tma_out, ring).launch(
            grid=(cute.ceil_div(source.shape[1], TILE_N), 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        load: cute.CopyAtom,
        tma_source: cute.Tensor,
        store: cute.CopyAtom,
        tma_out: cute.Tensor,
        ring: cute.ComposedLayout,
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        column = cute.arch.block_idx()[0]
        smem = cutlass.memory.SmemAllocator()
        s_in = smem.allocate_tensor(self.dtype, ring.outer, 1024, ring.inner)
        s_out = smem.allocate_tensor(self.dtype, ring.outer, 1024, ring.inner)
        barriers = smem.allocate_array(cutlass.Int64, 2 * STAGES)
        g_source = cute.local_tile(tma_source, (TILE_M, TILE_N), (None, column))
        g_out = cute.local_tile(tma_out, (TILE_M, TILE_N), (None, column))
        t_in, t_source = cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(s_in, 0, 2), cute.group_modes(g_source, 0, 2)
        )
        t_out, t_target = cpasync.tma_partition(
            store, 0, cute.make_layout(1), cute.group_modes(s_out, 0, 2), cute.group_modes(g_out, 0, 2)
        )
        producer, consumer = pipeline.PipelineTmaAsync.create(
            num_stages=STAGES,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, self.WORKERS // 32),
            tx_count=self.box_bytes,
            barrier_storage=barriers,
        ).make_participants()
        tiles = cute.size(g_source, mode=[2])
        if warp == 0:
            for tile in cutlass.range(tiles):
                empty = producer.acquire_and_advance()
                cute.copy(load, t_source[(None, tile)], t_in[(None, empty.index)], tma_bar_ptr=empty.barrier)
            producer.tail()
        else:
            self._work(warp, tiles, consumer, s_in, s_out, store, t_out, t_target)

    @cute.jit
    def _work(
        self,
        warp: cutlass.Int32,
        tiles: cutlass.Int32,
        consumer: pipeline.PipelineConsumer,
        s_in: cute.Tensor,
        s_out: cute.Tensor,
        store: cute.CopyAtom,
        t_out: cute.Tensor,
        t_target: cute.Tensor,
    ) -> None:
        worker = cute.arch.thread_idx()[0] - 32
        workers = pipeline.NamedBarrier(barrier_id=1, num_threads=self.WORKERS)
        for tile in cutlass.range(tiles):
            # The storing warp lets STAGES - 1 stores read on; the oldest has then read its buffer.
            if warp == 1:
                cute.arch.cp_async_bulk_wait_group(STAGES - 1, read=True)
            workers.arrive_and_wait()
            full = consumer.wait_and_advance()
            for index in cutlass.range(worker, TILE_M * TILE_N, self.WORKERS):
                place = (index // TILE_N, index % TILE_N)
                s_out[(*place, full.index)] = s_in[(*place, full.index)]
            # Both ways: the next copy in overwrites what was read, the copy out reads what was written.
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_warp()  # one lane releases what all have read
            full.release()
            workers.arrive_and_wait()
            if warp == 1:
                cute.copy(store, t_out[(None, full.index)], t_target[(None, tile)])
                cute.arch.cp_async_bulk_commit_group()
        if warp == 1:
            cute.arch.cp_async_bulk_wait_group(0)
