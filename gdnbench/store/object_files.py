# SPDX-License-Identifier: Apache-2.0
"""The files of a store in an object store, read with few requests and a bounded cache on this machine."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    SuffixByteRequest,
)
from zarr.abc.store import Store as ZarrStore
from zarr.core.buffer import Buffer, BufferPrototype

from gdnbench.errors import StoreError
from gdnbench.store.layout import METADATA_LIMIT
from gdnbench.store.objects import ObjectInfo, Objects
from gdnbench.store.piece_cache import PieceCache

_BATCH_DEPTH: Final = 3  # segments/<segment>/<batch>: listed by one request
_LISTINGS: Final = 64  # listings of batches that are kept
_MOST_OBJECTS: Final = 1 << 20  # below one batch; no store of ours has more
_REQUESTS: Final = 16  # at the same time
_MOST_FETCHED: Final = 64 << 20  # bytes of prefetched metadata


class ObjectFiles:
    """A store below the URL `path`. Array elements are read through `cache`, metadata never."""

    commits_last = True

    def __init__(self, url: str, cache: PieceCache | None = None) -> None:
        self._objects = Objects(url)
        self.path = self._objects.url
        self._cache = cache
        self._folders: dict[str, list[str]] = {}
        self._listings: OrderedDict[str, Mapping[str, ObjectInfo]] = OrderedDict()
        self._listing_lock = threading.Lock()  # zarr reads from threads
        self._fetched: dict[str, bytes] = {}

    def read(self, key: str, limit: int) -> bytes | None:
        fetched = self._fetched.pop(key, None)
        return fetched if fetched is not None else self._objects.get(key, limit)

    def prefetch(self, keys: Iterable[str]) -> None:
        def fetch(key: str) -> tuple[str, bytes | None]:
            try:
                return key, self._objects.get(key, METADATA_LIMIT)
            except StoreError:  # `read` reports it
                return key, None

        wanted = list(keys)
        room = _MOST_FETCHED
        with ThreadPoolExecutor(_REQUESTS) as pool:
            for start in range(0, len(wanted), _REQUESTS):
                for key, content in pool.map(fetch, wanted[start : start + _REQUESTS]):
                    if content is not None:
                        self._fetched[key] = content
                        room -= len(content)
                if room < 0:  # the others are read one by one
                    return

    def folders(self, key: str) -> list[str]:
        found = self._folders.get(key)
        if found is None:
            found = self._folders[key] = self._objects.folders(key)
        return list(found)

    def sizes(self, key: str) -> Mapping[str, int]:
        return {name: found.size for name, found in self._below(key).items()}

    def packed_bytes(self, key: str) -> None:
        """None: objects are stored as they are."""

    def zarr(self) -> tuple[ZarrStore, str]:
        return ZarrObjects(self), ""

    def close(self) -> None:
        """Does nothing: obstore closes idle connections."""

    def piece(self, key: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a listed file."""
        found = self.info(key)
        if found is None:
            raise StoreError(f"{self.path}: {key} is missing")
        if not 0 <= start < stop <= found.size:
            raise StoreError(f"{self.path}: {key} has {found.size} bytes, not {start} to {stop}")
        if self._cache is None or found.tag is None:
            return self._objects.get_range(key, start, stop)
        name = f"{self.path}/{key} {found.tag} {found.size} {start} {stop}"
        content = self._cache.load_piece(name, stop - start)
        if content is None:
            content = self._objects.get_range(key, start, stop)
            self._cache.store_piece(name, content)
        return content

    def info(self, key: str) -> ObjectInfo | None:
        """The listing's entry of a file; None if there is none."""
        listing, rest = self._listing(key)
        return listing.get(rest)

    def _below(self, key: str) -> dict[str, ObjectInfo]:
        """The entries listed below `key`, by relative path."""
        listing, rest = self._listing(key)
        prefix = rest and f"{rest}/"
        return {
            name.removeprefix(prefix): found for name, found in listing.items() if name.startswith(prefix)
        }

    def _listing(self, key: str) -> tuple[Mapping[str, ObjectInfo], str]:
        """The listing of the batch that contains `key`, and the path of `key` in that batch."""
        names = key.split("/")
        unit, rest = "/".join(names[:_BATCH_DEPTH]), "/".join(names[_BATCH_DEPTH:])
        with self._listing_lock:
            if unit not in self._listings:
                self._listings[unit] = dict(self._objects.list(unit, _MOST_OBJECTS))
                if len(self._listings) > _LISTINGS:
                    self._listings.popitem(last=False)
            self._listings.move_to_end(unit)
            return self._listings[unit], rest


class ZarrObjects(ZarrStore):
    """The Zarr store through which zarr-python reads arrays of `files`."""

    supports_writes = supports_deletes = supports_partial_writes = False
    supports_listing = True

    def __init__(self, files: ObjectFiles) -> None:
        super().__init__(read_only=True)
        self._files = files

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZarrObjects) and other._files is self._files

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        found = await asyncio.to_thread(self._files.info, key)
        if found is None:
            return None
        start, stop = _span(byte_range, found.size)
        content = await asyncio.to_thread(self._files.piece, key, start, stop) if stop > start else b""
        return prototype.buffer.from_bytes(content)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return list(await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges)))

    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread(self._files.info, key) is not None

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self._files.sizes, prefix.rstrip("/")):
            yield f"{prefix}{name}"

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self._files.folders, prefix.rstrip("/")):
            yield name

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()

    async def delete(self, key: str) -> None:
        self._check_writable()


def _span(part: ByteRequest | None, size: int) -> tuple[int, int]:
    """First byte, and the byte after the last, of the range that zarr requests in a file of `size` bytes."""
    match part:
        case RangeByteRequest(start=start, end=end):
            return min(start, size), min(end, size)
        case OffsetByteRequest(offset=offset):
            return min(offset, size), size
        case SuffixByteRequest(suffix=suffix):
            return max(0, size - suffix), size
        case _:
            return 0, size
