# SPDX-License-Identifier: Apache-2.0
"""Reads arrays of a store through zarr-python, after checking that their metadata is plausible."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gdnbench.bits import DTYPES, Bits
from gdnbench.errors import CannotRunError, StoreError
from gdnbench.store.files import FolderFiles, StoreFiles
from gdnbench.store.grid import Slices, chunk_file, grid_of
from gdnbench.store.layout import METADATA, METADATA_LIMIT, parse_node
from gdnbench.store.plain_chunks import PlainArray, is_plain, read_plain

if TYPE_CHECKING:  # listing a store needs no zarr, which dominates start-up
    import zarr

_SHARDING = "sharding_indexed"
_COMPRESSION = ("blosc", "zstd")  # zstd: zarr-python's default
_CODECS = ("blosc", "bytes", "crc32c", _SHARDING, "zstd")
_STORED_AS = frozenset(dtype.storage.name for dtype in DTYPES.values())
_MOST_AXES = 33  # of a record's tensor, and one of rows
# All-zero chunks shrink at most 18,000-fold; no array of ours expands further.
_MOST_EXPANSION = 1 << 16
# In an archive, which deflates shards of all-zero chunks again: 32 MiB to some 400 bytes with headers.
_MOST_PACKED = 1 << 17
_CHUNK_LIMIT = 1 << 30  # bytes of elements in a chunk or shard file, which decoding allocates
_MOST_CHUNKS = 1 << 12  # in a shard; ours has 16


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An open array. `dtype` is the storage dtype; sizes are in elements."""

    key: str
    where: str  # store and array, for messages
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    chunk: tuple[int, ...]  # smallest part that can be read
    file: tuple[int, ...]  # part that is one file: a shard or a chunk
    attributes: Mapping[str, Any]
    node: Mapping[str, Any] = field(repr=False)  # its zarr.json
    _files: Mapping[str, int] = field(repr=False)
    _zarr: zarr.Array[Any] = field(repr=False)
    _plain: PlainArray | None = field(repr=False)  # set if the bytes can be read without zarr's copies

    def read(self, selection: Slices | None = None) -> Bits:
        """The elements in `selection` (bounded slices of every axis), or all of them; StoreError if
        damaged."""
        part = self.whole if selection is None else selection
        self._check_files(part)
        from gdnbench.store.arrays import array_io

        try:
            if self._plain is not None and part[1:] == self.whole[1:]:
                return read_plain(self._plain, part, self.dtype)
            with array_io():
                return np.asarray(self._zarr[part])
        except CannotRunError:  # a network failure is no damage
            raise
        # Zarr and its codecs raise ValueError, RuntimeError and others for damaged bytes.
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise StoreError(f"{self.where} is damaged: {reason}") from error

    def _check_files(self, part: Slices) -> None:
        """StoreError for the first chunk file of `part` that is missing, empty, or too short for what it
        should hold. Zarr reads a missing or empty file as zeros. This stops at the first, however large the
        shape."""
        expansion = _MOST_EXPANSION if _is_compressed(self.node["codecs"]) else 1
        for at in grid_of(part, self.file):
            name = chunk_file(at)
            size = self._files.get(name)
            if not size:
                raise StoreError(f"{self.where}: chunk file {name} is missing or empty")
            held = self.dtype.itemsize
            for i, step, extent in zip(at, self.file, self.shape, strict=True):
                held *= min(extent, (i + 1) * step) - i * step
            if held > expansion * size:
                raise StoreError(
                    f"{self.where}: chunk file {name} has {size} bytes, too few for the {held} it should hold"
                )

    @property
    def whole(self) -> Slices:
        return tuple(slice(0, size) for size in self.shape)

    def files_of(self, part: Slices) -> Iterator[str]:
        """The chunk files that hold `part`, relative to the array."""
        return (chunk_file(at) for at in grid_of(part, self.file))


def open_array(files: StoreFiles, key: str) -> StoredArray:
    """The array `key`; StoreError if it is missing, invalid, or claims more elements than its files can
    hold."""
    where = f"{files.path}: array {key}"
    text = files.read(f"{key}/{METADATA}", METADATA_LIMIT)
    if text is None:
        raise StoreError(f"{where} is missing")
    node, ours = parse_node(text, "array", where)
    _check_node(node, where)
    import zarr

    from gdnbench.store.bounded_codecs import bounded_codecs

    store, prefix = files.zarr()
    try:
        with bounded_codecs():
            array = zarr.open_array(store, path=prefix + key, mode="r", zarr_format=3)
        dtype, chunk, file = np.dtype(array.dtype), array.chunks, array.shards or array.chunks
    except CannotRunError:
        raise
    # Zarr's parser raises various errors for bad metadata.
    except Exception as error:
        raise StoreError(f"{where}/{METADATA} is not valid: {str(error) or type(error).__name__}") from error
    sizes = {name: size for name, size in files.sizes(key).items() if name != METADATA}
    nbytes, held = math.prod(array.shape) * dtype.itemsize, sum(sizes.values())
    packed = files.packed_bytes(key)
    if (
        nbytes > _MOST_EXPANSION * held
        or (packed is not None and nbytes > _MOST_PACKED * packed)
        or math.prod(file) * dtype.itemsize > _CHUNK_LIMIT
    ):
        raise StoreError(
            f"{where} claims shape {array.shape} in files of {file}, but has {held} bytes of them"
            + ("" if packed is None else f", packed into {packed}")
        )
    if min((*file, *chunk), default=1) < 1:
        raise StoreError(f"{where}/{METADATA} is not valid: chunks of {chunk} in files of {file}")
    chunks = math.prod(whole // step for whole, step in zip(file, chunk, strict=True))
    if chunks > _MOST_CHUNKS:
        raise StoreError(f"{where} claims {chunks} chunks in a shard; a store has up to {_MOST_CHUNKS}")
    plain = None
    if isinstance(files, FolderFiles) and dtype.isnative and is_plain(node, array.shape, chunk):
        plain = PlainArray(files.path / key, array.shape, dtype.itemsize, chunk, file)
    return StoredArray(key, where, array.shape, dtype, chunk, file, ours, node, sizes, array, plain)


def _check_node(node: Mapping[str, Any], where: str) -> None:
    """StoreError for an array that nobody should decode: unknown codecs, shards in shards, or a dtype or a
    number of axes that no tensor has."""
    for name in _codec_names(node.get("codecs"), where):
        if name not in _CODECS:
            raise StoreError(f"{where}: codec {name!r} is refused; a store uses {', '.join(_CODECS)}")
    if list(_codec_names(node["codecs"], where)).count(_SHARDING) > 1:
        raise StoreError(
            f"{where}: codec {_SHARDING!r} is refused inside another; a store has no such arrays"
        )
    data_type, shape = node.get("data_type"), node.get("shape")
    if not isinstance(data_type, str) or data_type not in _STORED_AS:
        raise StoreError(f"{where}/{METADATA} is not valid: data_type {str(data_type)[:60]!r}")
    if not isinstance(shape, list) or len(shape) > _MOST_AXES:
        raise StoreError(f"{where}/{METADATA} is not valid: shape {str(shape)[:60]}")


def _is_compressed(codecs: Any) -> bool:
    return any(name in _COMPRESSION for name in _codec_names(codecs, ""))


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


class RowCache:
    """Caches recently read chunks of row arrays: neighbouring records are in neighbouring rows."""

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
            rows = slice(key[1] * step, min(array.shape[0], (key[1] + 1) * step))
            block = array.read((rows, *array.whole[1:]))
            self._blocks[key] = block
            self._bytes += block.nbytes
            while self._bytes > self._limit and len(self._blocks) > 1:
                self._bytes -= self._blocks.popitem(last=False)[1].nbytes
        else:
            self._blocks.move_to_end(key)
        return block[row % step, ...].copy()
