"""The work of the wgmma kernel's CTAs: items, and the tiles of an item. CuTe DSL.

An item is `rows` heads of a query row and one of its splits. Items of a row are neighbours, those of a split
too, so all but the first read its rows of the caches from L2. A tile is up to 128 entries of one segment; the
tiles of a row are those of the window, then those of the extra segment, up to the row's lengths. Both roles
compute an item's tiles from the lengths themselves. An item without tiles has one turn, which copies zeros.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.latent_rows import Pages
from gdnbench_kernels.swa_decode.sm90_load import TileScheduler
from gdnbench_kernels.v4_decode.sm90_plan import TILE
from gdnbench_kernels.v4_decode.splits import first_tile

I32, I64 = cutlass.Int32, cutlass.Int64


@dataclass(frozen=True)
class Table:
    """The index table of a segment, [rows, entries], and its lengths, [rows]. An entry names 2^shift
    positions: 1 slot, or the slots of a page."""

    entries: cute.Tensor
    lens: cute.Tensor
    shift: Any

    @property
    def size(self) -> Any:
        """Entries of a row."""
        return cute.size(self.entries, mode=[1])

    def length(self, row: Any) -> Any:
        """Start loading a row's length."""
        return ops.load_index(self.lens.iterator.toint() + I64(row) * 4)

    def clipped(self, length: Any) -> Any:
        """A length as the number of positions that it leaves in the table."""
        return cutlass.max(cutlass.min(length, self.size << self.shift), 0)

    def address(self, row: Any) -> Any:
        return self.entries.iterator.toint() + I64(row) * I64(self.entries.stride[0]) * 4


@dataclass(frozen=True)
class Pool:
    """The pages that a segment's slots are of, and their scales."""

    pages: Pages
    inv_scale: cute.Tensor

    @property
    def block_size(self) -> Any:
        return I32(1) << self.pages.shift

    def or_other(self, mine: Any, other: Pool) -> Pool:
        """This pool if `mine`, else the other, whose scales have the same dtype."""
        pages, others = self.pages, other.pages
        chosen = Pages(
            ops.select_value(mine, pages.base, others.base),
            ops.select_value(mine, pages.stride, others.stride),
            ops.select_value(mine, pages.shift, others.shift),
        )
        if self.inv_scale is None:
            return Pool(chosen, self.inv_scale)
        address = ops.select_value(mine, self.inv_scale.iterator.toint(), other.inv_scale.iterator.toint())
        dtype = self.inv_scale.element_type
        pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=dtype.width // 8)
        return Pool(chosen, cute.make_tensor(pointer, self.inv_scale.layout))


@dataclass(frozen=True)
class Share:
    """The tiles of an item: numbers `first` .. + `count` - 1 of a row with `window` tiles of the window."""

    window: Any
    first: Any
    count: Any

    @property
    def turns(self) -> Any:
        return cutlass.max(self.count, 1)


@dataclass(frozen=True)
class Segments(TileScheduler):
    """The work of a CTA, and the tables that it reads."""

    splits: Any
    tokens: Any
    window: Table
    extra: Table

    @staticmethod
    def of(tokens: Any, heads: int, rows: int, splits: Any, window: Table, extra: Table) -> Segments:
        one = TileScheduler.create(tokens * splits, heads, rows)
        return Segments(heads, rows, one.count, splits, tokens, window, extra)

    def work_tile(self, turn: Any) -> tuple[Any, Any]:
        """(row, its first head)."""
        of_row, head = TileScheduler.work_tile(self, turn)
        return of_row // self.splits, head

    def split_of(self, item: Any) -> Any:
        of_row, _ = TileScheduler.work_tile(self, item)
        return of_row % self.splits

    def lengths(self, item: Any) -> tuple[Any, Any]:
        """Start loading the lengths of an item's row; past the end, those of the last item."""
        row, _ = self.work_tile(cutlass.min(item, self.count - 1))
        return self.window.length(row), self.extra.length(row)

    def share(self, item: Any, lengths: tuple[Any, Any]) -> Share:
        window = (self.window.clipped(lengths[0]) + TILE - 1) // TILE
        tiles = window + (self.extra.clipped(lengths[1]) + TILE - 1) // TILE
        split = self.split_of(item)
        first = cutlass.min(first_tile(split, self.splits, tiles), tiles)
        after = cutlass.min(first_tile(split + 1, self.splits, tiles), tiles)
        return Share(window, first, after - first)
