"""The SOFTMAX role of kernel_sm100.py: weights from scores, and what o is multiplied by. CuTe DSL.

An item is all that is attended to by a request and a tile of heads: one tile of 128 entries, or with `tiled`
several, one after the other. Then m, l and g of kernel_sm100.py are those of the tiles so far, and what was
computed with the former ones is multiplied by

    e[h] = exp2(former m[h] - m[h])          l
    c[h] = e[h] former g[h] / g[h]           o: OUTPUT does it, in tensor memory

A tile's weights are rounded relative to g of the tiles so far, which only grows: a row with most of the
weight has weight 1 or -1 there too.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.plan import WARP
from gdnbench_kernels.swa_decode.sm100_plan import (
    HALF,
    HEADS,
    T_S,
    TOKENS,
    Pipelines,
    Shared,
    Tile,
    TileScheduler,
    consumer_state,
    half_mma,
    producer_state,
)
from gdnbench_kernels.swa_decode.warp_ops import product

BF16 = cutlass.BFloat16
LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
LEAST_NORMAL = 2.0**-126
GREATEST = 2.0**126
"""Its reciprocal is LEAST_NORMAL; reciprocals of larger numbers are flushed to 0."""
FINITE = (2 - 2.0**-23) * 2.0**127
"""The largest float32."""
NONE, LEAST = -3.0e38, -2.9e38
"""m of several tiles if no entry counts, and if only scores of -inf do. exp2 of a number less these is
infinite, of these less a number 0."""
NOTHING = 1.0
"""m if no token counts. No other row has this m with l = 0: its largest score would add 1 to l."""
WARPGROUP = 4
"""Warps that read all lanes of tensor memory."""
QUAD = 4
"""Threads that share a row of an accumulator."""
ROWS = 2
"""Rows of an accumulator per thread, `ROW_DISTANCE` apart."""
ROW_DISTANCE = 8


@dataclass(frozen=True)
class Rows:
    """What a thread holds of its rows: m, l of its own scores, g; with several tiles what the last one
    multiplies sums with."""

    max: cute.Tensor
    sum: cute.Tensor
    top: cute.Tensor
    change: cute.Tensor

    @staticmethod
    def allocate() -> Rows:
        return Rows(*(cute.make_rmem_tensor((ROWS,), cutlass.Float32) for _ in range(4)))


@dataclass(frozen=True)
class Scores:
    """What a thread holds of a tile: its scores, then weights, in halves; and half of them as bf16."""

    thread: cutlass.Int32
    copy: blackwell.TmemCopy
    s: list[cute.Tensor]
    p: cute.Tensor

    @staticmethod
    def allocate(base: cute.Pointer, thread: cutlass.Int32) -> Scores:
        copy = blackwell.TmemCopy.create(half_mma(), (HEADS, HALF), base, thread)
        r_s = [cute.make_rmem_tensor(copy.coords.shape, cutlass.Float32) for _ in range(TOKENS // HALF)]
        return Scores(thread, copy, r_s, cute.make_rmem_tensor(copy.coords.shape, BF16))


@dataclass(frozen=True)
class Softmax:
    """The role for `heads` heads. `scaled`: rows have factors, which are 1 otherwise."""

    heads: int
    scaled: bool
    tiled: bool
    attn_sink: Any
    lse: Any
    scale: cutlass.Float32

    @cute.jit
    def weigh(
        self, scheduler: TileScheduler, pipelines: Pipelines, shared: Shared, base: cute.Pointer
    ) -> None:
        """Compute P from S, and the factor of each row of o."""
        thread = cute.arch.thread_idx()[0]
        rows = Rows.allocate()
        scores = Scores.allocate(base, thread)
        factor = self.scale * LOG2_E
        step = cutlass.Int32(0)
        for turn in cutlass.range(scheduler.count, unroll=1):
            if cutlass.const_expr(self.tiled):
                rows.max.fill(NONE)
                rows.sum.fill(0.0)
                rows.top.fill(0.0 if self.scaled else 1.0)
                tiles = scheduler.tiles_of(turn)
                for index in cutlass.range(tiles, unroll=1):
                    tile = Tile(step + index, index > 0)
                    # Not hoisted, for the sake of registers.
                    scores = Scores.allocate(base, thread_of(tile.step))
                    self._weigh_tile(tile, pipelines, shared, scores, rows, factor)
                step += tiles
                self._finish(turn, step - 1, scheduler, pipelines, shared, rows)
            else:
                self._weigh_tile(Tile(turn, False), pipelines, shared, scores, rows, factor)
                self._finish(turn, turn, scheduler, pipelines, shared, rows)
        last = step if self.tiled else scheduler.count
        pipelines.p.producer_acquire(producer_state(last))
        pipelines.inverse.producer_acquire(producer_state(last))

    @cute.jit
    def _weigh_tile(
        self,
        tile: Tile,
        pipelines: Pipelines,
        shared: Shared,
        scores: Scores,
        rows: Rows,
        factor: cutlass.Float32,
    ) -> None:
        thread = scores.thread
        state = consumer_state(tile.step)
        pipelines.factor.consumer_wait(state)
        pipelines.scores.consumer_wait(state)
        blackwell.after_thread_sync()
        for half in cutlass.range_constexpr(len(scores.s)):
            scores.copy.load(T_S, 0, half * HALF, scores.s[half])
        cute.arch.fence_view_async_tmem_load()
        blackwell.before_thread_sync()
        pipelines.scores.consumer_release(state)
        r_most = cute.make_rmem_tensor((ROWS,), cutlass.Float32) if self.tiled else rows.max
        r_top = cute.make_rmem_tensor((ROWS,), cutlass.Float32) if self.tiled else rows.top
        r_most.fill(-math.inf)
        for half in cutlass.range_constexpr(len(scores.s)):
            self._scale(shared, half, thread % QUAD, factor, scores.s[half], r_most)
            # Prevent ptxas from hoisting the loads of the other half's factors, which would cost registers.
            cute.arch.sync_warp()
        if cutlass.const_expr(self.tiled):
            self._raise_max(shared, thread % WARP, r_most, rows)
        else:
            self._only_max(shared, thread % WARP, rows)
        r_top.fill(0.0)
        for half in cutlass.range_constexpr(len(scores.s)):
            self._exponentiate(shared, half, thread % QUAD, scores.s[half], r_top, rows)
            cute.arch.sync_warp()
        pipelines.factor.consumer_release(state)
        r_inverse = self._invert(r_top, rows)
        if tile.more:
            self._tell_change(tile, pipelines, shared, rows)
        pipelines.p.producer_acquire(producer_state(tile.step))
        for half in cutlass.range_constexpr(len(scores.s)):
            for i in cutlass.range_constexpr(cute.size(scores.p)):
                scores.p[i] = (scores.s[half][i] * r_inverse[i // 2 % ROWS]).to(BF16)
            s_half = cute.local_tile(shared.p[None, None, 0], (HEADS, HALF), (0, half))
            scores.copy.stmatrix(scores.p, s_half)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.p.producer_commit(producer_state(tile.step))

    @cute.jit
    def _only_max(self, shared: Shared, lane: cutlass.Int32, rows: Rows) -> None:
        """m of the only tile; l = 0."""
        none = cutlass.Float32(0.0) if any_counts(shared, lane) else cutlass.Float32(NOTHING)
        for row in cutlass.range_constexpr(ROWS):
            across_quad(rows.max, row, cute.arch.fmax)
            # Never subtract an infinity from itself: neither -inf (no score) nor +inf (a score).
            rows.max[row] = none if rows.max[row] == -math.inf else cute.arch.fmin(rows.max[row], FINITE)
        rows.sum.fill(0.0)

    @cute.jit
    def _raise_max(self, shared: Shared, lane: cutlass.Int32, r_most: cute.Tensor, rows: Rows) -> None:
        """m of the tiles so far; l of the former ones relative to it."""
        least = cutlass.Float32(LEAST) if any_counts(shared, lane) else cutlass.Float32(NONE)
        for row in cutlass.range_constexpr(ROWS):
            across_quad(r_most, row, cute.arch.fmax)
            most = cute.arch.fmin(cute.arch.fmax(rows.max[row], cute.arch.fmax(r_most[row], least)), FINITE)
            rows.change[row] = cute.math.exp2(rows.max[row] - most, fastmath=True)
            rows.sum[row] = product(rows.sum[row], rows.change[row])
            rows.max[row] = most

    @cute.jit
    def _scale(
        self,
        shared: Shared,
        half: cutlass.Constexpr,
        lane: cutlass.Int32,
        factor: cutlass.Float32,
        r_s: cute.Tensor,
        r_max: cute.Tensor,
    ) -> None:
        """Scores as exponents of 2, -inf where a token does not count, and their maxima, which ignore NaN."""
        for pair in cutlass.range_constexpr(HALF // 8):
            r_pair = self._factors(shared, half, pair, lane)
            for i in cutlass.range_constexpr(4):
                at, token = 4 * pair + i, i % 2
                score = r_s[at] * (r_pair[2 * token] * factor)
                # Replace, not add: a NaN in the query must not affect an entry that does not count.
                r_s[at] = score if r_pair[2 * token + 1] == 0.0 else cutlass.Float32(-math.inf)
                r_max[i // 2] = cute.arch.fmax(r_max[i // 2], r_s[at])

    @cute.jit
    def _exponentiate(
        self,
        shared: Shared,
        half: cutlass.Constexpr,
        lane: cutlass.Int32,
        r_s: cute.Tensor,
        r_top: cute.Tensor,
        rows: Rows,
    ) -> None:
        """p f of half the tile; the sums of p; the largest |p f|."""
        for pair in cutlass.range_constexpr(HALF // 8):
            r_pair = self._factors(shared, half, pair, lane)
            for i in cutlass.range_constexpr(4):
                at, row = 4 * pair + i, i // 2
                p = cute.math.exp2(r_s[at] - rows.max[row], fastmath=True)
                rows.sum[row] = rows.sum[row] + p
                r_s[at] = p * r_pair[2 * (i % 2)] if self.scaled else p
                r_top[row] = cute.arch.fmax(r_top[row], cute.math.absf(r_s[at]))

    @cute.jit
    def _invert(self, r_top: cute.Tensor, rows: Rows) -> cute.Tensor:
        """1 / g. Writes g, the largest |p f|, to rows.top; with several tiles that of the tiles so far, and c
        to rows.change. Without factors g is 1."""
        r_inverse = cute.make_rmem_tensor((ROWS,), cutlass.Float32)
        r_inverse.fill(1.0)
        if cutlass.const_expr(not self.scaled):
            rows.top.fill(1.0)
        else:
            for row in cutlass.range_constexpr(ROWS):
                across_quad(r_top, row, cute.arch.fmax)
                if cutlass.const_expr(self.tiled):
                    former = product(rows.top[row], rows.change[row])
                    r_top[row] = cute.arch.fmax(r_top[row], former)
                # Numbers outside this range have no reciprocal.
                rows.top[row] = cute.arch.fmin(cute.arch.fmax(r_top[row], LEAST_NORMAL), GREATEST)
                r_inverse[row] = cute.arch.rcp_approx(rows.top[row])
                if cutlass.const_expr(self.tiled):
                    same = rows.top[row] == former
                    rows.change[row] = cutlass.Float32(1.0) if same else former * r_inverse[row]
        return r_inverse

    def _factors(self, shared: Shared, half: int, pair: int, lane: cutlass.Int32) -> cute.Tensor:
        """(factor, whether it counts) of this thread's two tokens of each 8."""
        flat = cute.make_tensor(shared.factor.iterator, cute.make_layout(2 * TOKENS))
        r_pair = cute.make_rmem_tensor((4,), cutlass.Float32)
        cute.autovec_copy(cute.local_tile(flat, (4,), (2 * HALF // 4 * half + 4 * pair + lane,)), r_pair)
        return r_pair

    @cute.jit
    def _tell_change(self, tile: Tile, pipelines: Pipelines, shared: Shared, rows: Rows) -> None:
        """Write c for OUTPUT, of the tile before."""
        thread = thread_of(tile.step)
        state = producer_state(tile.step - 1)
        pipelines.inverse.producer_acquire(state)
        if thread % QUAD == 0:
            for row in cutlass.range_constexpr(ROWS):
                shared.inverse[row_of(thread, row), 0] = rows.change[row]
        pipelines.inverse.producer_commit(state)

    @cute.jit
    def _finish(
        self,
        turn: cutlass.Int32,
        step: cutlass.Int32,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        shared: Shared,
        rows: Rows,
    ) -> None:
        """Write g / denominator of this thread's rows for EPILOGUE, and lse, by one thread of a quad. `step`
        is the item's last tile."""
        thread = thread_of(step) if self.tiled else cute.arch.thread_idx()[0]
        token, first = scheduler.work_tile(turn)
        pipelines.inverse.producer_acquire(producer_state(step))
        for row in cutlass.range_constexpr(ROWS):
            across_quad(rows.sum, row, operator.add)
            at = row_of(thread, row)
            head = first + at
            total = rows.sum[row]
            if thread % QUAD == 0 and head < self.heads:
                if cutlass.const_expr(self.attn_sink is not None):
                    total += cute.math.exp2(self.attn_sink[head] * LOG2_E - rows.max[row], fastmath=True)
                if cutlass.const_expr(self.lse is not None):
                    # All parts of a request have the same lse; part 0 writes it.
                    self._write_lse(scheduler, token, head, rows.max[row], rows.sum[row])
            inverse = rows.top[row] * cute.arch.rcp_approx(total)
            if thread % QUAD == 0:
                # If no token counts, o is 0 whatever the sink.
                nothing = (rows.sum[row] == 0.0) & self._none_counts(rows, row)
                shared.inverse[at, 0] = cutlass.Float32(0.0) if nothing else inverse
        pipelines.inverse.producer_commit(producer_state(step))

    def _none_counts(self, rows: Rows, row: int) -> Any:
        return rows.max[row] == (NONE if self.tiled else NOTHING)

    @cute.jit
    def _write_lse(
        self, scheduler: TileScheduler, token: Any, head: Any, most: cutlass.Float32, total: cutlass.Float32
    ) -> None:
        natural = (most + cute.math.log2(total, fastmath=True)) * LN_2
        if scheduler.first == 0:
            self.lse[token, head] = natural


def thread_of(step: cutlass.Int32) -> cutlass.Int32:
    """The thread in its warpgroup; what is computed from it is computed for each tile, not kept."""
    return cute.arch.make_warp_uniform(cute.arch.warp_idx()) % WARPGROUP * WARP + blackwell.lane_of_turn(step)


@cute.jit
def any_counts(shared: Shared, lane: cutlass.Int32) -> Any:
    """Whether an entry of the tile counts."""
    most = cutlass.Float32(-math.inf)
    for first in cutlass.range_constexpr(0, TOKENS, WARP):
        most = cute.arch.fmax(most, shared.factor[first + lane, 1, 0])
    return cute.arch.vote_any_sync(most == 0.0)


def across_quad(r_values: cute.Tensor, row: int, combine: Callable[..., Any]) -> None:
    """Combine a row's value of four threads; all four get the result."""
    for lane in range(QUAD.bit_length() - 1):
        other = cute.arch.shuffle_sync_bfly(r_values[row], 1 << lane)
        r_values[row] = combine(r_values[row], other)


def row_of(thread: cutlass.Int32, row: int) -> cutlass.Int32:
    """One of the rows of a thread's values in `blackwell.TmemCopy`."""
    return thread // WARP * 16 + thread % WARP // QUAD + row * ROW_DISTANCE
