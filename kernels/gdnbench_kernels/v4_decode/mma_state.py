# SPDX-License-Identifier: Apache-2.0
"""What a thread of `kernel_mma` works with: buffers of its CTA, the pool of a segment, its running sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.latent_rows import Pages
from gdnbench_kernels.swa_decode.mma_tile import Shared

I32, I64 = cutlass.Int32, cutlass.Int64

MOST_SLOTS = (1 << 31) - 1
"""Stands for the number of a pool's scales, which is not checked."""


@dataclass(frozen=True)
class TileShared(Shared):
    """Addresses of all buffers of the plan, and the warps' mbarriers."""

    p: cutlass.Int32
    rows: cutlass.Int32
    entries: cutlass.Int32
    groups: cutlass.Int32
    barriers: cute.Pointer


@dataclass(frozen=True)
class Pool:
    """A segment of this CTA's query row: the pages, and `count` entries of its table at `table`, each of
    2^entry_shift positions; positions below `length` count."""

    pages: Pages
    inv_scale: Any  # a tensor, or None
    table: cutlass.Int64
    count: cutlass.Int32
    entry_shift: cutlass.Int32
    length: cutlass.Int32

    @staticmethod
    def create(
        pages: cute.Tensor,
        inv_scale: Any,
        indices: cute.Tensor,
        token: cutlass.Int32,
        length: cutlass.Int32,
        shift: cutlass.Int32,
        entry_shift: cutlass.Int32,
    ) -> Pool:
        row = indices.iterator.toint() + I64(token) * I64(indices.stride[0]) * 4
        count = I32(cute.size(indices, mode=[1]))
        where = Pages(pages.iterator.toint(), I64(pages.stride[0]), shift)
        return Pool(where, inv_scale, row, count, entry_shift, length)

    def alike(self, other: Pool) -> bool:
        """Whether the scales of both have one type."""
        return self.inv_scale is None or self.inv_scale.element_type is other.inv_scale.element_type

    def unless(self, condition: Any, other: Pool) -> Pool:
        """This pool, or `other` if the condition holds."""

        def one(x: Any, y: Any) -> Any:
            return ops.select_value(condition, y, x)

        scales = self.inv_scale
        if scales is not None:
            address = one(scales.iterator.toint(), other.inv_scale.iterator.toint())
            dtype = scales.element_type
            align = dtype.width // 8
            pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)
            scales = cute.make_tensor(pointer, cute.make_layout(MOST_SLOTS))
        ours, theirs = self.pages, other.pages
        pages = Pages(
            one(ours.base, theirs.base), one(ours.stride, theirs.stride), one(ours.shift, theirs.shift)
        )
        return Pool(
            pages,
            scales,
            one(self.table, other.table),
            one(self.count, other.count),
            one(self.entry_shift, other.entry_shift),
            one(self.length, other.length),
        )


@dataclass(frozen=True)
class Running:
    """What this thread has of its row of scores after some tiles, one value each: the reference of the sum,
    an integer; the exponent of weights relative to it; this thread's part of the sum."""

    top: cute.Tensor
    power: cute.Tensor
    total: cute.Tensor
