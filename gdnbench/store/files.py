# SPDX-License-Identifier: Apache-2.0
"""Read access to the files of an untrusted store: no file outside the store is read, whatever its names
say."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gdnbench.errors import StoreError
from gdnbench.store.address import Address, is_url, local_path

if TYPE_CHECKING:  # listing a store does without zarr
    from zarr.abc.store import Store as ZarrStore


class StoreFiles(Protocol):
    """Read access to a store's files. Keys are relative to its root, with "/" between names."""

    @property
    def path(self) -> Path | str:
        """Where the store is, for messages and for `open_files`; a str is a URL."""

    @property
    def commits_last(self) -> bool:
        """Whether a batch's folder is visible before it is complete; its metadata then arrives last."""

    def read(self, key: str, limit: int) -> bytes | None:
        """The content of a file; None if there is none. StoreError if it is longer than `limit` bytes."""

    def prefetch(self, keys: Iterable[str]) -> None:
        """Fetch all of `keys` in parallel if that is faster than reading them one by one later."""

    def folders(self, key: str) -> list[str]:
        """Names of the folders in the folder `key`, sorted; empty if there is none."""

    def sizes(self, key: str) -> Mapping[str, int]:
        """The size in bytes of every file under the folder `key`, at any depth, by relative path."""

    def packed_bytes(self, key: str) -> int | None:
        """The size of the files under the folder `key` as they are stored, if that is not the sum of `sizes`:
        in an archive that compresses them. None if it is."""

    def zarr(self) -> tuple[ZarrStore, str]:
        """A read-only Zarr store, and the prefix of our root in it ("" or ending in "/")."""

    def close(self) -> None: ...


class FolderFiles:
    """A store in a folder. The folder itself may be a symbolic link; nothing in it may be one."""

    commits_last = False  # a batch is renamed into place whole

    def __init__(self, path: Path) -> None:
        self.path = path

    def prefetch(self, keys: Iterable[str]) -> None:
        """Does nothing: local files are as fast one by one."""

    def read(self, key: str, limit: int) -> bytes | None:
        path = self._inside(key)
        try:
            status = os.stat(path)
            size = status.st_size
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                self._refuse(Path(path))  # opening a pipe would block
            if size > limit:
                raise StoreError(f"{self.path}: {key} has {size} bytes, more than the {limit} it may have")
            with open(path, "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError:
            raise StoreError(f"{self.path}: {key} is a folder, not a file") from None

    def folders(self, key: str) -> list[str]:
        path = self._inside(key)
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if not self._refused(entry) and entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):  # or removed by a pruning at this moment
            return []

    def sizes(self, key: str) -> Mapping[str, int]:
        top = Path(self._inside(key))
        return dict(self._sizes(top, "")) if top.is_dir() else {}

    def packed_bytes(self, key: str) -> None:
        """None: files are stored as they are."""

    def zarr(self) -> tuple[ZarrStore, str]:
        from zarr.storage import LocalStore

        return LocalStore(self.path, read_only=True), ""

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def _sizes(self, folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:  # pruned meanwhile
            for entry in entries:
                if self._refused(entry):
                    continue
                if entry.is_dir():
                    yield from self._sizes(folder / entry.name, f"{prefix}{entry.name}/")
                else:
                    yield f"{prefix}{entry.name}", entry.stat().st_size

    def _inside(self, key: str) -> str:
        """The path of `key`. StoreError if it leaves the store or passes a symbolic link."""
        # Text, not a Path: opening a store of thousands of batches would take twice as long.
        path = os.fspath(self.path)
        for name in key.split("/") if key else []:
            if name in ("", ".", "..") or "\\" in name or "\0" in name:
                raise StoreError(f"{self.path}: {key!r} would lead out of the store")
            path = f"{path}/{name}"
            if os.path.islink(path):
                self._refuse(Path(path))
        return path

    def _refused(self, entry: os.DirEntry[str]) -> bool:
        """False for a file or folder; StoreError for anything else."""
        mode = entry.stat(follow_symlinks=False).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            self._refuse(Path(entry.path))
        return False

    def _refuse(self, path: Path) -> None:
        what = "a symbolic link" if path.is_symlink() else "neither a file nor a folder"
        raise StoreError(
            f"{self.path}: {path.relative_to(self.path)} is {what}; a store holds only its own files"
        )


def open_files(address: Address, *, cached: bool = True) -> StoreFiles:
    """The files of the store at `address`: a folder, a zip archive, or a URL.

    StoreError if nothing is there; for a URL, errors as of `Objects`. With `cached` false, a URL is read from
    its server only.
    """
    # Imported here: both import this module, and a URL needs packages that a folder does not.
    if is_url(address):
        from gdnbench.store.object_files import ObjectFiles
        from gdnbench.store.piece_cache import PieceCache

        return ObjectFiles(os.fspath(address), PieceCache.of_user() if cached else None)
    from gdnbench.store.zipped import ZipFiles

    place = local_path(address)
    if not place.exists():
        raise StoreError(f"{place} does not exist")
    return FolderFiles(place) if place.is_dir() else ZipFiles(place)
