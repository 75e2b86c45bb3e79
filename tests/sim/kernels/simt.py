# SPDX-License-Identifier: Apache-2.0
"""Kernels of ordinary threads: an elementwise function of strided tensors, and sums and counts.

    scaled_sum      z = alpha x + y, any strides, one thread an element
    row_sums        s[m] = sum over n of x[m, n]: shuffles within a warp, shared memory across the warps
    total           t = sum over all x: the same tree, then one atomic add a CTA
    histogram       h[v] += 1: shared-memory atomics, then global ones

Each is the smallest kernel of its kind; barriers and shuffles are the field's usual ones.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

THREADS = 128
WARPS = THREADS // 32
BINS = 64


@cute.kernel
def _scaled_sum(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, alpha: cutlass.Float32) -> None:
    index = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    rows, columns = x.shape
    if index < rows * columns:
        place = (index // columns, index % columns)
        z[place] = (alpha * x[place].to(cutlass.Float32) + y[place].to(cutlass.Float32)).to(z.element_type)


@cute.jit
def scaled_sum(
    x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, alpha: cutlass.Float32, stream: cuda.CUstream
) -> None:
    """z = alpha x + y."""
    blocks = cute.ceil_div(x.shape[0] * x.shape[1], THREADS)
    _scaled_sum(x, y, z, alpha).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)


@cute.jit
def _block_sum(value: cutlass.Float32, partial: cute.Tensor) -> cutlass.Float32:
    """The sum of `value` over the CTA, in thread 0 .. 31: lanes by butterflies, warps through `partial`."""
    lane = cute.arch.lane_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    for distance in cutlass.range_constexpr(5):
        value += cute.arch.shuffle_sync_bfly(value, 1 << distance)
    if lane == 0:
        partial[warp] = value
    cute.arch.sync_threads()
    value = cutlass.Float32(0.0)
    if warp == 0:
        if lane < WARPS:
            value = partial[lane]
        for distance in cutlass.range_constexpr(2):
            value += cute.arch.shuffle_sync_bfly(value, 1 << distance)
    return value


@cute.kernel
def _row_sums(x: cute.Tensor, sums: cute.Tensor) -> None:
    thread = cute.arch.thread_idx()[0]
    row = cute.arch.block_idx()[0]
    smem = cutlass.memory.SmemAllocator()
    partial = smem.allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), 16)
    value = cutlass.Float32(0.0)
    for column in cutlass.range(thread, x.shape[1], THREADS):
        value += x[row, column].to(cutlass.Float32)
    value = _block_sum(value, partial)
    if thread == 0:
        sums[row] = value


@cute.jit
def row_sums(x: cute.Tensor, sums: cute.Tensor, stream: cuda.CUstream) -> None:
    """One CTA a row."""
    _row_sums(x, sums).launch(grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream)


@cute.kernel
def _total(x: cute.Tensor, out: cute.Tensor) -> None:
    thread = cute.arch.thread_idx()[0]
    block = cute.arch.block_idx()[0]
    smem = cutlass.memory.SmemAllocator()
    partial = smem.allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), 16)
    value = cutlass.Float32(0.0)
    index = block * THREADS + thread
    if index < x.shape[0]:
        value = x[index].to(cutlass.Float32)
    value = _block_sum(value, partial)
    if thread == 0:
        cute.arch.atomic_add(out.iterator.llvm_ptr, value, sem="relaxed", scope="gpu")


@cute.jit
def total(x: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream) -> None:
    """`out` is added to."""
    blocks = cute.ceil_div(x.shape[0], THREADS)
    _total(x, out).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)


@cute.kernel
def _histogram(x: cute.Tensor, counts: cute.Tensor) -> None:
    thread = cute.arch.thread_idx()[0]
    index = cute.arch.block_idx()[0] * THREADS + thread
    smem = cutlass.memory.SmemAllocator()
    bins = smem.allocate_tensor(cutlass.Int32, cute.make_layout(BINS), 16)
    if thread < BINS:
        bins[thread] = cutlass.Int32(0)
    cute.arch.sync_threads()
    if index < x.shape[0]:
        cute.arch.atomic_add((bins.iterator + x[index]).llvm_ptr, cutlass.Int32(1))
    cute.arch.sync_threads()
    if thread < BINS:
        cute.arch.atomic_add((counts.iterator + thread).llvm_ptr, bins[thread], sem="relaxed", scope="gpu")


@cute.jit
def histogram(x: cute.Tensor, counts: cute.Tensor, stream: cuda.CUstream) -> None:
    """Counts of the values 0 .. BINS - 1 of `x`, added to `counts`."""
    blocks = cute.ceil_div(x.shape[0], THREADS)
    _histogram(x, counts).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)
