"""Arrays of a store, read through zarr-python after their metadata has been found plausible."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from gdnbench.bits import Bits
from gdnbench.errors import StoreError
from gdnbench.store.arrays import array_io
from gdnbench.store.files import StoreFiles
from gdnbench.store.layout import METADATA, METADATA_LIMIT, parse_node

_CODECS = {"bytes", "zstd", "crc32c", "sharding_indexed"}
# An all-zero block of 128 KiB takes zstd four bytes; what claims to expand further is no array of ours.
_MOST_EXPANSION = 1 << 16


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An open array: `dtype` is that of its storage, `chunk` the smallest part that can be read alone."""

    key: str
    where: str  # store and array, for messages
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    chunk: tuple[int, ...]
    attributes: dict[str, Any]
    zarr: zarr.Array[Any]

    def read(self, selection: tuple[slice, ...] = ()) -> Bits:
        """The elements in `selection` (all of them by default); StoreError if they cannot be decoded."""
        try:
            with array_io():
                return np.asarray(self.zarr[selection or ...])
        # What zarr and its codecs raise for damaged bytes is theirs to choose: ValueError, RuntimeError, KeyError...
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise StoreError(f"{self.where} is damaged: {reason}") from error


def open_array(files: StoreFiles, key: str) -> StoredArray:
    """The array `key`; StoreError if it is missing, not of our making, or lacks chunks."""
    where = f"{files.path}: array {key}"
    text = files.read(f"{key}/{METADATA}", METADATA_LIMIT)
    if text is None:
        raise StoreError(f"{where} is missing")
    node, ours = parse_node(text, "array", where)
    for name in _codec_names(node.get("codecs"), where):
        if name not in _CODECS:
            raise StoreError(f"{where}: codec {name!r} is refused; a store uses {', '.join(sorted(_CODECS))}")
    store, prefix = files.zarr()
    try:
        array = zarr.open_array(store, path=prefix + key, mode="r", zarr_format=3)
    # As above: bad metadata surfaces as whatever zarr's parser raises.
    except Exception as error:
        raise StoreError(f"{where}/{METADATA} is not valid: {error}") from error
    opened = StoredArray(key, where, array.shape, np.dtype(array.dtype), array.chunks, ours, array)
    _check_chunks(opened, array.shards or array.chunks, dict(files.sizes(key)))
    return opened


def _codec_names(codecs: Any, where: str) -> Iterator[str]:
    if not isinstance(codecs, list):
        raise StoreError(f"{where}: codecs is not a list")
    for codec in codecs:
        if not isinstance(codec, dict) or not isinstance(codec.get("name"), str):
            raise StoreError(f"{where}: codec {codec!r} has no name")
        yield codec["name"]
        configuration = codec.get("configuration", {})
        for inner in ("codecs", "index_codecs"):
            if isinstance(configuration, dict) and inner in configuration:
                yield from _codec_names(configuration[inner], where)


def _check_chunks(array: StoredArray, grid: tuple[int, ...], sizes: dict[str, int]) -> None:
    """StoreError if a chunk file is missing (Zarr would read zeros), or the shape is more than the files can hold."""
    counts = [math.ceil(size / step) for size, step in zip(array.shape, grid, strict=True)]
    files = {name: size for name, size in sizes.items() if name != METADATA}
    held, nbytes = sum(files.values()), math.prod(array.shape) * array.dtype.itemsize
    coordinates = itertools.product(*(range(count) for count in counts))
    # Never more steps than there are files, however large the shape claims to be.
    missing = next((name for name in map(chunk_file, coordinates) if name not in files), None)
    if missing is not None:
        raise StoreError(f"{array.where}: chunk file {missing} is missing")
    if nbytes > _MOST_EXPANSION * held:
        raise StoreError(f"{array.where} claims {nbytes} bytes, which its {held} stored bytes cannot hold")


def chunk_file(coordinates: tuple[int, ...]) -> str:
    """The path of a chunk's file in its array's folder."""
    return "/".join(("c", *map(str, coordinates)))


class RowCache:
    """Chunks of row arrays that were read last: neighbouring records hold neighbouring rows."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._blocks: OrderedDict[tuple[str, int], Bits] = OrderedDict()

    def row(self, array: StoredArray, row: int) -> Bits:
        """A copy of one row of axis 0, shape `array.shape[1:]`."""
        step = array.chunk[0]
        key = (array.key, row // step)
        block = self._blocks.get(key)
        if block is None:
            block = array.read((slice(key[1] * step, (key[1] + 1) * step),))
            self._blocks[key] = block
            self._bytes += block.nbytes
            while self._bytes > self._limit and len(self._blocks) > 1:
                self._bytes -= self._blocks.popitem(last=False)[1].nbytes
        else:
            self._blocks.move_to_end(key)
        return block[row % step, ...].copy()
