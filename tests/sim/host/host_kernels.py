# SPDX-License-Identifier: Apache-2.0
"""Small kernels whose host code does one thing each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

BLOCK = 64


@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, count: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * BLOCK + thread
    if index < count:
        y[index, 0] = x[index, 0] * factor


@cute.jit
def scale(
    x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, count: cutlass.Int32, stream: cuda.CUstream
):
    scale_kernel(x, y, factor, count).launch(
        grid=[(count + BLOCK - 1) // BLOCK, 1, 1], block=[BLOCK, 1, 1], stream=stream
    )


@cute.jit
def scale_without_annotation(
    x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, count: cutlass.Int32, stream
):
    scale_kernel(x, y, factor, count).launch(
        grid=[(count + BLOCK - 1) // BLOCK, 1, 1], block=[BLOCK, 1, 1], stream=stream
    )


@cute.jit
def scale_twice(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, stream: cuda.CUstream):
    """Two launches: the second reads what the first wrote and has a grid of its own."""
    count = x.shape[0]
    scale_kernel(x, y, factor, count).launch(grid=[count, 2, 3], block=[BLOCK, 1, 1], stream=stream)
    scale_kernel(y, x, factor, 7).launch(grid=[1, 1, 1], block=[32, 2, 1], smem=4096, stream=stream)


@cute.kernel
def add_kernel(x: cute.Tensor, y: cute.Tensor, offset: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    y[thread] = x[thread] + offset


@cute.jit
def add_pair(pair: tuple[cute.Tensor, cute.Tensor], extra: Any, offset: cutlass.Int32, stream: cuda.CUstream):
    """Tensors in a tuple, and an argument that is None."""
    add_kernel(pair[0], pair[1], offset).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@dataclass
class Tensors:
    source: cute.Tensor
    target: cute.Tensor


@cute.jit
def add_fields(tensors: Tensors, offset: cutlass.Int32, stream: cuda.CUstream):
    add_kernel(tensors.source, tensors.target, offset).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@cute.jit
def in_a_cluster(x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    add_kernel(x, y, 1).launch(grid=[4, 1, 1], block=[32, 1, 1], cluster=[2, 1, 1], stream=stream)


@cute.kernel
def shared_kernel(y: cute.Tensor):
    shared = cute.arch.alloc_smem(cutlass.Float32, 640)
    thread, _, _ = cute.arch.thread_idx()
    shared[thread] = y[thread]
    cute.arch.sync_threads()
    y[thread] = shared[31 - thread]


@cute.jit
def uses_shared(y: cute.Tensor, stream: cuda.CUstream):
    shared_kernel(y).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@cute.kernel
def touch(atom: cute.CopyAtom, coordinates: cute.Tensor):
    cpasync.prefetch_descriptor(atom)


@cute.jit
def describe(
    x: cute.Tensor, box: cutlass.Constexpr, swizzle_bits: cutlass.Constexpr, stream: cuda.CUstream,
    internal: cutlass.Constexpr = None,
):  # fmt: skip
    """Its one kernel parameter that counts is the TMA descriptor of `x` for boxes of shape `box`; elements
    have the type `internal` in shared memory."""
    layout = cute.make_layout(box)
    if cutlass.const_expr(swizzle_bits):
        layout = cute.make_composed_layout(cute.make_swizzle(swizzle_bits, 4, 3), 0, layout)
    atom, coordinates = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), x, layout, box, internal_type=internal
    )
    touch(atom, coordinates).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@cute.kernel
def increment_kernel(pointer: cute.Pointer):
    thread, _, _ = cute.arch.thread_idx()
    data = cute.make_tensor(pointer, cute.make_layout(32))
    data[thread] = data[thread] + 1.0


@cute.jit
def through_pointer(pointer: cute.Pointer, stream: cuda.CUstream):
    increment_kernel(pointer).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@cute.jit
def print_number(count: cutlass.Int32):
    """Host code alone."""
    cute.printf("host code has {}\n", count)


@cute.jit
def fill_on_host(x: cute.Tensor):
    """Host code alone, which writes a tensor and prints it."""
    x[0] = cutlass.Float32(3.0)
    cute.print_tensor(x)


@cute.jit
def add_one(x: cute.Tensor, traced: cutlass.Constexpr):
    """Notes in the list `traced` that it is traced."""
    traced.append(x)
    increment_kernel(x.iterator).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.kernel
def fill_kernel(x: cute.Tensor, kind: type[cutlass.Numeric]):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = cutlass.Float32(kind.width)


@cute.jit
def fill_with_width(x: cute.Tensor, kind: type[cutlass.Numeric]):
    """Writes the bits of a type, which is an argument."""
    fill_kernel(x, kind).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def increment_on(x: cute.Tensor, stream: cuda.CUstream = cuda.CUstream(0)):  # noqa: B008
    """Its stream has a default."""
    increment_kernel(x.iterator).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@cute.kernel
def follow_kernel(addresses: cute.Tensor):
    """Adds 1 to the 32 floats at each address."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    pointer = cute.make_ptr(cutlass.Float32, addresses[block], cute.AddressSpace.gmem, assumed_align=4)
    data = cute.make_tensor(pointer, cute.make_layout(32))
    data[thread] = data[thread] + 1.0


@cute.jit
def follow(addresses: cute.Tensor, stream: cuda.CUstream):
    follow_kernel(addresses).launch(grid=[addresses.shape[0], 1, 1], block=[32, 1, 1], stream=stream)


@cute.kernel
def follow_twice_kernel(table: cute.Pointer):
    """Adds 1 to the 32 floats at the address at `table`."""
    thread, _, _ = cute.arch.thread_idx()
    addresses = cute.make_tensor(cute.recast_ptr(table, dtype=cutlass.Int64), cute.make_layout(1))
    pointer = cute.make_ptr(cutlass.Float32, addresses[0], cute.AddressSpace.gmem, assumed_align=4)
    data = cute.make_tensor(pointer, cute.make_layout(32))
    data[thread] = data[thread] + 1.0


@cute.jit
def follow_twice(table: cute.Pointer, stream: cuda.CUstream):
    follow_twice_kernel(table).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@cute.kernel
def increment_at_distance_kernel(x: cute.Tensor, distance: cutlass.Int64):
    thread, _, _ = cute.arch.thread_idx()
    data = cute.make_tensor(x.iterator + distance, cute.make_layout(32))
    data[thread] = data[thread] + 1.0


@cute.jit
def increment_at_distance(x: cute.Tensor, distance: cutlass.Int64, stream: cuda.CUstream):
    """Adds 1 to 32 floats at this distance from the start of x."""
    increment_at_distance_kernel(x, distance).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@cute.jit
def persistent(x: cute.Tensor, stream: cuda.CUstream):
    """As many CTAs as the device runs at once, in which `HardwareInfo` decides over their number."""
    clusters = cutlass.utils.HardwareInfo().get_max_active_clusters(1)
    increment_kernel(x.iterator).launch(grid=[clusters, 1, 1], block=[32, 1, 1], stream=stream)


@cute.jit
def two_blocks_per_multiprocessor(x: cute.Tensor, stream: cuda.CUstream):
    shared_kernel(x).launch(grid=[1, 1, 1], block=[32, 1, 1], min_blocks_per_mp=2, stream=stream)


@cute.kernel
def tiles_kernel(x: cute.Tensor, stages: cutlass.Constexpr):
    """Adds 1 to x [tiles, 32], a tile after another. Each waits for the next of `stages` mbarriers."""
    barriers = cute.arch.alloc_smem(cutlass.Int64, stages)
    thread, _, _ = cute.arch.thread_idx()
    tile, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    if thread == 0:
        for stage in cutlass.range_constexpr(stages):
            cute.arch.mbarrier_init(barriers + stage, 32)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    stage, phase = 0, 0
    while tile < x.shape[0]:
        x[tile, thread] = x[tile, thread] + 1.0
        cute.arch.mbarrier_arrive(barriers + stage)
        cute.arch.mbarrier_wait(barriers + stage, phase)
        stage += 1
        if stage == stages:
            stage = 0
            phase = phase ^ 1
        tile += ctas


@cute.jit
def tiles(x: cute.Tensor, stages: cutlass.Constexpr, most: cutlass.Int32, stream: cuda.CUstream):
    """At most `most` CTAs."""
    ctas = cutlass.min(x.shape[0], most)
    tiles_kernel(x, stages).launch(grid=[ctas, 1, 1], block=[32, 1, 1], stream=stream)
