"""The window's latent rows in the wgmma kernel's shared memory, and the left operands converted from them.

Rows, factors and groups are as in latent_rows.py. One warp here is two virtual warps of `Entries` with 16
entries each. Operands:

    keys    64 entries and 16 features: position p < 8 is feature 4 (p / 2) + p % 2, 8 + p is 2 more
    values  64 features and 16 entries: row r < 8 of a warp's 16 is feature 2 r, row 8 + r is the next

Rope is stored apart from the codes, the even ones of every 16 features first. So its values have the same
order, and position p < 8 of its keys is feature 2 p, position 8 + p the next.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.latent_rows import (
    CHUNK,
    PER_TOKEN_PITCH,
    ROPE_PARTS,
    STEP,
    TURN,
    DsMlaRows,
    Entries,
    Pages,
    PerTokenRows,
)
from gdnbench_kernels.swa_decode.layouts import DATA_BYTES, SCALE_BYTES, CacheLayout
from gdnbench_kernels.swa_decode.portable_plan import ENTRIES
from gdnbench_kernels.swa_decode.sizes import GROUP, GROUPS, HEAD_DIM, MAX_WINDOW, NOPE_DIM, ROPE_DIM
from gdnbench_kernels.swa_decode.sm90_plan import BLOCKS, ROPE_BYTES, row_bytes
from gdnbench_kernels.swa_decode.warp_ops import prefetch
from gdnbench_kernels.swa_decode.window import PADDING

I32, I64 = cutlass.Int32, cutlass.Int64

TILES = BLOCKS // 2
"""Tiles of 64 features of o per warpgroup."""
PITCH = row_bytes(CacheLayout.FP8_DS_MLA)
NOPE_PAIRS = NOPE_DIM // (2 * STEP)
"""Pairs of steps of codes in a row."""
LOADED = 6
"""Words of `DsMlaRows.load` for a row; the last one is whether the row counts."""
LOW_HALVES, HIGH_HALVES = 0x5410, 0x7632
"""Selectors of `prmt`: the low halves of two words, and the high halves."""


@dataclass(frozen=True)
class ThreadCoord:
    """The position of a MULTIPLY thread: `group` is its warpgroup, `warp` its warp in the warpgroup."""

    group: cutlass.Int32
    warp: cutlass.Int32
    lane: cutlass.Int32


@dataclass(frozen=True)
class PerTokenWindow(PerTokenRows):
    """Rows of 512 codes."""

    def load_codes(self, entries: Entries, pages: Pages) -> None:
        self.load_codes_async(entries, pages, HEAD_DIM, HEAD_DIM, PER_TOKEN_PITCH)

    @cute.jit
    def prefetch_descriptions(self, slot: cutlass.Int32, pages: Pages) -> None:
        """Prefetch into L2 what `load` reads for a slot."""
        if slot != PADDING:
            size = self.inv_scale.element_type.width // 8
            prefetch(self.inv_scale.iterator.toint() + I64(slot) * size)

    def load(self, entries: Entries, pages: Pages) -> tuple[Any, ...]:
        """Start the loads that `describe_codes` needs."""
        return (self.factor(entries.slots),)

    def describe_codes(self, entries: Entries, pages: Pages, loaded: tuple[Any, ...]) -> list[Any]:
        """Store the factors; there is no rope."""
        self.describe(entries, pages, loaded)
        return []

    def store_ropes(self, left: list[Any]) -> None:
        """Does nothing: there is no rope."""

    def key_words(self, coord: ThreadCoord, pair: int) -> tuple[Any, ...]:
        """Start loading the words of `key_operands`: 32 features."""
        return ops.ldmatrix(self.matrices(first_entry(coord), 2 * pair, coord.lane, PER_TOKEN_PITCH))

    def key_operands(self, coord: ThreadCoord, pair: int, words: tuple[Any, ...]) -> list[ops.Quad]:
        """Operands of two steps."""
        return [keys_of(*words[:2]), keys_of(*words[2:])]

    def value_words(self, coord: ThreadCoord, step: int) -> tuple[Any, ...]:
        """Start loading the words of `value_operands`: 16 entries."""
        found: list[Any] = []
        for first in range(0, TILES, 2):
            block = TILES * coord.group + first + (coord.lane >> 4)
            found += two_tiles(self.s_rows, block, step, coord, PER_TOKEN_PITCH)
        return tuple(found)

    def value_operands(self, coord: ThreadCoord, step: int, words: tuple[Any, ...]) -> list[ops.Quad]:
        """Operands of each of the warpgroup's tiles."""
        return [values_of(*words[2 * tile : 2 * tile + 2]) for tile in range(TILES)]


@dataclass(frozen=True)
class DsMlaWindow(DsMlaRows):
    """Rows of 448 codes, with 64 f16 each in s_rope."""

    s_rope: cutlass.Int32

    def load_codes(self, entries: Entries, pages: Pages) -> None:
        self.load_codes_async(entries, pages, DATA_BYTES, NOPE_DIM, PITCH)

    @cute.jit
    def prefetch_descriptions(self, slot: cutlass.Int32, pages: Pages) -> None:
        """As in PerTokenWindow. Rope begins and ends inside 128-byte lines."""
        if slot != PADDING:
            page, offset = pages.page(slot), pages.offset(slot)
            rope = page + I64(offset * DATA_BYTES + NOPE_DIM)
            prefetch(rope)
            prefetch(rope + 2 * ROPE_DIM - CHUNK)
            prefetch(page + I64(self.block_size * DATA_BYTES + offset * SCALE_BYTES))

    def load(self, entries: Entries, pages: Pages) -> tuple[Any, ...]:
        """Start the loads of rope and scales. Whether a row counts is known from the slots."""
        words = DsMlaRows.load(self, entries, pages)
        return tuple(word for place, word in enumerate(words) if place % LOADED != LOADED - 1)

    def describe_codes(self, entries: Entries, pages: Pages, loaded: tuple[Any, ...]) -> list[Any]:
        """Store the factors of rows and groups; returns the arguments of `store_ropes`."""
        left, words = [], list(loaded)
        for turn in range(ENTRIES // TURN):
            slot = entries.slot(TURN * turn + entries.lane // ROPE_PARTS)
            words.insert(LOADED * turn + LOADED - 1, I32(slot != PADDING))
        for entry, part, rope, scale, counts, above in self.rows(entries, pages, tuple(words)):
            ref = self.store_scales(entry, part, scale, counts, above)
            left.append((entry, part, rope, ref))
        return left

    def load_ropes(self, entries: Entries, pages: Pages) -> list[tuple[Any, ...]]:
        """Start loading rope again: words of each turn."""
        found = []
        for turn in range(ENTRIES // TURN):
            counts, page, offset, part = self.place(entries, pages, turn)
            rope = page + I64(offset * DATA_BYTES + NOPE_DIM + part * CHUNK)
            found.append(ops.load_global_if(I32(counts), rope))
        return found

    def store_loaded_ropes(self, entries: Entries, loaded: list[tuple[Any, ...]]) -> None:
        """Store what `load_ropes` returned, after this warp stored the rows' factors."""
        part = entries.lane % ROPE_PARTS
        for turn, rope in enumerate(loaded):
            entry = entries.warp * ENTRIES + TURN * turn + entries.lane // ROPE_PARTS
            ref = I32(ops.load_shared_float(self.s_entries + entry * 16 + 4))
            self.store_rope(entry, part, list(rope), ops.power_of_two(-ref))

    def store_ropes(self, left: list[Any]) -> None:
        for entry, part, rope, ref in left:
            self.store_rope(entry, part, rope, ops.power_of_two(-ref))

    def store_rope(self, entry: Any, part: Any, rope: list[Any], scale: Any) -> None:
        """Store features 8 part .. + 7: the even ones to one chunk, the odd ones to another."""
        pairs = []
        for word in rope:
            low, high = ops.widened(word)
            pairs.append(ops.halves(low * scale, high * scale))
        for odd, which in enumerate((LOW_HALVES, HIGH_HALVES)):
            words = [selected(pairs[i], pairs[i + 1], which) for i in (0, 2)]
            address = self.s_rope + entry * ROPE_BYTES + (part // 2 * 2 + odd) * CHUNK
            ops.store_shared(address + part % 2 * (CHUNK // 2), *words)

    def key_words(self, coord: ThreadCoord, pair: int) -> tuple[Any, ...]:
        """As in PerTokenWindow; for rope the operands themselves."""
        if pair < NOPE_PAIRS:
            return ops.ldmatrix(self.matrices(first_entry(coord), 2 * pair, coord.lane, PITCH))
        row = self.s_rope + (first_entry(coord) + coord.lane % 16) * ROPE_BYTES
        chunks = [4 * (pair - NOPE_PAIRS) + 2 * more + (coord.lane >> 4) for more in range(2)]
        return (*ops.ldmatrix(row + chunks[0] * CHUNK), *ops.ldmatrix(row + chunks[1] * CHUNK))

    def key_operands(self, coord: ThreadCoord, pair: int, words: tuple[Any, ...]) -> list[ops.Quad]:
        """Operands of two steps."""
        if pair >= NOPE_PAIRS:
            return [words[:4], words[4:]]
        at = self.s_groups + (pair // 2 * MAX_WINDOW + first_entry(coord) + coord.lane // 4) * 2
        scales = [ops.load_shared_half(at + 2 * more) for more in (0, 8)]
        both = keys_of(*words[:2]), keys_of(*words[2:])
        return [tuple(ops.scaled(x, scales[i % 2]) for i, x in enumerate(a)) for a in both]

    def value_words(self, coord: ThreadCoord, step: int) -> tuple[Any, ...]:
        """As in PerTokenWindow, followed by rope's operands."""
        lane, found = coord.lane, list[Any]()
        for first in range(0, TILES, 2):
            # The codes read at rope's position are not used.
            block = cutlass.min(TILES * coord.group + first + (lane >> 4), GROUPS - 1)
            found += two_tiles(self.s_rows, block, step, coord, PITCH)
        row = self.s_rope + (step * STEP + lane % 16) * ROPE_BYTES
        return (*found, *ops.ldmatrix_transposed(row + (2 * coord.warp + (lane >> 4)) * CHUNK))

    def value_operands(self, coord: ThreadCoord, step: int, words: tuple[Any, ...]) -> list[ops.Quad]:
        """Operands of each of the warpgroup's tiles; the last one is rope."""
        lane, found = coord.lane, list[Any]()
        for tile in range(TILES):
            group = cutlass.min(TILES * coord.group + tile, GROUPS - 1)
            at = self.s_groups + (group * MAX_WINDOW + step * STEP + lane % 4 * 2) * 2
            scales = [ops.load_shared_word(at + 2 * more) for more in (0, 8)]
            both = values_of(*words[2 * tile : 2 * tile + 2])
            found.append([ops.scaled(x, scales[i // 2]) for i, x in enumerate(both)])
        even, even_more, odd, odd_more = words[2 * TILES :]
        rope = (even, odd, even_more, odd_more)
        found[-1] = [
            ops.select_value(coord.group == GROUPS // TILES, x, y)
            for x, y in zip(rope, found[-1], strict=True)
        ]
        return [tuple(a) for a in found]


def first_entry(coord: ThreadCoord) -> Any:
    """The first of the 16 entries whose keys this warp has."""
    return coord.group * GROUP + coord.warp * STEP


def keys_of(low: Any, high: Any) -> ops.Quad:
    """The operand from four codes of each of two entries that are 8 apart."""
    (one, two), (other, another) = ops.halves_of_codes(low), ops.halves_of_codes(high)
    return one, other, two, another


def values_of(low: Any, high: Any) -> ops.Quad:
    """The operand from two codes of each of two entries, and of the entries 8 later."""
    return *ops.transposed_halves_of_codes(low), *ops.transposed_halves_of_codes(high)


def two_tiles(s_rows: Any, block: Any, step: int, coord: ThreadCoord, pitch: int) -> ops.Quad:
    """The words of 16 entries of two tiles, where `block` is the lane's: the warp's 16 features of each
    64."""
    chunk = block * (GROUP // CHUNK) + coord.warp
    return ops.ldmatrix_transposed(s_rows + (step * STEP + coord.lane % 16) * pitch + chunk * CHUNK)


def selected(low: Any, high: Any, which: int) -> Any:
    """Two of the four halves of two words."""
    return cute.arch.inline_ptx(
        f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {which};", write_only_types=[I32], read_only_args=[low, high]
    )
