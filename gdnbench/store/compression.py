"""How arrays are encoded and cut: codecs, chunks and shards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdnbench.errors import BadInputError

if TYPE_CHECKING:  # listing a store does without zarr
    from zarr.codecs import BloscCodec, Crc32cCodec

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Compression:
    """The zstd level, 1 to 9, that chunks are compressed with; None leaves them as they are.

    The bits of the elements are transposed first (Blosc's bit shuffle): the exponents of neighbouring
    floats agree where their mantissas do not, and zstd alone cannot tell the two apart.
    """

    level: int | None = 1

    def __post_init__(self) -> None:
        if self.level is not None and not 1 <= self.level <= 9:
            raise BadInputError(f"zstd level {self.level} is not in 1..9")

    def codecs(self) -> list[BloscCodec | Crc32cCodec]:
        """Zarr's bytes-to-bytes codecs. The checksum is what lets `verify` name the chunk that is damaged."""
        from zarr.codecs import BloscCodec, Crc32cCodec

        if self.level is None:
            return [Crc32cCodec()]
        return [BloscCodec(cname="zstd", clevel=self.level, shuffle="bitshuffle"), Crc32cCodec()]


@dataclass(frozen=True, slots=True)
class Chunking:
    """Sizes, in bytes of elements, by which tensors are laid out; docs/store.md has the measurements."""

    small: int = 4 * MIB  # up to here a tensor becomes a row of a shared array
    chunk: int = 2 * MIB  # smallest unit that is read
    shard: int | None = 32 * MIB  # file that holds many chunks; None writes each chunk as a file

    def plan(self, shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Chunk and shard shapes for an array; no shards where one chunk holds it all.

        Both are runs of the array in C order: full in the trailing axes, 1 in the leading ones.
        """
        chunks = run_of(shape, tuple(1 for _ in shape), max(1, self.chunk // itemsize))
        if self.shard is None or all(c >= s for c, s in zip(chunks, shape, strict=True)):
            return chunks, None
        return chunks, run_of(shape, chunks, max(1, self.shard // itemsize))


def run_of(shape: tuple[int, ...], unit: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """The largest run in C order of at most `limit` elements that is made of whole `unit`s."""
    block = list(unit)
    for axis in reversed(range(len(shape))):
        units = max(1, math.ceil(shape[axis] / unit[axis]))
        fits = max(1, limit // math.prod(block))
        # Even parts: 9 units that go 8 to a block become 5 + 4, not 8 + 1 padded to 8.
        block[axis] = unit[axis] * math.ceil(units / math.ceil(units / min(units, fits)))
        if block[axis] < shape[axis]:
            break
    return tuple(block)
