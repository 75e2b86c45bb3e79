# SPDX-License-Identifier: Apache-2.0
"""A GEMM of the older kind: cp.async into a swizzled ring, ldmatrix, mma.sync.

    C[m, n] = sum over k of A[m, k] B[n, k]            A, B of one 16-bit type, sums and C in float32

    name    shape                       layout
    sA      (TILE_M, TILE_K, STAGES)    rows of 64 bytes, 64-byte swizzle
    sB      (TILE_N, TILE_K, STAGES)    the same
    rC      32 values a thread          accumulators of 2 x 2 warps, m16n8k16 each

All four warps load, wait for the oldest group, multiply. K a multiple of 8 (a chunk); M and N any: a thread
writes zeros where its chunk lies outside the matrix.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, warp

TILE_M = 64
TILE_N = 64
TILE_K = 32
STAGES = 3
THREADS = 128
CHUNK = 8


class LdmatrixMma:
    """`dtype` is a CuTe 16-bit float."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: cuda.CUstream) -> None:
        atom = cute.make_composed_layout(
            cute.make_swizzle(2, 4, 3), 0, cute.make_layout((8, TILE_K), stride=(TILE_K, 1))
        )
        a_ring = cute.tile_to_shape(atom, (TILE_M, TILE_K, STAGES), order=(0, 1, 2))
        b_ring = cute.tile_to_shape(atom, (TILE_N, TILE_K, STAGES), order=(0, 1, 2))
        mma = cute.make_tiled_mma(
            warp.MmaF16BF16Op(self.dtype, cutlass.Float32, (16, 8, 16)),
            cute.make_layout((2, 2, 1)),
            permutation_mnk=(32, 32, 16),
        )
        chunk = cute.make_copy_atom(
            cpasync.CopyG2SOp(cute.nvgpu.LoadCacheMode.GLOBAL), self.dtype, num_bits_per_copy=CHUNK * 16
        )
        load = cute.make_tiled_copy_tv(
            chunk,
            cute.make_layout((THREADS * CHUNK // TILE_K, TILE_K // CHUNK), stride=(TILE_K // CHUNK, 1)),
            cute.make_layout((1, CHUNK)),
        )
        grid = (*cute.ceil_div(c.shape, (TILE_M, TILE_N)), 1)
        self.kernel(mma, load, a, b, c, a_ring, b_ring).launch(
            grid=grid, block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        load: cute.TiledCopy,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        a_ring: cute.ComposedLayout,
        b_ring: cute.ComposedLayout,
    ) -> None:
        thread = cute.arch.thread_idx()[0]
        row, column, _ = cute.arch.block_idx()
        smem = cutlass.memory.SmemAllocator()
        s_a = smem.allocate_tensor(self.dtype, a_ring.outer, 128, a_ring.inner)
        s_b = smem.allocate_tensor(self.dtype, b_ring.outer, 128, b_ring.inner)
        loader = load.get_slice(thread)
        k_tiles = cute.ceil_div(a.shape[1], TILE_K)

        for stage in cutlass.range_constexpr(STAGES - 1):
            if stage < k_tiles:
                self._load(loader, load, a, (TILE_M, TILE_K), (row, stage), s_a, stage)
                self._load(loader, load, b, (TILE_N, TILE_K), (column, stage), s_b, stage)
            cute.arch.cp_async_commit_group()

        math = mma.get_slice(thread)
        r_c = mma.make_fragment_C(mma.partition_shape_C((TILE_M, TILE_N)))
        r_c.fill(0.0)
        for k in cutlass.range(k_tiles):
            cute.arch.cp_async_wait_group(STAGES - 2)
            # Chunk k has landed for every thread, and every warp has read the stage that is overwritten next.
            cute.arch.sync_threads()
            ahead = k + STAGES - 1
            if ahead < k_tiles:
                self._load(loader, load, a, (TILE_M, TILE_K), (row, ahead), s_a, ahead % STAGES)
                self._load(loader, load, b, (TILE_N, TILE_K), (column, ahead), s_b, ahead % STAGES)
            cute.arch.cp_async_commit_group()
            self._multiply(mma, math, thread, s_a[None, None, k % STAGES], s_b[None, None, k % STAGES], r_c)

        place = cute.local_tile(cute.make_identity_tensor(c.shape), (TILE_M, TILE_N), (row, column))
        where = math.partition_C(place)
        target = math.partition_C(cute.local_tile(c, (TILE_M, TILE_N), (row, column)))
        for index in cutlass.range(cute.size(r_c), unroll_full=True):
            if cute.elem_less(where[index], c.shape):
                target[index] = r_c[index]

    @cute.jit
    def _load(
        self,
        loader: cute.ThrCopy,
        load: cute.TiledCopy,
        matrix: cute.Tensor,
        tile: cutlass.Constexpr,
        at: tuple[Any, Any],
        ring: cute.Tensor,
        stage: Any,
    ) -> None:
        """This thread's chunks of one tile."""
        source = loader.partition_S(cute.local_tile(matrix, tile, at))
        where = loader.partition_S(cute.local_tile(cute.make_identity_tensor(matrix.shape), tile, at))
        target = loader.partition_D(ring)
        for chunk in cutlass.range_constexpr(cute.size(source, mode=[1])):
            if cute.elem_less(where[0, chunk, 0], matrix.shape):
                cute.copy(load, source[None, chunk, 0], target[None, chunk, 0, stage])
            else:
                target[None, chunk, 0, stage].fill(0.0)

    @cute.jit
    def _multiply(
        self,
        mma: cute.TiledMma,
        math: cute.ThrMma,
        thread: cutlass.Int32,
        s_a: cute.Tensor,
        s_b: cute.Tensor,
        r_c: cute.Tensor,
    ) -> None:
        ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), self.dtype)
        copy_a = cute.make_tiled_copy_A(ldmatrix, mma)
        copy_b = cute.make_tiled_copy_B(ldmatrix, mma)
        r_a = mma.make_fragment_A(math.partition_A(s_a))
        r_b = mma.make_fragment_B(math.partition_B(s_b))
        slice_a = copy_a.get_slice(thread)
        slice_b = copy_b.get_slice(thread)
        cute.copy(copy_a, slice_a.partition_S(s_a), slice_a.retile(r_a))
        cute.copy(copy_b, slice_b.partition_S(s_b), slice_b.retile(r_b))
        for block in cutlass.range_constexpr(cute.size(r_a, mode=[2])):
            cute.gemm(mma, r_c, r_a[None, None, block], r_b[None, None, block], r_c)
