"""A wgmma product of one tile, one CTA, for sm_90a.

    C[m, n] = C0[m, n] + sum over k of A[m, k] B[n, k]      A, B of `Gemm.dtype`, sums and C in `Gemm.result`

    name    where      shape        layout
    sA      SMEM       (M, K)       canonical, K- or M-major, any swizzle; none if A is in registers
    sB      SMEM       (N, K)       the same for N
    tA      registers  (M, K)       the fragments of wgmma, read from global memory
    acc     registers  (M, N)       the accumulator

Each warpgroup has 64 rows of A. Threads write shared memory element by element, so that the layout alone
says where an element lies; fence.proxy.async makes it visible to wgmma.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.memory import SmemAllocator

WARPGROUP = 128
ROWS = 64  # of one warpgroup


@dataclass(frozen=True)
class Gemm:
    """The choices fixed at compile time. `swizzle` is INTER, SW32, SW64 or SW128; `displaced` are bytes
    between a multiple of 1,024 and the start of both operands."""

    dtype: Any
    n: int
    k: int
    groups: int = 1
    result: Any = cutlass.Float32
    a_registers: bool = False
    a_major: OperandMajorMode = OperandMajorMode.K
    b_major: OperandMajorMode = OperandMajorMode.K
    swizzle: str = "SW128"
    accumulate: bool = False

    @property
    def threads(self) -> int:
        return WARPGROUP * self.groups

    @property
    def m(self) -> int:
        return ROWS * self.groups

    def operation(self) -> Any:
        source = warpgroup.OperandSource.RMEM if self.a_registers else warpgroup.OperandSource.SMEM
        if self.dtype.width == 8:
            return warpgroup.MmaF8Op(
                self.dtype, self.dtype, self.result, (ROWS, self.n, 32), source, self.a_major, self.b_major
            )
        return warpgroup.MmaF16BF16Op(
            self.dtype, self.result, (ROWS, self.n, 16), source, self.a_major, self.b_major
        )

    def atom(self, major: OperandMajorMode) -> Any:
        letters = "MN" if major == OperandMajorMode.MN else "K"
        kind = getattr(warpgroup.SmemLayoutAtomKind, f"{letters}_{self.swizzle}")
        return warpgroup.make_smem_layout_atom(kind, self.dtype)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(a, b, c).launch(grid=(1, 1, 1), block=(self.threads, 1, 1), stream=stream)

    @cute.jit
    def fill(self, shared: cute.Tensor, source: cute.Tensor, rows: cutlass.Constexpr) -> None:
        thread, _, _ = cute.arch.thread_idx()
        for index in cutlass.range(thread, rows * self.k, self.threads, unroll=1):
            row, column = index // self.k, index % self.k
            shared[row, column] = source[row, column]

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        mma = cute.make_tiled_mma(self.operation(), cute.make_layout((self.groups, 1, 1)))
        mine = mma.get_slice(thread)
        shared = SmemAllocator()
        layout = cute.tile_to_shape(self.atom(self.b_major), (self.n, self.k), (0, 1))
        sb = shared.allocate_tensor(self.dtype, layout.outer, 1024, layout.inner)
        self.fill(sb, b, self.n)
        tb = mma.make_fragment_B(mine.partition_B(sb))
        if cutlass.const_expr(self.a_registers):
            ga = mine.partition_A(a)
            ta = mma.make_fragment_A(ga)
            cute.autovec_copy(ga, ta)
        else:
            layout = cute.tile_to_shape(self.atom(self.a_major), (self.m, self.k), (0, 1))
            sa = shared.allocate_tensor(self.dtype, layout.outer, 1024, layout.inner)
            self.fill(sa, a, self.m)
            ta = mma.make_fragment_A(mine.partition_A(sa))
        gc = mine.partition_C(c)
        acc = mma.make_fragment_C(gc)
        if cutlass.const_expr(self.accumulate):
            for i in cutlass.range_constexpr(cute.size(acc)):
                acc[i] = gc[i]
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier()
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(ta, mode=[2])):
            mma.set(warpgroup.Field.ACCUMULATE, self.accumulate or k > 0)
            cute.gemm(mma, acc, ta[None, None, k], tb[None, None, k], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(cute.size(acc)):
            gc[i] = acc[i]


@dataclass(frozen=True)
class Pipelined:
    """The same product over any number of K tiles, one product behind: while it runs, the next tile is
    written to the other stage. `wait` False leaves out the wait that makes that legal."""

    dtype: Any
    n: int
    a_registers: bool = False
    wait: bool = True
    tile: int = 64

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(a, b, c).launch(grid=(1, 1, 1), block=(WARPGROUP, 1, 1), stream=stream)

    @cute.jit
    def fill(self, shared: cute.Tensor, source: cute.Tensor, rows: cutlass.Constexpr) -> None:
        thread, _, _ = cute.arch.thread_idx()
        for index in cutlass.range(thread, rows * self.tile, WARPGROUP, unroll=1):
            row, column = index // self.tile, index % self.tile
            shared[row, column] = source[row, column]

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        source = warpgroup.OperandSource.RMEM if self.a_registers else warpgroup.OperandSource.SMEM
        k_major = OperandMajorMode.K
        mma = cute.make_tiled_mma(
            warpgroup.MmaF16BF16Op(self.dtype, cutlass.Float32, (ROWS, self.n, 16), source, k_major, k_major)
        )
        mine = mma.get_slice(thread)
        shared = SmemAllocator()
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, self.dtype)
        la = cute.tile_to_shape(atom, (ROWS, self.tile, 2), (0, 1, 2))
        lb = cute.tile_to_shape(atom, (self.n, self.tile, 2), (0, 1, 2))
        sa = shared.allocate_tensor(self.dtype, la.outer, 1024, la.inner)
        sb = shared.allocate_tensor(self.dtype, lb.outer, 1024, lb.inner)
        ta = mma.make_fragment_A(mine.partition_A(sa))
        tb = mma.make_fragment_B(mine.partition_B(sb))
        gc = mine.partition_C(c)
        acc = mma.make_fragment_C(gc)
        acc.fill(0.0)
        tiles = cute.size(a, mode=[1]) // self.tile
        for index in cutlass.range(tiles, unroll=1):
            stage = index % 2
            tile_a = cute.local_tile(a, (ROWS, self.tile), (0, index))
            self.fill(sb[None, None, stage], cute.local_tile(b, (self.n, self.tile), (0, index)), self.n)
            if cutlass.const_expr(self.a_registers):
                ga = mine.partition_A(tile_a)
                ra = mma.make_fragment_A(ga)
                cute.autovec_copy(ga, ra)
            else:
                self.fill(sa[None, None, stage], tile_a, ROWS)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier()
            warpgroup.fence()
            for k in cutlass.range_constexpr(self.tile // 16):
                mma.set(warpgroup.Field.ACCUMULATE, True)
                if cutlass.const_expr(self.a_registers):
                    cute.gemm(mma, acc, ra[None, None, k], tb[None, None, k, stage], acc)
                else:
                    cute.gemm(mma, acc, ta[None, None, k, stage], tb[None, None, k, stage], acc)
            warpgroup.commit_group()
            if cutlass.const_expr(self.wait):
                warpgroup.wait_group(0 if self.a_registers else 1)
            cute.arch.barrier()
        warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(cute.size(acc)):
            gc[i] = acc[i]
