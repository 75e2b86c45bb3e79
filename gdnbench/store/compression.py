# SPDX-License-Identifier: Apache-2.0
"""Codecs, chunks and shards of stored arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdnbench.errors import BadInputError

if TYPE_CHECKING:  # listing a store needs no zarr
    from zarr.codecs import BloscCodec, Crc32cCodec

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Compression:
    """The zstd level (1 to 9) of chunks; None stores them uncompressed.

    Blosc's bit shuffle comes first: it groups bits of equal weight. Exponents of neighbouring floats agree
    where mantissas do not, which zstd alone cannot use.
    """

    level: int | None = 1

    def __post_init__(self) -> None:
        if self.level is not None and not 1 <= self.level <= 9:
            raise BadInputError(f"zstd level {self.level} is not in 1..9")

    def codecs(self) -> list[BloscCodec | Crc32cCodec]:
        """Zarr's bytes-to-bytes codecs. The checksum lets `verify` name the damaged chunk."""
        from zarr.codecs import BloscCodec, Crc32cCodec

        if self.level is None:
            return [Crc32cCodec()]
        return [BloscCodec(cname="zstd", clevel=self.level, shuffle="bitshuffle"), Crc32cCodec()]


@dataclass(frozen=True, slots=True)
class Chunking:
    """Size thresholds, in bytes of elements, of the layout; docs/store.md has the measurements."""

    small: int = 4 * MIB  # up to this size a tensor becomes a row of a shared array
    chunk: int = 2 * MIB  # smallest unit that is read
    shard: int | None = 32 * MIB  # file of many chunks; None writes each chunk as a file

    def plan(self, shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Chunk and shard shapes for an array; shards None if one chunk holds the whole array.

        Both are runs of the array in C order: full in the trailing axes, 1 in the leading ones.
        """
        chunks = largest_run(shape, tuple(1 for _ in shape), max(1, self.chunk // itemsize))
        if self.shard is None or all(c >= s for c, s in zip(chunks, shape, strict=True)):
            return chunks, None
        return chunks, largest_run(shape, chunks, max(1, self.shard // itemsize))


def largest_run(shape: tuple[int, ...], unit: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """The shape of the largest C-order run of at most `limit` elements that consists of whole `unit`s."""
    block = list(unit)
    for axis in reversed(range(len(shape))):
        units = max(1, math.ceil(shape[axis] / unit[axis]))
        fits = max(1, limit // math.prod(block))
        # Even parts: 9 units that go 8 to a block become 5 + 4, not 8 + 1 padded to 8.
        block[axis] = unit[axis] * math.ceil(units / math.ceil(units / min(units, fits)))
        if block[axis] < shape[axis]:
            break
    return tuple(block)
