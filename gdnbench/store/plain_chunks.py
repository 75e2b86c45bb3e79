# SPDX-License-Identifier: Apache-2.0
"""Moves chunk files of uncompressed arrays between memory and disk without copies.

zarr-python copies chunks to build a shard, and copies file and shard to read one, which on two cores left a
third of the disk's speed. The bytes here are those that zarr writes:

    chunk file   one encoded chunk
    shard file   encoded chunks, then an index: offset and length of each as uint64 in C order, and a CRC-32C
    encoded      elements in C order, zeros where the chunk exceeds the array's edge, then their CRC-32C

Every chunk here is a run of the array in C order, so its elements are one span of the array's memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from gdnbench.bits import Bits
from gdnbench.store.grid import Slices, chunk_file, grid_of

_THREADS: Final = max(2, min(4, os.cpu_count() or 1))
_PIECE: Final = 1 << 20  # bytes moved at a time, and summed while in the processor's cache
_ABSENT: Final = 2**64 - 1  # offset and length of a chunk that lies beyond the array's edge
_CRC_BYTES: Final = 4
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC = {"name": "crc32c"}

Span = tuple[int, int]
"""First byte, and the byte after the last, of an array's memory in C order."""


@dataclass(frozen=True, slots=True)
class PlainArray:
    """Layout of an uncompressed array. Shapes are in elements."""

    folder: Path
    shape: tuple[int, ...]
    itemsize: int
    chunk: tuple[int, ...]
    file: tuple[int, ...]  # the shard, or the chunk if there are no shards

    @property
    def sharded(self) -> bool:
        return self.file != self.chunk

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunk) * self.itemsize

    def span(self, at: tuple[int, ...]) -> Span | None:
        """The part of the array that chunk `at` holds; None if it lies beyond the edge."""
        low = [i * step for i, step in zip(at, self.chunk, strict=True)]
        high = [
            min(size, start + step) for size, start, step in zip(self.shape, low, self.chunk, strict=True)
        ]
        if any(start >= stop for start, stop in zip(low, high, strict=True)):
            return None
        first = 0
        for start, size in zip(low, self.shape, strict=True):
            first = first * size + start
        count = math.prod(stop - start for start, stop in zip(low, high, strict=True))
        return first * self.itemsize, (first + count) * self.itemsize

    def chunks_in(self, file: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Coordinates of the chunks of one file, in the order of its index."""
        per_file = [whole // step for whole, step in zip(self.file, self.chunk, strict=True)]
        part = tuple(slice(i * n, (i + 1) * n) for i, n in zip(file, per_file, strict=True))
        return list(grid_of(part, (1,) * len(part)))


def write_plain(array: PlainArray, bits: Bits, durable: bool) -> None:
    """Write every chunk file of `array` with the elements `bits`; `durable` flushes them to the device."""
    memory = bits.reshape(-1).view(np.uint8)

    def write(at: tuple[int, ...]) -> None:
        path = array.folder / chunk_file(at)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", buffering=0) as file:
            for piece in _file_pieces(array, at, memory):
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
            if durable:
                os.fsync(file.fileno())

    whole = tuple(slice(0, size) for size in array.shape)
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(write, grid_of(whole, array.file)))


def _file_pieces(array: PlainArray, at: tuple[int, ...], memory: NDArray[np.uint8]) -> Iterator[Any]:
    """The content of one chunk file as buffers; elements are not copied."""
    index = []
    offset = 0
    for chunk in array.chunks_in(at):
        span = array.span(chunk)
        if span is None:
            index += [_ABSENT, _ABSENT]
            continue
        elements = memory[slice(*span)]
        padding = bytes(array.chunk_bytes - elements.nbytes)
        crc = 0
        for start in range(0, elements.nbytes, _PIECE):
            piece = elements[start : start + _PIECE]
            crc = google_crc32c.extend(crc, piece)
            yield piece.data
        crc = google_crc32c.extend(crc, padding)
        yield padding + crc.to_bytes(_CRC_BYTES, "little")
        index += [offset, array.chunk_bytes + _CRC_BYTES]
        offset += array.chunk_bytes + _CRC_BYTES
    if array.sharded:
        table = np.array(index, "<u8").tobytes()
        yield table + google_crc32c.value(table).to_bytes(_CRC_BYTES, "little")


def is_plain(node: Mapping[str, Any], shape: tuple[int, ...], chunk: tuple[int, ...]) -> bool:
    """Whether an array with this metadata has this layout: uncompressed, its chunks C-order runs."""
    itemwise = [{"name": "bytes"}, _BYTES]  # one-byte types have no endianness
    codecs = node["codecs"]
    if len(codecs) == 1 and codecs[0].get("name") == "sharding_indexed":
        sharding = codecs[0].get("configuration", {})
        if sharding.get("index_location", "end") != "end" or sharding.get("index_codecs") != [_BYTES, _CRC]:
            return False
        codecs = sharding.get("codecs", [])
    key_encoding = {"name": "default", "configuration": {"separator": "/"}}
    if node.get("chunk_key_encoding") != key_encoding or node.get("storage_transformers", []) != []:
        return False
    if len(codecs) != 2 or codecs[0] not in itemwise or codecs[1] != _CRC:
        return False
    partial = next((axis for axis, size in enumerate(chunk) if size > 1), len(chunk))
    return chunk[partial + 1 :] == shape[partial + 1 :]


def read_plain(array: PlainArray, selection: Slices, dtype: np.dtype[np.generic]) -> Bits:
    """The elements in `selection`, which is full in all axes but the first. ValueError or OSError if
    damaged."""
    out = np.empty(tuple(axis.stop - axis.start for axis in selection), dtype)
    row = math.prod(array.shape[1:]) * array.itemsize
    wanted = (selection[0].start * row, selection[0].stop * row) if selection else (0, array.itemsize)
    memory = out.reshape(-1).view(np.uint8)

    def read(at: tuple[int, ...]) -> None:
        with open(array.folder / chunk_file(at), "rb", buffering=0) as file:
            offsets = _read_index(array, file.fileno(), at) if array.sharded else {at: 0}
            for chunk, offset in offsets.items():
                span = array.span(chunk)
                if span is not None and span[0] < wanted[1] and wanted[0] < span[1]:
                    _read_chunk(array, file.fileno(), offset, span, wanted, memory)

    files = list(grid_of(selection, array.file))
    if len(files) == 1:
        read(files[0])
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(read, files))
    return out


def _read_index(array: PlainArray, file: int, at: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """Offset, by chunk, of every chunk of a shard that lies in the array."""
    chunks = array.chunks_in(at)
    length = 16 * len(chunks) + _CRC_BYTES
    size = os.fstat(file).st_size
    content = os.pread(file, length, size - length) if size >= length else b""
    table, crc = content[:-_CRC_BYTES], content[-_CRC_BYTES:]
    if len(content) != length or google_crc32c.value(table).to_bytes(_CRC_BYTES, "little") != crc:
        raise ValueError(f"index of shard {chunk_file(at)} is cut off or fails its checksum")
    entries = np.frombuffer(table, "<u8").reshape(-1, 2).tolist()
    offsets = {}
    for chunk, (offset, length) in zip(chunks, entries, strict=True):
        if array.span(chunk) is None:
            continue
        if length != array.chunk_bytes + _CRC_BYTES or offset + length > size:
            raise ValueError(f"index of shard {chunk_file(at)} puts a chunk outside the file")
        offsets[chunk] = offset
    return offsets


def _read_chunk(
    array: PlainArray, file: int, offset: int, span: Span, wanted: Span, memory: NDArray[np.uint8]
) -> None:
    """Read one chunk into its part of `memory`, which holds the span `wanted`; directly if all of it is
    wanted."""
    first, last = max(span[0], wanted[0]), min(span[1], wanted[1])
    target = memory[first - wanted[0] : last - wanted[0]]
    elements = target if (first, last) == span else np.empty(span[1] - span[0], np.uint8)
    padding = array.chunk_bytes - elements.nbytes
    tail = bytearray(padding + _CRC_BYTES)
    read = crc = 0
    for start in range(0, elements.nbytes, _PIECE):
        piece = elements[start : start + _PIECE]
        read += os.preadv(file, [piece.data], offset + start)
        crc = google_crc32c.extend(crc, piece)
    read += os.preadv(file, [tail], offset + elements.nbytes)
    crc = google_crc32c.extend(crc, bytes(tail[:padding]))
    if read != array.chunk_bytes + _CRC_BYTES or crc.to_bytes(_CRC_BYTES, "little") != tail[padding:]:
        raise ValueError(f"chunk at byte {offset} of its file is cut off or fails its checksum")
    if elements is not target:
        target[:] = elements[first - span[0] : last - span[0]]
