# SPDX-License-Identifier: Apache-2.0
"""The spool: the local folder in which a capture into an object store waits for upload.

    <spools>/<unix milliseconds>-<pid>-<random>/   named like segments
      address     the URL, one line
      lock        held while batches are uploaded
      arrived/<segment>/<batch>   empty: this batch is in the object store, and its arrays here are deleted
      store/      the store that journals and batches are written to

`GDNBENCH_SPOOL` names the folder of spools; the default is in the user's cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from gdnbench.artifact_cache import user_cache
from gdnbench.errors import StoreError
from gdnbench.store.address import is_url
from gdnbench.store.durable import make_folder, publish, remove_if_empty
from gdnbench.store.layout import BLOBS, INCOMING, JOURNAL, METADATA, ROWS, SEGMENTS
from gdnbench.store.summary import END
from gdnbench.store.writer import new_segment

_FOLDER: Final = "GDNBENCH_SPOOL"
_ADDRESS: Final = "address"
_LOCK: Final = "lock"
_ARRIVED: Final = "arrived"
_STORE: Final = "store"
_OLD_SECONDS: Final = 86_400.0  # age after which a spool with only an address is abandoned


@dataclass(frozen=True, slots=True)
class Spool:
    folder: Path
    url: str

    @classmethod
    def planned(cls, url: str) -> Self:
        """A spool for this process that is not created yet."""
        _sweep(_spools())
        return cls(_spools() / new_segment(), url)

    @classmethod
    def in_folder(cls, folder: Path) -> Self | None:
        """The spool in `folder`, or None if the folder is something else."""
        # Any folder may have a file of this name.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            url = (folder / _ADDRESS).read_text(encoding="utf-8").strip()
            return cls(folder, url) if is_url(url) and len(url.split()) == 1 else None
        return None

    @classmethod
    def of_store(cls, store: Path) -> Self | None:
        """The spool that the local store at `store` belongs to; None if it is no spool's."""
        return cls.in_folder(store.parent) if store.name == _STORE else None

    @classmethod
    def waiting(cls, url: str) -> list[Self]:
        """Spools on this machine with data for `url`."""
        found = [cls.in_folder(folder) for folder in sorted(_spools().glob("*"))]
        return [spool for spool in found if spool and spool.url == url and any(spool.store.glob("*"))]

    @property
    def store(self) -> Path:
        return self.folder / _STORE

    def make(self) -> None:
        """Create the folder and its address file. StoreError if that fails."""
        try:
            make_folder(self.folder)
            self.folder.chmod(0o700)  # it holds data of the program
            publish(self.folder / _ADDRESS, f"{self.url}\n".encode(), self.folder, durable=False)
        except OSError as error:
            raise StoreError(
                f"{self.folder}, where a capture into {self.url} waits, cannot be made: {error.strerror};"
                f" set {_FOLDER} to another folder"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the spool's lock; yields False if the spool no longer exists."""
        try:
            lock = os.open(self.folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            yield False
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield (self.folder / _ADDRESS).exists()
        finally:
            os.close(lock)

    def has_arrived(self, segment: str, batch: str) -> bool:
        return (self.folder / _ARRIVED / segment / batch).exists()

    def mark_arrived(self, segment: str, batch: str) -> None:
        """Mark a batch as uploaded and delete its arrays.

        Its records stay: later batches of the segment need them to know what it holds.
        """
        mark = self.folder / _ARRIVED / segment / batch
        make_folder(mark.parent)
        mark.touch()
        for name in (ROWS, BLOBS):
            shutil.rmtree(self.store / SEGMENTS / segment / batch / name, ignore_errors=True)

    def clear(self) -> bool:
        """Delete the content if all segments have ended and are uploaded; returns whether it did.

        The address stays for processes that may still begin to record; a later sweep removes it.
        """
        with self.locked() as here:
            if not here or not self._is_done():
                return False
            for name in (_STORE, _ARRIVED):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            return True

    def remove(self) -> None:
        """Remove the spool after `clear`, when no process can record into it any more."""
        for name in (_ADDRESS, _LOCK):
            (self.folder / name).unlink(missing_ok=True)
        remove_if_empty(self.folder)

    def _is_done(self) -> bool:
        if any((self.store / JOURNAL).glob("*")) or any((self.store / INCOMING).glob("*/*")):
            return False
        for segment in (self.store / SEGMENTS).glob("*/"):
            named = [found.parent.name for found in segment.glob(f"*/{METADATA}")]
            if END not in named or not all(self.has_arrived(segment.name, name) for name in named):
                return False
        return True


def _spools() -> Path:
    base = os.environ.get(_FOLDER)
    return Path(base).absolute() if base else user_cache() / "spool"


def _sweep(spools: Path) -> None:
    """Remove old spools that hold only their address."""
    with contextlib.suppress(OSError):
        for folder in spools.iterdir():
            spool = Spool.in_folder(folder)
            if spool is None or any(spool.store.glob("*")):
                continue
            if time.time() - folder.stat().st_mtime > _OLD_SECONDS:
                spool.remove()
