# SPDX-License-Identifier: Apache-2.0
"""Reads a store in a .zip in place. Every claim of the archive's directory is checked."""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gdnbench.errors import StoreError
from gdnbench.store.layout import METADATA

if TYPE_CHECKING:  # listing a store does without zarr
    from zarr.abc.store import Store as ZarrStore
    from zarr.storage import ZipStore

_MOST_EXPANSION = 1032  # deflate's maximum: 258 bytes from a code of two bits
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADERS = 30 + 46  # bytes of a member's two headers, which also hold its name, each once


class ZipFiles:
    """A store in a zip archive, at its root or in its single top folder."""

    commits_last = False

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():  # opening a pipe would block, and a device has no end
            raise StoreError(f"{path} is neither a folder nor a file")
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
            raise StoreError(f"{path} is not a zip archive that can be read: {error}") from error
        try:
            size = path.stat().st_size
            members: dict[str, int] = {}
            packed: dict[str, int] = {}
            for info in self._archive.infolist():
                self._check(info, size)
                if info.filename in members:
                    raise StoreError(f"{path}: member {info.filename!r} is there twice")
                if not info.is_dir():
                    members[info.filename] = info.file_size
                    packed[info.filename] = info.compress_size + _HEADERS + 2 * len(info.orig_filename)
            if sum(info.compress_size for info in self._archive.infolist()) > size:
                raise StoreError(f"{path}: its members share bytes; together they claim more than its {size}")
            self._prefix = _root_in(members)
            self._sizes = {name.removeprefix(self._prefix): nbytes for name, nbytes in members.items()}
            self._packed = {name.removeprefix(self._prefix): nbytes for name, nbytes in packed.items()}
        except BaseException:
            self._archive.close()
            raise
        self._zarr: ZipStore | None = None

    def _check(self, info: zipfile.ZipInfo, archive_size: int) -> None:
        """StoreError for a member that leads out of the archive, or claims more bytes than it can hold."""
        name, said = info.orig_filename, f"{self.path}: member {info.orig_filename!r}"
        parts = name.removesuffix("/").split("/")
        if any(part in ("", ".", "..") for part in parts) or any(c in name for c in "\\\0:"):
            raise StoreError(f"{said} would lead out of the store")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise StoreError(f"{said} is a symbolic link or a device; a store holds only its own files")
        if info.flag_bits & 0x1:
            raise StoreError(f"{said} is encrypted; unpack the archive first")
        if info.compress_type not in _METHODS:
            raise StoreError(f"{said} uses zip method {info.compress_type}; pack with 'zip -0' or deflate")
        expansion = 1 if info.compress_type == zipfile.ZIP_STORED else _MOST_EXPANSION
        if info.compress_size > archive_size or info.file_size > expansion * info.compress_size:
            raise StoreError(f"{said} claims {info.file_size} bytes, which {info.compress_size} cannot hold")

    def read(self, key: str, limit: int) -> bytes | None:
        size = self._sizes.get(key)
        if size is None:
            return None
        if size > limit:
            raise StoreError(f"{self.path}: {key} has {size} bytes, more than the {limit} it may have")
        try:
            return self._archive.read(self._prefix + key)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise StoreError(f"{self.path}: member {key} is damaged: {error}") from error

    def prefetch(self, keys: Iterable[str]) -> None:
        """Does nothing: members are as fast one by one."""

    def folders(self, key: str) -> list[str]:
        prefix = f"{key}/" if key else ""
        inside = (name[len(prefix) :] for name in self._sizes if name.startswith(prefix))
        return sorted({name.split("/", 1)[0] for name in inside if "/" in name})

    def sizes(self, key: str) -> Mapping[str, int]:
        prefix = f"{key}/"
        return {name[len(prefix) :]: size for name, size in self._sizes.items() if name.startswith(prefix)}

    def packed_bytes(self, key: str) -> int:
        prefix = f"{key}/"
        return sum(nbytes for name, nbytes in self._packed.items() if name.startswith(prefix))

    def zarr(self) -> tuple[ZarrStore, str]:
        if self._zarr is None:
            from zarr.storage import ZipStore

            self._zarr = ZipStore(self.path, mode="r", read_only=True)
        return self._zarr, self._prefix

    def close(self) -> None:
        self._archive.close()
        if self._zarr is not None:
            self._zarr.close()


def _root_in(members: Mapping[str, int]) -> str:
    """The store's root in the archive: packing a folder puts its name before every member."""
    tops = {name.split("/", 1)[0] for name in members}
    top = next(iter(tops)) if len(tops) == 1 else ""
    return f"{top}/" if top and METADATA not in members and f"{top}/{METADATA}" in members else ""
