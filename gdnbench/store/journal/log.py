# SPDX-License-Identifier: Apache-2.0
"""A journal's files on the writer's side: creates them, appends entries, and switches to the next file."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gdnbench.store.journal.codec import Buffer
from gdnbench.store.journal.format import Kind, pack_head, pack_trailer, padding
from gdnbench.store.journal.host import host_mark, this_host

JOURNAL_FOLDER = ".journal"
WRITER_LOCK = "writer.lock"
SEALER_LOCK = "sealer.lock"
UNBORN = ".new-"  # name prefix of a journal in the making, before host mark and segment

_IOV_MAX = os.sysconf("SC_IOV_MAX")
_PADS = tuple(bytes(n) for n in range(8))


def log_name(file: int) -> str:
    return f"{file:08d}.log"


class Written(NamedTuple):
    number: int  # of the entry
    places: list[int]  # offset in the file of every payload


class JournalLog:
    """Appends entries to `<store>/.journal/<segment>/`; every method raises OSError if the disk fails.

    A failed write leaves no part of an entry. Not thread safe: `JournalWriter` holds the lock.
    """

    def __init__(self, store: Path, segment: str, opening: bytes) -> None:
        self.folder = store / JOURNAL_FOLDER / segment
        self.bytes_written = 0
        self.offset = 0
        self.has_records = False  # in the current file
        self._opening = opening
        self._number = 0
        self._file = -1
        self._full: dict[Path, int] = {}  # full files that are not deleted yet -> bytes
        self._full_bytes = 0
        self._synced_folder = False
        self._fd = self._writer_lock = self._sealer_lock = -1
        self._identities: dict[int, tuple[int, int]] = {}  # of our files, by descriptor
        self._create()

    def _create(self) -> None:
        """Create the journal under a hidden name, so that a visible journal is locked and has its first
        entry."""
        hidden = self.folder.with_name(f"{UNBORN}{host_mark()}.{self.folder.name}")
        hidden.mkdir(parents=True)
        flags = os.O_CREAT | os.O_RDWR
        try:
            self._sealer_lock = self._open(hidden / SEALER_LOCK, flags)
            self._writer_lock = self._open(hidden / WRITER_LOCK, flags)
            fcntl.flock(self._writer_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._writer_lock, this_host().to_bytes())
            self._open_next(hidden, records=0, dropped=0)
            hidden.rename(self.folder)
        except OSError:
            self.release()
            raise

    def _open_next(self, folder: Path, records: int, dropped: int) -> None:
        fd = self._open(folder / log_name(self._file + 1), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND)
        if self._fd >= 0:
            if self._still_ours(self._fd):
                os.close(self._fd)
            self._full[folder / log_name(self._file)] = self.offset
            self._full_bytes += self.offset
        self._fd = fd
        self._file += 1
        self.offset = 0
        self.has_records = False
        self._synced_folder = False
        self.write(Kind.OPEN, self._opening, (), records=records, dropped=dropped)

    def next_file(self, *, records: int, dropped: int) -> None:
        """Close the current file for good, so that the sealer can delete it, and open the next one."""
        self._open_next(self.folder, records, dropped)

    def write(
        self,
        kind: Kind,
        header: bytes,
        payloads: Sequence[Buffer],
        *,
        records: int,
        dropped: int,
        total: int = 0,
    ) -> Written:
        """Append one entry. `total` is the sum of the payloads' checksums."""
        number = self._number
        head, crc = pack_head(kind, number, records, dropped, header, [len(payload) for payload in payloads])
        pieces: list[bytes | Buffer] = [head]
        nbytes = len(head)
        places = []
        for payload in payloads:
            places.append(self.offset + nbytes)
            pieces.append(payload)
            pad = padding(len(payload))
            if pad:
                pieces.append(_PADS[pad])
            nbytes += len(payload) + pad
        trailer = pack_trailer(crc, number, total)
        pieces.append(trailer)
        nbytes += len(trailer)
        if not self._still_ours(self._fd):
            raise OSError(errno.EBADF, "the program closed the journal's file")
        try:
            self._write_all(pieces, nbytes)
        except BaseException:
            # Also for an exception that a signal handler of the program raises here. A complete entry is
            # never truncated, because a sealer may have mapped it; it counts.
            if os.fstat(self._fd).st_size < self.offset + nbytes:
                os.ftruncate(self._fd, self.offset)
            else:
                self._advance(kind, nbytes)
            raise
        self._advance(kind, nbytes)
        return Written(number, places)

    def _write_all(self, pieces: Sequence[bytes | Buffer], nbytes: int) -> None:
        written = os.writev(self._fd, pieces) if len(pieces) <= _IOV_MAX else 0
        # A short write means a signal, a full disk, or more than 2 GiB in one call.
        while written < nbytes:
            written += os.writev(self._fd, _after(pieces, written)[:_IOV_MAX])

    def _advance(self, kind: Kind, nbytes: int) -> None:
        self._number += 1
        self.offset += nbytes
        self.bytes_written += nbytes
        self.has_records |= kind in (Kind.RECORD, Kind.BEGIN, Kind.END)

    def _open(self, path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self._identities[fd] = _identity(fd)
        return fd

    def _still_ours(self, fd: int) -> bool:
        """Whether the descriptor is still our file: a program that closes every descriptor may reuse its
        number."""
        try:
            return self._identities.get(fd) == _identity(fd)
        except OSError:
            return False

    def sync(self) -> None:
        """Flush everything written so far, and the folders that name it, to disk."""
        os.fdatasync(self._fd)
        if not self._synced_folder:
            for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
                fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            self._synced_folder = True

    def queued_bytes(self) -> int:
        """Bytes in files that are not yet sealed and deleted, including the current one; checks each file."""
        for path in [path for path in self._full if not path.exists()]:
            self._full_bytes -= self._full.pop(path)
        return self.queued_at_most

    @property
    def queued_at_most(self) -> int:
        """`queued_bytes` at the last check plus what was written since."""
        return self._full_bytes + self.offset

    def sealer_lives(self) -> bool:
        """Whether a sealer holds this segment now."""
        if not self._still_ours(self._sealer_lock):
            return False
        try:
            fcntl.flock(self._sealer_lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._sealer_lock, fcntl.LOCK_UN)
        return False

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def release(self) -> None:
        """Close the files and release the writer's lock; in a forked child, only the child's descriptors."""
        for fd in (self._fd, self._sealer_lock, self._writer_lock):
            if fd >= 0 and self._still_ours(fd):
                os.close(fd)
        self._identities.clear()
        self._fd = self._sealer_lock = self._writer_lock = -1


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _after(pieces: Sequence[bytes | Buffer], written: int) -> list[memoryview]:
    """The rest of `pieces` after their first `written` bytes."""
    left = []
    for piece in pieces:
        view = memoryview(piece).cast("B")
        if written < view.nbytes:
            left.append(view[written:])
        written = max(written - view.nbytes, 0)
    return left
