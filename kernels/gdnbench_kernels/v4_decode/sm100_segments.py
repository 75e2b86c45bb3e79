"""What kernel_sm100.py adds to the roles of swa_decode's kernel: two segments, splits, and the forms of lse.
CuTe DSL."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.plan import WARP
from gdnbench_kernels.swa_decode.sm100_gather import Gather, Lane, Registers, finish
from gdnbench_kernels.swa_decode.sm100_output import Output, load_scaled, take_factors
from gdnbench_kernels.swa_decode.sm100_plan import (
    FEATURES,
    HALF,
    HEADS,
    TOKENS,
    Pipelines,
    Role,
    Shared,
    TileScheduler,
    base_of,
    consumer_state,
    half_mma,
)
from gdnbench_kernels.swa_decode.sm100_softmax import NONE, QUAD, ROWS, Softmax, row_of, thread_of
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.lse_values import lse_in_form, sink_log2
from gdnbench_kernels.v4_decode.splits import first_tile

PAIR = 2
"""Neighbouring features that a thread stores at once."""


@dataclass(frozen=True)
class SegmentScheduler(TileScheduler):
    """The work of CTA (part, worker, split): its split's tiles of the entries of each of its items. An item
    without any has a tile of which no entry counts."""

    window: Gather
    extra: Gather
    split: cutlass.Int32
    splits: cutlass.Int32

    @staticmethod
    def of(rows: Any, heads: int, window: Gather, extra: Gather) -> SegmentScheduler:
        items = TileScheduler.create(rows, heads)
        split, splits = cute.arch.block_idx()[2], cute.arch.grid_dim()[2]
        return SegmentScheduler(
            items.tiles, items.count, items.first, items.stop, window, extra, split, splits
        )

    def window_tiles(self, row: cutlass.Int32) -> Any:
        return tiles_below(self.window, row)

    def range_of(self, row: cutlass.Int32) -> tuple[Any, Any]:
        """(number of the split's first tile, how many it has) of a query row."""
        tiles = self.window_tiles(row) + tiles_below(self.extra, row)
        first = first_tile(self.split, self.splits, tiles)
        after = cutlass.min(first_tile(self.split + 1, self.splits, tiles), tiles)
        return first, cutlass.max(after - first, 1)

    def tiles_of(self, turn: cutlass.Int32) -> Any:
        return self.range_of(self.work_tile(turn)[0])[1]


def tiles_below(segment: Gather, row: cutlass.Int32) -> Any:
    """Tiles of the entries of a segment below a row's length."""
    return (cutlass.min(segment.lens[row], segment.room()) + TOKENS - 1) // TOKENS


@dataclass(frozen=True)
class Segments:
    """The GATHER role: tiles of the window, then tiles of the extra segment."""

    window: Gather
    extra: Gather

    @cute.jit
    def load(self, scheduler: SegmentScheduler, pipelines: Pipelines, shared: Shared) -> None:
        registers = Registers.allocate(max(self.window.groups, self.extra.groups))
        step = cutlass.Int32(0)
        for turn in cutlass.range(scheduler.count, unroll=1):
            row, _ = scheduler.work_tile(turn)
            first, tiles = scheduler.range_of(row)
            of_window = scheduler.window_tiles(row)
            for index in cutlass.range(tiles, unroll=1):
                tile = first + index
                warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - Role.GATHER
                lane = Lane.of(shared, warp * WARP + blackwell.lane_of_turn(index))
                if tile < of_window:
                    self.window.load_tile(step + index, row, 0, pipelines, shared, lane, registers)
                else:
                    entry = (tile - of_window) * TOKENS
                    self.extra.load_tile(step + index, row, entry, pipelines, shared, lane, registers)
            step += tiles
        finish(step, pipelines)


def softmax_in(form: LseForm) -> type[Softmax]:
    """The SOFTMAX role that writes lse [R, H] in `form`. A class for
    each form: CuTe DSL has no fields that are known when it compiles, but are no numbers."""

    class FormSoftmax(Softmax):
        @cute.jit
        def _write_lse(
            self, scheduler: Any, row: Any, head: Any, most: cutlass.Float32, total: cutlass.Float32
        ) -> None:
            sink = None
            if cutlass.const_expr(self.attn_sink is not None):
                sink = sink_log2(self.attn_sink[head])
            value = lse_in_form(form, top_of(most, total), total, sink)
            if scheduler.first == 0:
                self.lse[row, head] = value

    return FormSoftmax


class SplitSoftmax(Softmax):
    """Writes lse of the split [n, R H], in base 2."""

    @cute.jit
    def _write_lse(
        self, scheduler: Any, row: Any, head: Any, most: cutlass.Float32, total: cutlass.Float32
    ) -> None:
        value = top_of(most, total) + cute.math.log2(total, fastmath=True)
        if scheduler.first == 0:
            self.lse[scheduler.split, row * self.heads + head] = value


@cute.jit
def top_of(most: cutlass.Float32, total: cutlass.Float32) -> Any:
    """m, or the least one if there are no scores: an lse that includes the sink is then the sink."""
    return cutlass.Float32(NONE) if total == 0.0 else most


@dataclass(frozen=True)
class PartialOutput(Output):
    """Writes o of a split [n, R H, 512] float32, from registers: a thread's two neighbouring features are
    next to those of the other threads of its quad, so every 32 bytes are written at once."""

    o_part: cute.Tensor
    heads: int

    @property
    def tmas(self) -> tuple[blackwell.Tma, ...]:
        return ()

    def _drain(self, warp: cutlass.Int32) -> None:
        pass

    @cute.jit
    def _write_item(
        self,
        turn: cutlass.Int32,
        step: cutlass.Int32,
        scheduler: Any,
        pipelines: Pipelines,
        shared: Shared,
        base: cute.Pointer,
        warp: cutlass.Int32,
        r_inverse: cute.Tensor,
    ) -> None:
        row, head = scheduler.work_tile(turn)
        take_factors(step, pipelines, shared, thread_of(step), r_inverse)
        for quarter in cutlass.range(scheduler.first, scheduler.stop, unroll=1):
            thread = thread_of(quarter)
            copy = blackwell.TmemCopy.create(half_mma(), (HEADS, HALF), base_of(quarter, base), thread)
            r_acc = cute.make_rmem_tensor(copy.coords.shape, cutlass.Float32)
            state = consumer_state(step, quarter)
            pipelines.o.consumer_wait(state)
            blackwell.after_thread_sync()
            for half in cutlass.range_constexpr(FEATURES // HALF):
                load_scaled(half, state, pipelines, copy, r_acc, r_inverse)
                for i in cutlass.range_constexpr(ROWS):
                    at = head + row_of(thread, i)
                    if at < self.heads:
                        column = quarter * FEATURES + half * HALF + thread % QUAD * PAIR
                        self._store(r_acc, i, self._place(scheduler.split, row * self.heads + at, column))

    def _place(self, split: Any, row: Any, column: Any) -> cute.Pointer:
        of_split, of_row, _ = self.o_part.stride
        offset = cutlass.Int64(split) * of_split + cutlass.Int64(row) * of_row + column
        return (self.o_part.iterator + offset).align(4 * PAIR)

    def _store(self, r_acc: cute.Tensor, row: int, place: cute.Pointer) -> None:
        r_pair = cute.make_rmem_tensor((PAIR,), cutlass.Float32)
        for pair in range(HALF // (QUAD * PAIR)):
            for i in range(PAIR):
                r_pair[i] = r_acc[(pair * ROWS + row) * PAIR + i]
            target = cute.make_tensor(place + pair * QUAD * PAIR, cute.make_layout(PAIR))
            cute.autovec_copy(r_pair, target)
