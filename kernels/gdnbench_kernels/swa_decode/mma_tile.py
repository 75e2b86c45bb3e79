"""The steps of the portable kernels on a tile of 128 entries. CuTe DSL.

`kernel_mma` describes them; its kernel attends to one tile, that of `v4_decode.kernel_mma` to the tiles of
two segments.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from math import e, inf, log2
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.head_rows import TILE, Queries
from gdnbench_kernels.swa_decode.latent_rows import BIAS, CHUNK, FEATURE_TILES, NO_NUMBER, PAIR_BITS
from gdnbench_kernels.swa_decode.portable_plan import KEY_TILES, PAIR_ENTRIES, SHARES, WARPS
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

ALL_SHARED = 100
"""Shared-memory carveout in percent of the L1 cache."""
LOG2_E = log2(e)
Q_TOP = 14
"""A head's largest |q| is scaled to [2^14, 2^15)."""
W_TOP = 13
"""Weights are scaled to at most about 2^14."""
LEAST_POWER = -200.0
"""Stands for the largest exponent if all factors are 0."""
FINITE = -3.0e38
"""Replaces a largest score of -inf before it is subtracted."""


@dataclass(frozen=True)
class WorkTile:
    """The work of a CTA: heads `first_head` .. of a token; and this thread's position in it."""

    token: cutlass.Int32
    first_head: cutlass.Int32
    warp: cutlass.Int32
    lane: cutlass.Int32


@dataclass(frozen=True)
class Shared:
    """Addresses of the plan's buffers, except those of the rows."""

    q: cutlass.Int32
    parts: cutlass.Int32
    peaks: cutlass.Int32
    tops: cutlass.Int32
    sums: cutlass.Int32
    factors: cutlass.Int32
    coefficients: cutlass.Int32


class MmaTile:
    """The steps for `heads` heads, `rows` of them per CTA. `rope`: whether the outputs of the last warp are
    of rope, which `latent_rows` stores in another order than codes."""

    def __init__(self, heads: int, rows: int, rope: bool) -> None:
        self.heads = heads
        self.rows = rows
        self.rope = rope
        self.tiles = rows // TILE
        self.groups = -(-heads // rows)
        self.mine = self.tiles * KEY_TILES * 4 // 2
        """Scores of a thread."""

    def row(self, x: cute.Tensor, token: Any, head: Any) -> Any:
        """Address of a head's features in q or o."""
        return x.iterator.toint() + (I64(token) * self.heads + I64(head)) * (2 * HEAD_DIM)

    def read_queries(
        self, token: Any, first_head: Any, warp: Any, lane: Any, q: cute.Tensor
    ) -> list[list[Any]]:
        """16 features of each of this warp's heads, as eight pairs of bf16; zeros past the last head."""
        found = []
        for turn in range(self.rows // WARPS):
            head = first_head + self.warp_row(warp, turn)
            there = I32(head < self.heads)
            row = self.row(q, token, head) + I64(lane * CHUNK)
            found.append([*ops.load_global_if(there, row), *ops.load_global_if(there, row + HEAD_DIM)])
        return found

    def warp_row(self, warp: Any, turn: Any) -> Any:
        """A row of Q that this warp converts and whose sums over warps it computes."""
        return warp * (self.rows // WARPS) + turn

    @cute.jit
    def store_queries(
        self,
        work: WorkTile,
        shared: Shared,
        queries: Queries,
        words: list[list[Any]],
        scale: cutlass.Float32,
    ) -> None:
        """Store rows as f16, each times a power of two; the scores' coefficient compensates."""
        for turn in cutlass.range_constexpr(self.rows // WARPS):
            row = self.warp_row(work.warp, turn)
            largest = words[turn][0] & PAIR_BITS
            for word in cutlass.range_constexpr(1, 8):
                largest = ops.greater_halves(largest, words[turn][word] & PAIR_BITS)
            largest = cutlass.max(largest >> 16, largest & 0x7FFF)
            field = cute.arch.warp_redux_sync(largest, "max") >> 7
            power = cutlass.min(Q_TOP + BIAS - field, BIAS - 1)
            factor = ops.power_of_two(power)
            pairs = []
            for word in cutlass.range_constexpr(8):
                low, high = ops.widened(words[turn][word])
                pairs.append(ops.halves(low * factor, high * factor))
            queries.store_row(row, 0, pairs[:4])
            queries.store_row(row, 1, pairs[4:])
            if work.lane == 0:
                coefficient = scale * F32(LOG2_E) * ops.power_of_two(-power)
                # A query that is not finite has no finite score.
                spoilt = ops.select_value(field == 255, ops.float_of(I32(NO_NUMBER)), coefficient)
                ops.store_shared(shared.coefficients + row * 4, spoilt)

    def halves(self) -> tuple[list[int], list[int]]:
        """Which of a thread's products become scores of the first warp of a pair, and which of the second:
        those of the first 16 heads and of the others, or of heads l / 4 and heads l / 4 + 8."""
        if self.tiles == 2:
            return list(range(self.mine)), list(range(self.mine, 2 * self.mine))
        first = [4 * n + odd for n in range(KEY_TILES) for odd in range(2)]
        return first, [place + 2 for place in first]

    @cute.jit
    def exchange(self, work: WorkTile, shared: Shared, parts: cute.Tensor) -> list[Any]:
        """Scores of this warp's heads. The warp writes its sums for the other warp's heads to s_q, and adds
        the sums that the other warp wrote for its own."""
        mine, lane, warp = self.mine, work.lane, work.warp
        first, second = self.halves()
        at = shared.parts + lane * CHUNK
        theirs = at + (warp ^ 1) * (mine * 128)
        if warp % 2 == 0:
            for place in cutlass.range_constexpr(mine // 4):
                given = [parts[i] for i in second[4 * place : 4 * place + 4]]
                ops.store_shared(theirs + place * 512, *given)
        else:
            for place in cutlass.range_constexpr(mine // 4):
                given = [parts[i] for i in first[4 * place : 4 * place + 4]]
                ops.store_shared(theirs + place * 512, *given)
        cute.arch.barrier(barrier_id=1 + warp // 2, number_of_threads=64)
        found = []
        for place in cutlass.range_constexpr(mine // 4):
            got = ops.load_shared(at + warp * (mine * 128) + place * 512)
            for i in cutlass.range_constexpr(4):
                number = 4 * place + i
                own = ops.select_value(warp % 2 == 0, parts[first[number]], parts[second[number]])
                found.append(own + ops.float_of(got[i]))
        return found

    def places(self, work: WorkTile) -> list[Any]:
        """The first entry of each pair of entries whose scores this thread has."""
        return [work.warp // 2 * PAIR_ENTRIES + 8 * n + work.lane % 4 * 2 for n in range(KEY_TILES)]

    def numbers(self, work: WorkTile) -> list[Any]:
        """The rows whose scores this thread has."""
        heads = self.tiles
        return [work.warp % 2 * (8 * heads) + 8 * half + work.lane // 4 for half in range(heads)]

    def row_scores(
        self, shared: Shared, row: Any, half: int, scores: list[Any], own: list[tuple[Any, ...]]
    ) -> list[Any]:
        """This thread's scores of the row in base 2; -inf where an entry does not count."""
        coefficient = ops.load_shared_float(shared.coefficients + row * 4)
        raw = [scores[(n * self.tiles + half) * 2 + odd] for n in range(KEY_TILES) for odd in range(2)]
        return [
            ops.select_value(counts != 0.0, ops.product(x * coefficient, factor), F32(-inf))
            for x, (factor, _, _, counts) in zip(raw, own, strict=True)
        ]

    def row_peak(self, s: list[Any], own: list[tuple[Any, ...]]) -> tuple[Any, Any]:
        """(the largest score of the row among this warp's entries, the largest exponent of a weight relative
        to it)."""
        peak = ops.greater(ops.across(ops.greatest(s)), F32(FINITE))
        u = [x - peak + exponent for x, (_, exponent, _, _) in zip(s, own, strict=True)]
        return peak, ops.across(ops.greatest(u))

    def store_weights(
        self, weights: Any, row: Any, places: list[Any], t: list[Any], own: list[tuple[Any, ...]], power: Any
    ) -> list[Any]:
        """Store the weights of scores `t`, relative to the reference of sums, times 2^(13 - power); returns
        the weights of the sum."""
        p = [ops.exp2(x) for x in t]
        w = [
            ops.exp2(x + (exponent - power)) * (mantissa * F32(2.0**W_TOP))
            for x, (_, exponent, mantissa, _) in zip(t, own, strict=True)
        ]
        for n, place in enumerate(places):
            weights.store_pair(row, place, ops.halves(w[2 * n], w[2 * n + 1]))
        return p

    @cute.jit
    def publish(
        self,
        work: WorkTile,
        at: cutlass.Int32,
        share: cutlass.Int32,
        rows: list[Any],
        values: list[tuple[Any, ...]],
    ) -> None:
        """Write this warp's result for each row, by one of the lanes that share the row, to [rows, shares,
        values]."""
        if work.lane % 4 == 0:
            for place in cutlass.range_constexpr(len(rows)):
                size = 4 * len(values[place])
                ops.store_shared(at + (rows[place] * SHARES + share) * size, *values[place])

    @cute.jit
    def publish_tops(
        self,
        work: WorkTile,
        shared: Shared,
        share: cutlass.Int32,
        rows: list[Any],
        tops: list[tuple[Any, ...]],
    ) -> None:
        """Write a row's result that is equal in every warp, by one of the warps."""
        if work.lane % 4 == 0 and share == 0:
            for place in cutlass.range_constexpr(len(rows)):
                ops.store_shared(shared.tops + rows[place] * 8, *tops[place])

    def row_peaks(self, shared: Shared, row: Any) -> list[tuple[Any, Any]]:
        """What each warp's `row_peak` of the row is."""
        found = []
        for pair in range(SHARES // 2):
            four = ops.load_shared(shared.peaks + row * (SHARES * 8) + pair * 16)
            found += [tuple(map(ops.float_of, four[:2])), tuple(map(ops.float_of, four[2:]))]
        return found

    def row_total(self, work: WorkTile, shared: Shared, row: Any) -> Any:
        """The sum of a row over warps, in all lanes that share the row."""
        total = ops.load_shared_float(shared.sums + (row * SHARES + work.lane % SHARES) * 4)
        return ops.summed(total, SHARES)

    def shared_row(self, work: WorkTile) -> Any:
        """The row whose sum over warps this lane computes; a row has one lane per share. Lanes past those of
        the warp's rows repeat them."""
        return self.warp_row(work.warp, work.lane // SHARES % (self.rows // WARPS))

    def sink_of(self, work: WorkTile, attn_sink: cute.Tensor) -> Any:
        """The sink of the row whose sums over warps this lane computes; None without sinks."""
        if attn_sink is None:
            return None
        head = cutlass.min(work.first_head + self.shared_row(work), self.heads - 1)
        return ops.float_of(ops.load_index(attn_sink.iterator.toint() + I64(head) * 4))

    @cute.jit
    def store_lse(
        self,
        work: WorkTile,
        head: cutlass.Int32,
        value: cutlass.Float32,
        mine: cutlass.Boolean,
        lse: cute.Tensor,
    ) -> None:
        if mine:
            lse[work.token, head] = value

    def adjacent(self, work: WorkTile, acc: cute.Tensor, m: int, half: int, pair: int) -> tuple[Any, ...]:
        """This thread's four adjacent features of chunk `pair`, of row `half` of tile m. Tiles come in pairs:
        for codes the even and the odd features, for rope the first and the second of every two pairs."""
        one, other = ((m * FEATURE_TILES + 2 * pair + more) * 4 + 2 * half for more in (0, 1))
        first, second, third, last = acc[one], acc[other], acc[one + 1], acc[other + 1]
        if self.rope:
            swap = work.warp == WARPS - 1
            second, third = (
                ops.select_value(swap, third, second),
                ops.select_value(swap, second, third),
            )
        return first, second, third, last

    @cute.jit
    def store(self, work: WorkTile, acc: cute.Tensor, shared: Shared, o: cute.Tensor) -> None:
        """Each thread stores four adjacent features of each chunk of 16."""
        for m in cutlass.range_constexpr(self.tiles):
            for half in cutlass.range_constexpr(2):
                number = m * TILE + 8 * half + work.lane // 4
                head = work.first_head + number
                factor = ops.load_shared_float(shared.factors + number * 4)
                row = self.row(o, work.token, head) + I64(
                    work.warp * (2 * HEAD_DIM // WARPS) + work.lane % 4 * 8
                )
                for pair in cutlass.range_constexpr(FEATURE_TILES // 2):
                    first, second, third, last = self.adjacent(work, acc, m, half, pair)
                    low = ops.bfloats(first * factor, second * factor)
                    high = ops.bfloats(third * factor, last * factor)
                    if head < self.heads:
                        ops.store_global(row + pair * 2 * TILE, low, high)
