"""Converts the wgmma kernel's queries to f16 in place in shared memory, times a power of two per head. CuTe
DSL.

A warp converts four heads at a time, 8 lanes each: two lanes for a block of 64 features and the block 256
features later. Of every 16 features of codes, position p < 8 is feature 4 (p / 2) + p % 2 and position 8 + p
is 2 more; of rope, position p < 8 is feature 2 p and position 8 + p the next.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.latent_rows import BIAS, CHUNK, NO_NUMBER, PAIR_BITS
from gdnbench_kernels.swa_decode.mma_tile import LOG2_E, Q_TOP
from gdnbench_kernels.swa_decode.sizes import GROUP
from gdnbench_kernels.swa_decode.sm90_plan import BLOCKS, MULTIPLIERS
from gdnbench_kernels.swa_decode.sm90_window import HIGH_HALVES, LOW_HALVES, selected

I32, F32 = cutlass.Int32, cutlass.Float32

WARP_HEADS = 4
"""Heads that a warp converts at once."""
CONVERTED = WARP_HEADS * MULTIPLIERS
"""Heads that the MULTIPLY warps convert at once."""


@dataclass(frozen=True)
class Queries:
    """`rows` heads at s_q, and their scores' coefficients; `mla`: the layout is fp8_ds_mla."""

    mla: bool
    rows: int
    s_q: cutlass.Int32
    s_coefficients: cutlass.Int32
    scale: cutlass.Float32

    @cute.jit
    def convert(self, warp: cutlass.Int32) -> None:
        """Convert the share of a MULTIPLY warp."""
        lane = cute.arch.lane_idx()
        heads = [first + WARP_HEADS * warp + lane % WARP_HEADS for first in range(0, self.rows, CONVERTED)]
        if WARP_HEADS * warp < self.rows:
            self.convert_heads(heads, lane)

    def convert_heads(self, heads: list[Any], lane: Any) -> None:
        """All heads go through a step together: a shuffle then waits for the previous step, not for another
        head."""
        places = [self.places(head, lane) for head in heads]
        words = [[[*ops.load_shared(at), *ops.load_shared(at ^ CHUNK)] for at in own] for own in places]
        largest = [largest_of(word for some in own for word in some) for own in words]
        for step in (4, 8, 16):
            largest = [cutlass.max(x, cute.arch.shuffle_sync_bfly(x, step)) for x in largest]
        for head, own, some, size in zip(heads, places, words, largest, strict=True):
            field = size >> 7
            power = cutlass.min(Q_TOP + BIAS - field, BIAS - 1)
            self.store_chunks(own, some, ops.power_of_two(power), lane)
            coefficient = self.scale * F32(LOG2_E) * ops.power_of_two(-power)
            # A query that is not finite has no finite score.
            spoilt = ops.select_value(field == 255, ops.float_of(I32(NO_NUMBER)), coefficient)
            self.store_coefficient(head, spoilt, lane)

    def places(self, head: Any, lane: Any) -> list[Any]:
        """The addresses of a lane's chunks; for each pair the first."""
        half, first = (lane >> 2) & 1, lane >> 3
        row = self.s_q + head // 8 * 1024 + head % 8 * 128
        return [
            row + (first + 4 * more) * (self.rows * 2 * GROUP) + ((4 * half + 2 * step) ^ (head % 8)) * CHUNK
            for more in range(2)
            for step in range(2)
        ]

    def store_chunks(self, places: list[Any], words: list[list[Any]], factor: Any, lane: Any) -> None:
        for number, (place, some) in enumerate(zip(places, words, strict=True)):
            pairs = halved(some, factor)
            chunks = pairs[::2], pairs[1::2]
            if self.mla and number >= 2:
                # Rope is in the last block, the second block of the lanes with the fourth block.
                rope = lane >> 3 == BLOCKS - 5
                evens, odds = even_and_odd(pairs)
                chunks = (
                    [ops.select_value(rope, x, y) for x, y in zip(evens, chunks[0], strict=True)],
                    [ops.select_value(rope, x, y) for x, y in zip(odds, chunks[1], strict=True)],
                )
            ops.store_shared(place, *chunks[0])
            ops.store_shared(place ^ CHUNK, *chunks[1])

    @cute.jit
    def store_coefficient(
        self, head: cutlass.Int32, coefficient: cutlass.Float32, lane: cutlass.Int32
    ) -> None:
        if lane < WARP_HEADS:
            ops.store_shared(self.s_coefficients + head * 4, coefficient)


def largest_of(words: Any) -> Any:
    """Bits of the largest magnitude among pairs of bf16."""
    sizes = [word & PAIR_BITS for word in words]
    largest = sizes[0]
    for size in sizes[1:]:
        largest = ops.greater_halves(largest, size)
    return cutlass.max(largest >> 16, largest & 0x7FFF)


def halved(words: list[Any], factor: Any) -> list[Any]:
    """Pairs of bf16 times `factor`, as pairs of f16."""
    found = []
    for word in words:
        low, high = ops.widened(word)
        found.append(ops.halves(low * factor, high * factor))
    return found


def even_and_odd(pairs: list[Any]) -> tuple[list[Any], list[Any]]:
    """The first of each of eight pairs, and the second of each."""
    twos = list(zip(pairs[::2], pairs[1::2], strict=True))
    evens = [selected(low, high, LOW_HALVES) for low, high in twos]
    return evens, [selected(low, high, HIGH_HALVES) for low, high in twos]
