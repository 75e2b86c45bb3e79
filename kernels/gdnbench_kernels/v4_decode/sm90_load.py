"""The LOAD warps of the wgmma kernel: those of swa_decode's, with turns that are tiles. CuTe DSL.

The tiles of a CTA's items follow one another; a turn is one of them. Its rows are copied while MULTIPLY has
the previous turn, its entries are loaded two turns earlier, and the lengths that decide which tiles an item
has one turn before that. Queries are loaded with an item's first tile, outputs stored after its last one.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.swa_decode import sm90_ops as wgmma
from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.sm90_load import (
    Loader,
    Pipelines,
    Shared,
    counted,
    query_state,
    window_state,
)
from gdnbench_kernels.swa_decode.sm90_plan import LOADERS, Barrier, Role
from gdnbench_kernels.swa_decode.window import PADDING
from gdnbench_kernels.v4_decode.sm90_plan import TILE
from gdnbench_kernels.v4_decode.sm90_tiles import Pool, Segments

I32, I64 = cutlass.Int32, cutlass.Int64

WINDOW, STARTS = 1, 2
"""Bits of a turn's kind: its tile is of the window; it is an item's first turn."""


@dataclass(frozen=True)
class Place:
    """A turn: tile `tile` of an item, whose row has these lengths."""

    item: Any
    tile: Any
    lengths: tuple[Any, Any]

    @staticmethod
    def first(scheduler: Segments) -> Place:
        return Place(I32(0), I32(0), scheduler.lengths(I32(0)))

    def next(self, scheduler: Segments) -> Place:
        """The next turn, whose lengths it starts to load; past the last one an item that there is not."""
        more = self.tile + 1 < scheduler.share(self.item, self.lengths).turns
        item = ops.select_value(more, self.item, self.item + 1)
        return Place(item, ops.select_value(more, self.tile + 1, I32(0)), scheduler.lengths(item))


@dataclass(frozen=True)
class SegmentLoader(Loader):
    """`Loader` of the window's pool; `partial`: an item's outputs are not stored from shared memory."""

    extra: Pool
    partial: bool

    @cute.jit
    def load_segments(
        self, scheduler: Segments, pipelines: Pipelines, shared: Shared, tma_q: blackwell.Tma
    ) -> None:
        warp = cute.arch.make_warp_uniform(wgmma.thread_in_role(Role.LOAD) // 32)
        if warp == 0:
            self.load_queries(scheduler, pipelines, shared, tma_q, I32(0))
        self.prefetch_queries(scheduler, I32(self.tuning.prefetch), warp)
        place = Place.first(scheduler)
        item, kind = place.item, self.kind_of(scheduler, place)
        found = self.load_entry(scheduler, place, warp)
        place = place.next(scheduler)
        slots = slots_of(found, warp)
        self.pooled(kind).load_rows(pipelines, shared, I32(0), slots, warp)
        later_item, later_kind = place.item, self.kind_of(scheduler, place)
        found = self.load_entry(scheduler, place, warp)
        place = place.next(scheduler)
        later_slots = slots_of(found, warp)
        after_item, after_tile, after_lengths = place.item, place.tile, place.lengths
        turn = I32(0)
        while item < scheduler.count:
            starts = (kind & STARTS) != 0 and turn > 0
            if starts:
                pipelines.q.producer_acquire(query_state(item - 1))
                if warp == 0:
                    self.load_queries(scheduler, pipelines, shared, tma_q, item)
                self.prefetch_queries(scheduler, item + self.tuning.prefetch, warp)
            self.describe(pipelines, shared, turn, kind, slots, warp)
            pipelines.rows.producer_commit(window_state(turn))
            if cutlass.const_expr(self.mla):
                ropes = self.load_ropes(pipelines, shared, turn, kind, slots, warp)
            place = Place(after_item, after_tile, after_lengths)
            after_kind = self.kind_of(scheduler, place)
            found = self.load_entry(scheduler, place, warp)
            if turn > 0:
                pipelines.rows.producer_acquire(window_state(turn - 1))
            if cutlass.const_expr(self.mla):
                self.store_ropes(pipelines, shared, turn, slots, warp, ropes)
            if cutlass.const_expr(not self.partial):
                self.store_previous(starts, scheduler, shared, turn - 1, warp, item - 1)
            if later_item < scheduler.count:
                self.pooled(later_kind).load_rows(pipelines, shared, turn + 1, later_slots, warp)
            item, kind, slots = later_item, later_kind, later_slots
            later_item, later_kind, later_slots = after_item, after_kind, slots_of(found, warp)
            place = place.next(scheduler)
            after_item, after_tile, after_lengths = place.item, place.tile, place.lengths
            turn = turn + 1
        pipelines.rows.producer_acquire(window_state(turn - 1))
        if cutlass.const_expr(not self.partial):
            self.store_outputs(scheduler, shared, turn - 1, warp, scheduler.count - 1)
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def store_previous(
        self,
        ended: cutlass.Boolean,
        scheduler: Segments,
        shared: Shared,
        turn: cutlass.Int32,
        warp: cutlass.Int32,
        item: cutlass.Int32,
    ) -> None:
        """Store the outputs of an item that `ended` with a turn, before rows are copied over them."""
        if ended:
            self.store_outputs(scheduler, shared, turn, warp, item)
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            cute.arch.barrier(barrier_id=Barrier.LOAD, number_of_threads=32 * LOADERS)

    def describe(
        self, pipelines: Pipelines, shared: Shared, turn: Any, kind: Any, slots: Any, warp: Any
    ) -> None:
        """Store the factors of a turn's rows, those of one virtual warp after those of the other: the words
        of both would take too many registers."""
        loader = self.pooled(kind)
        window = loader.window(shared, turn)
        for entries in loader.entries(pipelines, turn, slots, warp):
            window.describe_codes(entries, loader.pages, window.load(entries, loader.pages))

    def load_ropes(
        self, pipelines: Pipelines, shared: Shared, turn: Any, kind: Any, slots: Any, warp: Any
    ) -> list[Any]:
        """Start loading a turn's rope again: since `describe` read it, it is in L2."""
        loader = self.pooled(kind)
        window = loader.window(shared, turn)
        both = loader.entries(pipelines, turn, slots, warp)
        return [window.load_ropes(entries, loader.pages) for entries in both]

    def store_ropes(
        self, pipelines: Pipelines, shared: Shared, turn: Any, slots: Any, warp: Any, ropes: list[Any]
    ) -> None:
        window = self.window(shared, turn)
        for entries, loaded in zip(self.entries(pipelines, turn, slots, warp), ropes, strict=True):
            window.store_loaded_ropes(entries, loaded)
        shared.arrive_rope()

    def pooled(self, kind: Any) -> Loader:
        """This loader with the pool of a turn's segment."""
        pool = Pool(self.pages, self.inv_scale).or_other((kind & WINDOW) != 0, self.extra)
        return replace(self, pages=pool.pages, block_size=pool.block_size, inv_scale=pool.inv_scale)

    def kind_of(self, scheduler: Segments, place: Place) -> Any:
        share = scheduler.share(place.item, place.lengths)
        window = ops.select_value(share.first + place.tile < share.window, I32(WINDOW), I32(0))
        return window + ops.select_value(place.tile == 0, I32(STARTS), I32(0))

    @cute.jit
    def load_entry(
        self, scheduler: Segments, place: Place, warp: cutlass.Int32
    ) -> tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32, cutlass.Int32]:
        """Start loading this lane's entry of the table; returns (it, its position in what an entry names, the
        log of how many positions that has, how many entries of the tile count)."""
        share = scheduler.share(place.item, place.lengths)
        number = share.first + place.tile
        inside = number < share.window
        begin = (number - ops.select_value(inside, I32(0), share.window)) * TILE
        window, extra = scheduler.window, scheduler.extra
        length = ops.select_value(inside, window.clipped(place.lengths[0]), extra.clipped(place.lengths[1]))
        length = ops.select_value(share.count > 0, length - begin, I32(0))
        shift = ops.select_value(inside, window.shift, extra.shift)
        position = begin + warp * 32 + cute.arch.lane_idx()
        row, _ = scheduler.work_tile(cutlass.min(place.item, scheduler.count - 1))
        entry = position >> shift
        base = ops.select_value(inside, window.address(row), extra.address(row))
        found = I32(PADDING)
        if warp * 32 + cute.arch.lane_idx() < length:
            found = ops.load_index(base + I64(entry) * 4)
        return found, position & ((I32(1) << shift) - 1), shift, length


def slots_of(loaded: tuple[Any, Any, Any, Any], warp: Any) -> Any:
    """The slot of this lane's entry, from what `load_entry` returns; -1 if it does not count."""
    entry, offset, shift, length = loaded
    slot = ops.select_value(entry < 0, I32(PADDING), (entry << shift) + offset)
    return counted(slot, length, warp)
