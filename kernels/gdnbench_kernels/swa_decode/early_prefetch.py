# SPDX-License-Identifier: Apache-2.0
"""What a kernel of swa_decode prefetches into L2 before the previous kernel of its stream is complete.

The previous kernel may still write the entries and lengths that are read here. They only choose what is
prefetched, inside the pool, and the kernel reads them again after `griddepcontrol.wait`. Queries and rows are
not read here; L2 has what is written to them later. CuTe DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.latent_rows import Pages
from gdnbench_kernels.swa_decode.layouts import DATA_BYTES, SCALE_BYTES
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.swa_decode.window import PADDING

I32, I64 = cutlass.Int32, cutlass.Int64


@cute.jit
def prefetch_entry(
    token: cutlass.Int32,
    entry: cutlass.Int32,
    pages: cute.Tensor,
    inv_scale: cute.Tensor,
    indices: cute.Tensor,
    lens: cute.Tensor,
    block_shift: cutlass.Int32,
) -> None:
    """Prefetch the row of an entry of a token's window, if it counts."""
    length = ops.load_index_early(lens.iterator.toint() + I64(token) * 4)
    slot = I32(PADDING)
    if entry < cute.size(indices, mode=[1]):
        row = indices.iterator.toint() + I64(token) * I64(indices.stride[0]) * 4
        slot = ops.load_index_early(row + I64(entry) * 4)
    there = slot >= 0 and (slot >> block_shift) < cute.size(pages, mode=[0])
    if there and entry < length:
        prefetch_row(slot, Pages(pages.iterator.toint(), I64(pages.stride[0]), block_shift), inv_scale)


def prefetch_row(slot: Any, pages: Pages, inv_scale: cute.Tensor) -> None:
    """Prefetch a row and its factor, or with fp8_ds_mla its scales."""
    page, offset = pages.page(slot), pages.offset(slot)
    if inv_scale is not None:
        ops.prefetch_bulk(page + I64(offset * HEAD_DIM), HEAD_DIM)
        ops.prefetch(inv_scale.iterator.toint() + I64(slot) * (inv_scale.element_type.width // 8))
        return
    ops.prefetch_bulk(page + I64(offset * DATA_BYTES), DATA_BYTES)
    ops.prefetch(page + I64((I32(1) << pages.shift) * DATA_BYTES + offset * SCALE_BYTES))


@cute.jit
def prefetch_queries(
    token: cutlass.Int32, first: cutlass.Int32, count: cutlass.Constexpr, q: cute.Tensor
) -> None:
    """Prefetch the queries of up to `count` heads of a token from `first` on."""
    heads = q.shape[1]
    if first < heads:
        row = q.iterator.toint() + (I64(token) * heads + I64(first)) * (2 * HEAD_DIM)
        ops.prefetch_bulk(row, cutlass.min(I32(count), heads - first) * (2 * HEAD_DIM))
