"""The window's latent rows in the portable kernel's shared memory: gathered once, read as keys and as values.
CuTe DSL.

Warp w gathers entries 16 w .. 16 w + 15. It and its neighbour w ^ 1 multiply them with the queries, half of
the features each. An entry's factor is not multiplied with its codes but with its scores and weights.

    per_token_scale  the row is its codes, the factor is inv_scale
    fp8_ds_mla       codes times 2^(scale - ref), rope as f16 2^-ref, the factor is 2^ref. ref makes the
                     largest possible value about 2^15. The bound comes from the scales, or from the codes
                     themselves if rope is less than 2^-16 of the scales' bound. Values are exact down to
                     2^-27 of the largest value, and accurate to 2^-40 of it below that.

An entry that does not count is a row of zeros; nothing is read for it.

Keys, for products over 16 features: lane l has features 4 (l % 4) .. + 3 of entries l / 4 and l / 4 + 8, so
position 2 t of such a product is feature 4 t, and position 8 + 2 t is feature 4 t + 2. Rope is stored so that
`ldmatrix` gives it in that order too.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.layouts import DATA_BYTES, SCALE_BYTES, CacheLayout
from gdnbench_kernels.swa_decode.portable_plan import ENTRIES, PAIR_ENTRIES, ROW_BYTES
from gdnbench_kernels.swa_decode.sizes import GROUP, GROUPS, HEAD_DIM, MAX_WINDOW, NOPE_DIM, ROPE_DIM
from gdnbench_kernels.swa_decode.window import PADDING

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

CHUNK = 16
"""Bytes that one thread copies, and one row of a matrix."""
STEP = 16
"""Features of a product."""
ROPE_CHUNK = NOPE_DIM // CHUNK
ROPE_PARTS = 2 * ROPE_DIM // CHUNK
"""Lanes that convert one row's rope."""

TURN = 32 // ROPE_PARTS
"""Rows whose rope a warp converts at once."""
FEATURE_TILES = GROUP // 8
"""Tiles of 8 features in one warp's share of the outputs."""

ALL_ENTRIES = (1 << ENTRIES) - 1
"""Bits of the entries of a warp that count."""

PER_TOKEN_PITCH = ROW_BYTES[CacheLayout.PER_TOKEN_SCALE]
DS_MLA_PITCH = ROW_BYTES[CacheLayout.FP8_DS_MLA]

BIAS = 127
CODE_BITS = 9
"""|code| < 2^9."""
TOP = 15
"""Values are scaled to below 2^15; f16 ends at 2^16."""
LEAST, MOST = -126, 121
"""The range of `ref`."""
NAN_SCALE = 255
SLACK = 16
"""If the scales' bound exceeds rope by more than this power of two, the codes themselves are read."""
CODE_MAGNITUDE, CODE_MANTISSA, CODE_BIAS = 0x7F, 3, 7
"""e4m3: bits without the sign, bits of the mantissa, bias of the exponent."""
NOTHING_THERE = -1000
NOTHING_ABOVE = 1000
"""The bound of a row whose scale is NaN."""
NO_NUMBER = 0x7FC0_0000
"""Bits of a NaN."""
ONE = 0x3F80_0000
"""Bits of 1."""
PAIR_BITS = 0x7FFF_7FFF
"""Mask of two bf16 without their signs."""
VALUE_BITS = 0x7FFF_0000
"""Mask of a bf16 in the high half of a word, without the sign."""


@dataclass(frozen=True)
class Pages:
    """The cache in global memory."""

    base: cutlass.Int64
    stride: cutlass.Int64
    shift: cutlass.Int32

    def page(self, slot: Any) -> Any:
        return self.base + I64(slot >> self.shift) * self.stride

    def offset(self, slot: Any) -> Any:
        """The slot's position in its page, in tokens."""
        return slot & ((I32(1) << self.shift) - 1)


@dataclass(frozen=True)
class Entries:
    """The entries of one warp: lanes l and l + 16 have slot number l, -1 if it does not count."""

    slots: cutlass.Int32
    warp: cutlass.Int32
    lane: cutlass.Int32
    arrived: cute.Pointer  # the mbarrier of this warp's entries
    beside: cute.Pointer  # the mbarrier of its neighbour's entries

    def slot(self, number: Any) -> Any:
        """The slot of an entry of this warp: the same in all lanes, or one per lane."""
        return cute.arch.shuffle_sync(self.slots, number)


@dataclass(frozen=True)
class Rows:
    """The addresses of the rows in shared memory, and their factors."""

    s_rows: cutlass.Int32
    s_entries: cutlass.Int32

    def store_entry(self, entry: Any, factor: Any, exponent: Any, mantissa: Any, counts: Any) -> None:
        ops.store_shared(self.s_entries + entry * 16, factor, exponent, mantissa, counts)

    def entry(self, number: Any) -> tuple[Any, ...]:
        """(factor, exponent, mantissa, 1 if it counts) of an entry."""
        return tuple(map(ops.float_of, ops.load_shared(self.s_entries + number * 16)))

    def matrices(self, first: Any, chunk: Any, lane: Any, pitch: int) -> Any:
        """The lane's address in four matrices: entries `first` .. + 15 at `chunk`, then at the next chunk."""
        return self.s_rows + (first + (lane & 15)) * pitch + (chunk + (lane >> 4)) * CHUNK

    def keys(self, first: Any, step: Any, lane: Any, pitch: int) -> list[list[Any]]:
        """Codes of 32 entries for two steps: for each step a word of every 8 entries."""
        found: list[list[Any]] = [[], []]
        for entry in range(0, PAIR_ENTRIES, ENTRIES):
            words = ops.ldmatrix(self.matrices(first + entry, step, lane, pitch))
            found[0] += words[:2]
            found[1] += words[2:]
        return found

    @cute.jit
    def load_codes_async(
        self,
        entries: Entries,
        pages: Pages,
        row: cutlass.Constexpr,
        size: cutlass.Constexpr,
        pitch: cutlass.Constexpr,
    ) -> None:
        """Start the copies of codes: `size` bytes of rows that are `row` bytes apart; zeros for entries that
        do not count."""
        lane, slot = entries.lane, entries.slots
        mine = slot != PADDING and lane < ENTRIES
        given = cute.arch.vote_ballot_sync(mine)
        if lane == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(entries.arrived, cute.arch.popc(given) * size)
        cute.arch.sync_warp()
        source = pages.page(slot) + I64(pages.offset(slot) * row)
        if given == ALL_ENTRIES:
            sources = [ops.shuffled_wide(source, number) for number in range(ENTRIES)]
            with cute.arch.elect_one():
                self.copy_all(entries, sources, size, pitch)
        else:
            if mine:
                target = self.s_rows + (entries.warp * ENTRIES + lane) * pitch
                ops.copy_bulk(target, source, size, entries.arrived.toint())
            zero = I32(0)
            for number in cutlass.range(ENTRIES, unroll=1):
                if (given >> number) & 1 == 0 and lane < size // CHUNK:
                    target = self.s_rows + (entries.warp * ENTRIES + number) * pitch + lane * CHUNK
                    ops.store_shared(target, zero, zero, zero, zero)

    def copy_all(self, entries: Entries, sources: list[Any], size: int, pitch: int) -> None:
        """Start the copies of all entries, by one thread: of copies of several lanes ptxas makes a loop, one
        lane after the other."""
        first, barrier = self.s_rows + entries.warp * (ENTRIES * pitch), entries.arrived.toint()
        for number, source in enumerate(sources):
            ops.copy_bulk(first + number * pitch, source, size, barrier)


@dataclass(frozen=True)
class PerTokenRows(Rows):
    """Rows of 512 codes."""

    inv_scale: cute.Tensor

    def gather(self, entries: Entries, pages: Pages) -> tuple[Any, ...]:
        """Start the copies; returns the loads in flight that `describe` needs."""
        factor = self.factor(entries.slots)
        self.load_codes_async(entries, pages, HEAD_DIM, HEAD_DIM, PER_TOKEN_PITCH)
        return (factor,)

    @cute.jit
    def factor(self, slot: cutlass.Int32) -> cutlass.Float32:
        factor = F32(0.0)
        if slot != PADDING:
            factor = F32(self.inv_scale[slot])
        return factor

    @cute.jit
    def describe(self, entries: Entries, pages: Pages, loaded: tuple[Any, ...]) -> None:
        """Store the factors, each split into a power of two and a rest in [1, 2)."""
        factor = loaded[0]
        bits = ops.bits_of(factor)
        small = ((bits >> 23) & 255) == 0
        bits = ops.select_value(small, ops.bits_of(factor * F32(2.0**32)), bits)
        field = (bits >> 23) & 255
        exponent = F32(field - ops.select_value(small, I32(BIAS + 32), I32(BIAS)))
        exponent = ops.select_value(field == 0, F32(-inf), exponent)
        rest = (bits & ~0x7F80_0000) | ONE
        rest = ops.select_value(field == 0, I32(0), rest)
        # An infinite scale makes the row NaN too, because its codes of 0 times the scale are NaN.
        rest = ops.select_value(field == 255, I32(NO_NUMBER), rest)
        factor = ops.select_value(field == 255, ops.float_of(I32(NO_NUMBER)), factor)
        counts = ops.select_value(entries.slots != PADDING, F32(1.0), F32(0.0))
        if entries.lane < ENTRIES:
            entry = entries.warp * ENTRIES + entries.lane
            self.store_entry(entry, factor, exponent, ops.float_of(rest), counts)

    @cute.jit
    def score(
        self, acc: cute.Tensor, queries: Any, pair: cutlass.Int32, half: cutlass.Int32, lane: cutlass.Int32
    ) -> None:
        """acc[m][n] += Q K^T of a pair's entries, over half of the features."""
        first = pair * PAIR_ENTRIES
        for two in cutlass.range(HEAD_DIM // STEP // 4, unroll=HEAD_DIM // STEP // 4):
            step = half * (HEAD_DIM // STEP // 2) + 2 * two
            words = self.keys(first, step, lane, PER_TOKEN_PITCH)
            for more in cutlass.range_constexpr(2):
                queries.mma(acc, step + more, [ops.halves_of_codes(word) for word in words[more]])

    @cute.jit
    def weigh(self, acc: cute.Tensor, weights: Any, warp: cutlass.Int32, lane: cutlass.Int32) -> None:
        """acc[m][n] += P V of this warp's features."""
        for step in cutlass.range(MAX_WINDOW // ENTRIES, unroll=MAX_WINDOW // ENTRIES):
            a = weights.fragments(step)
            for pair in cutlass.range_constexpr(GROUP // CHUNK // 2):
                chunk = warp * (GROUP // CHUNK) + 2 * pair
                address = self.matrices(step * ENTRIES, chunk, lane, PER_TOKEN_PITCH)
                multiply_codes(acc, 4 * pair, a, ops.ldmatrix_transposed(address))


@dataclass(frozen=True)
class DsMlaRows(Rows):
    """Rows of 448 codes, then 64 f16."""

    s_groups: cutlass.Int32
    block_size: cutlass.Int32

    def gather(self, entries: Entries, pages: Pages) -> tuple[Any, ...]:
        """Start the copies; returns the loads in flight that `describe` needs: rope and scales, 8 lanes per
        row and 4 rows at once."""
        self.load_codes_async(entries, pages, DATA_BYTES, NOPE_DIM, DS_MLA_PITCH)
        return self.load(entries, pages)

    def load(self, entries: Entries, pages: Pages) -> tuple[Any, ...]:
        """Start the loads of rope and scales."""
        loaded: list[Any] = []
        for turn in range(ENTRIES // TURN):
            counts, page, offset, part = self.place(entries, pages, turn)
            rope = page + I64(offset * DATA_BYTES + NOPE_DIM + part * CHUNK)
            scale = page + I64(self.block_size * DATA_BYTES + offset * SCALE_BYTES + part)
            scaled = ops.select_value(part < GROUPS, I32(counts), I32(0))
            loaded += [*ops.load_global_if(I32(counts), rope), ops.load_byte_if(scaled, scale), I32(counts)]
        return tuple(loaded)

    def place(self, entries: Entries, pages: Pages, turn: int) -> tuple[Any, Any, Any, Any]:
        """(whether the row of this lane in a turn counts, its page, its position there, the lane's part)."""
        slot = entries.slot(TURN * turn + entries.lane // ROPE_PARTS)
        counts = slot != PADDING
        slot = ops.select_value(counts, slot, I32(0))
        return counts, pages.page(slot), pages.offset(slot), entries.lane % ROPE_PARTS

    def describe(self, entries: Entries, pages: Pages, loaded: tuple[Any, ...]) -> None:
        """Store factors, groups' factors, and rope."""
        for row in self.rows(entries, pages, loaded):
            self.describe_row(*row)

    def rows(self, entries: Entries, pages: Pages, loaded: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The arguments of `describe_row` for each row. All rows go through a step together: a shuffle then
        waits for the previous step, not for another row."""
        part = entries.lane % ROPE_PARTS
        numbers = [TURN * turn + entries.lane // ROPE_PARTS for turn in range(ENTRIES // TURN)]
        each = [loaded[6 * turn : 6 * turn + 6] for turn in range(ENTRIES // TURN)]
        scales = [scale for *_, scale, _ in each]
        # |rope| < 2^(field - 126), |code| 2^(scale - 127) < 2^(scale - 118)
        above_ropes = [over_row((largest_of(rope) >> 23) - (BIAS - 1)) for *rope, _, _ in each]
        largest_scales = [over_row(scale) for scale in scales]
        above_codes = self.above_all_codes(entries, pages, numbers, part, scales, above_ropes, largest_scales)
        found = []
        for turn, (*rope, scale, counts) in enumerate(each):
            above = cutlass.max(above_ropes[turn], above_codes[turn])
            above = ops.select_value(largest_scales[turn] == NAN_SCALE, I32(NOTHING_ABOVE), above)
            entry = entries.warp * ENTRIES + numbers[turn]
            found.append((entry, part, rope, scale, counts, above))
        return found

    @cute.jit
    def above_all_codes(
        self,
        entries: Entries,
        pages: Pages,
        numbers: list[Any],
        part: cutlass.Int32,
        scales: list[Any],
        above_ropes: list[Any],
        largest_scales: list[Any],
    ) -> cute.Tensor:
        """A bound of each row's code values: from their largest scale, or from the codes if that is far above
        the row's rope."""
        found = cute.make_rmem_tensor((len(scales),), I32)
        far = cutlass.Boolean(False)
        for turn in cutlass.range_constexpr(len(scales)):
            found[turn] = largest_scales[turn] - (BIAS - CODE_BITS)
            far = far | (found[turn] > above_ropes[turn] + SLACK)
        if cute.arch.vote_any_sync(far):
            for turn in cutlass.range_constexpr(len(scales)):
                found[turn] = over_row(self.above_codes(entries, pages, numbers[turn], part, scales[turn]))
        return found

    @cute.jit
    def describe_row(
        self,
        entry: cutlass.Int32,
        part: cutlass.Int32,
        rope: list[Any],
        scale: cutlass.Int32,
        counts: cutlass.Int32,
        above: cutlass.Int32,
    ) -> None:
        """Called by each of the 8 lanes of a row."""
        ref = self.store_scales(entry, part, scale, counts, above)
        self.store_rope(entry, part, rope, ops.power_of_two(-ref))

    @cute.jit
    def store_scales(
        self,
        entry: cutlass.Int32,
        part: cutlass.Int32,
        scale: cutlass.Int32,
        counts: cutlass.Int32,
        above: cutlass.Int32,
    ) -> cutlass.Int32:
        """Store the factors of a group and of the row; returns the exponent by which rope is divided."""
        ref = cutlass.min(cutlass.max(above - TOP, LEAST), MOST)
        if part < GROUPS:
            group = ops.power_of_two(cutlass.min(cutlass.max(scale - BIAS - ref, LEAST), TOP))
            ops.store_shared_half(self.s_groups + (part * MAX_WINDOW + entry) * 2, group)
        if part == 0:
            spoilt = above == NOTHING_ABOVE
            factor = ops.select_value(spoilt, I32(NO_NUMBER), (ref + BIAS) << 23)
            mantissa = ops.select_value(spoilt, I32(NO_NUMBER), I32(ONE))
            self.store_entry(entry, ops.float_of(factor), F32(ref), ops.float_of(mantissa), F32(counts))
        return ref

    @cute.jit
    def above_codes(
        self,
        entries: Entries,
        pages: Pages,
        number: cutlass.Int32,
        part: cutlass.Int32,
        scale: cutlass.Int32,
    ) -> cutlass.Int32:
        """A bound of the values of a lane's group of a row, from its codes: all may be small or 0 although
        the scale is not. Its exponent is at least the scale's, so the group's own factor is at most 2^15,
        which f16 can represent."""
        slot = entries.slot(number)
        reads = I32(slot != PADDING and part < GROUPS)
        slot = ops.select_value(slot != PADDING, slot, I32(0))
        codes = pages.page(slot) + I64(pages.offset(slot) * DATA_BYTES + part * GROUP)
        largest = I32(0)
        for chunk in cutlass.range(GROUP // CHUNK, unroll=1):
            words = ops.load_global_if(reads, codes + I64(chunk * CHUNK))
            for word in cutlass.range_constexpr(4):
                for byte in cutlass.range_constexpr(4):
                    largest = cutlass.max(largest, (words[word] >> (8 * byte)) & CODE_MAGNITUDE)
        # |code| < 2^(field - 6), and field is at least 1 but for the subnormal ones.
        above = scale - BIAS + cutlass.max((largest >> CODE_MANTISSA) - (CODE_BIAS - 1), 0)
        return ops.select_value(largest == 0, I32(NOTHING_THERE), above)

    def store_rope(self, entry: Any, part: Any, rope: list[Any], scale: Any) -> None:
        """Store features 8 part .. + 7, four pairs: the first and third to one chunk, the others to
        another."""
        pairs = []
        for word in rope:
            low, high = ops.widened(word)
            pairs.append(ops.halves(low * scale, high * scale))
        for odd in range(2):
            chunk = ROPE_CHUNK + part // 2 * 2 + odd
            address = self.s_rows + entry * DS_MLA_PITCH + chunk * CHUNK + part % 2 * (CHUNK // 2)
            ops.store_shared(address, pairs[odd], pairs[odd + 2])

    @cute.jit
    def score(
        self, acc: cute.Tensor, queries: Any, pair: cutlass.Int32, half: cutlass.Int32, lane: cutlass.Int32
    ) -> None:
        """acc[m][n] += Q K^T of a pair's entries, over half of the features."""
        first = pair * PAIR_ENTRIES
        for group in cutlass.range(GROUPS // 2, unroll=GROUPS // 2):
            self.score_group(acc, queries, first, half * (GROUPS // 2 + 1) + group, lane)
        if half == 0:
            self.score_group(acc, queries, first, I32(GROUPS // 2), lane)
        else:
            for two in cutlass.range_constexpr(ROPE_DIM // STEP // 2):
                for more in cutlass.range_constexpr(2):
                    step = NOPE_DIM // STEP + 2 * two + more
                    chunk = ROPE_CHUNK + 4 * two + 2 * more
                    keys = []
                    for entry in cutlass.range_constexpr(0, PAIR_ENTRIES, ENTRIES):
                        words = ops.ldmatrix(self.matrices(first + entry, chunk, lane, DS_MLA_PITCH))
                        keys += [(words[0], words[2]), (words[1], words[3])]
                    queries.mma(acc, step, keys)

    @cute.jit
    def score_group(
        self, acc: cute.Tensor, queries: Any, first: cutlass.Int32, group: cutlass.Int32, lane: cutlass.Int32
    ) -> None:
        at = self.s_groups + (group * MAX_WINDOW + first + lane // 4) * 2
        scales = [ops.load_shared_half(at + 2 * more) for more in range(0, PAIR_ENTRIES, 8)]
        for two in cutlass.range_constexpr(2):
            step = group * (GROUP // STEP) + 2 * two
            words = self.keys(first, step, lane, DS_MLA_PITCH)
            for more in cutlass.range_constexpr(2):
                keys = []
                for place in cutlass.range_constexpr(len(scales)):
                    one, other = ops.halves_of_codes(words[more][place])
                    keys.append((ops.scaled(one, scales[place]), ops.scaled(other, scales[place])))
                queries.mma(acc, step + more, keys)

    @cute.jit
    def weigh(self, acc: cute.Tensor, weights: Any, warp: cutlass.Int32, lane: cutlass.Int32) -> None:
        """acc[m][n] += P V of this warp's features."""
        if warp < GROUPS:
            self.weigh_codes(acc, weights, warp, lane)
        if warp == GROUPS:
            self.weigh_rope(acc, weights, lane)

    @cute.jit
    def weigh_codes(self, acc: cute.Tensor, weights: Any, warp: cutlass.Int32, lane: cutlass.Int32) -> None:
        for step in cutlass.range(MAX_WINDOW // ENTRIES, unroll=MAX_WINDOW // ENTRIES):
            a = weights.fragments(step)
            at = self.s_groups + (warp * MAX_WINDOW + step * ENTRIES + lane % 4 * 2) * 2
            low_scale, high_scale = (ops.load_shared_word(at + 2 * more) for more in (0, 8))
            for pair in cutlass.range_constexpr(GROUP // CHUNK // 2):
                chunk = warp * (GROUP // CHUNK) + 2 * pair
                address = self.matrices(step * ENTRIES, chunk, lane, DS_MLA_PITCH)
                words = ops.ldmatrix_transposed(address)
                multiply_codes(acc, 4 * pair, a, words, (low_scale, high_scale))

    @cute.jit
    def weigh_rope(self, acc: cute.Tensor, weights: Any, lane: cutlass.Int32) -> None:
        for step in cutlass.range(MAX_WINDOW // ENTRIES, unroll=MAX_WINDOW // ENTRIES):
            a = weights.fragments(step)
            for pair in cutlass.range_constexpr(ROPE_DIM // STEP):
                chunk = ROPE_CHUNK + 2 * pair
                words = ops.ldmatrix_transposed(self.matrices(step * ENTRIES, chunk, lane, DS_MLA_PITCH))
                multiply_tiles(acc, 2 * pair, a, words[:2], words[2:])


def largest_of(words: list[Any]) -> Any:
    """Bits of the largest magnitude among pairs of bf16, as bits of a float."""
    largest = I32(0)
    for word in words:
        largest = cutlass.max(largest, cutlass.max(word & VALUE_BITS, (word << 16) & VALUE_BITS))
    return largest


def over_row(value: Any) -> Any:
    """The largest value among the 8 lanes of a row."""
    for step in range(3):
        value = cutlass.max(value, cute.arch.shuffle_sync_bfly(value, 1 << step))
    return value


def multiply_codes(
    acc: cute.Tensor, tile: int, a: list[ops.Quad], words: ops.Quad, scales: tuple[Any, Any] | None = None
) -> None:
    """Multiply two chunks of 16 features, each a tile of even ones and a tile of odd ones; `scales` are those
    of the first 8 entries and of the others."""
    for chunk in range(2):
        parts = [ops.transposed_halves_of_codes(word) for word in words[2 * chunk : 2 * chunk + 2]]
        if scales is not None:
            parts = [
                (ops.scaled(even, scale), ops.scaled(odd, scale))
                for (even, odd), scale in zip(parts, scales, strict=True)
            ]
        (even_low, odd_low), (even_high, odd_high) = parts
        multiply_tiles(acc, tile + 2 * chunk, a, (even_low, even_high), (odd_low, odd_high))


def multiply_tiles(acc: cute.Tensor, tile: int, a: list[ops.Quad], one: ops.Pair, other: ops.Pair) -> None:
    """Multiply tiles `tile` and the next one, for every 16 rows."""
    for m, part in enumerate(a):
        for more, b in enumerate((one, other)):
            ops.mma(acc, (m * FEATURE_TILES + tile + more) * 4, part, b)
