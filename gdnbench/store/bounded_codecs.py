# SPDX-License-Identifier: Apache-2.0
"""Zarr codecs that read how large a compressed chunk claims to be before they decompress it.

Both formats say in their first bytes how much they hold, and the decompressor allocates that much. A chunk
that holds another number of bytes than its array says is damaged, and is refused before that.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zarr
from zarr.codecs import BloscCodec, ZstdCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer
from zarr.registry import register_codec

_CHECKSUMS = 64  # bytes that codecs below the compression may add to the elements
_BLOSC_HEADER = struct.Struct("<4B3I")  # versions, flags, element size; bytes held, of a block, of the frame
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SIZES = {0: (0, 0), 1: (2, 256), 2: (4, 0), 3: (8, 0)}  # bytes of the size, and what is added to it


class BoundedBlosc(BloscCodec):
    """Blosc, for chunks that hold no more than their array says."""

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        _check(blosc_bytes, chunk_bytes, chunk_spec)
        return super()._decode_sync(chunk_bytes, chunk_spec)


class BoundedZstd(ZstdCodec):
    """Zstandard, for chunks that hold no more than their array says."""

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        _check(zstd_bytes, chunk_bytes, chunk_spec)
        return super()._decode_sync(chunk_bytes, chunk_spec)


_CODECS: dict[str, type[BloscCodec] | type[ZstdCodec]] = {"blosc": BoundedBlosc, "zstd": BoundedZstd}
for _name, _codec in _CODECS.items():
    register_codec(_name, _codec)


@contextmanager
def bounded_codecs() -> Iterator[None]:
    """Arrays that are opened meanwhile have these codecs."""
    chosen = {f"codecs.{name}": f"{codec.__module__}.{codec.__qualname__}" for name, codec in _CODECS.items()}
    with zarr.config.set(chosen):
        yield


def _check(held: Callable[[bytes], int], chunk_bytes: Buffer, chunk_spec: ArraySpec) -> None:
    expected = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
    claimed = held(chunk_bytes.as_numpy_array()[:32].tobytes())
    if claimed > expected + _CHECKSUMS:
        raise ValueError(f"a chunk claims to hold {claimed} bytes, but its array has chunks of {expected}")


def blosc_bytes(frame: bytes) -> int:
    """The bytes that a Blosc frame holds, as it begins."""
    if len(frame) < _BLOSC_HEADER.size:
        raise ValueError("a chunk is too short for a Blosc frame")
    return int(_BLOSC_HEADER.unpack_from(frame)[4])


def zstd_bytes(frame: bytes) -> int:
    """The bytes that a Zstandard frame holds, as it begins (RFC 8878, 3.1.1.1)."""
    if frame[:4] != _ZSTD_MAGIC or len(frame) < 5:
        raise ValueError("a chunk is no Zstandard frame")
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    length, added = _ZSTD_SIZES[descriptor >> 6]
    length = length or single
    start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    if not length or len(frame) < start + length:
        raise ValueError("a chunk is a Zstandard frame that does not say how much it holds")
    return int.from_bytes(frame[start : start + length], "little") + added
