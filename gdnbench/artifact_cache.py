# SPDX-License-Identifier: Apache-2.0
"""A folder of artifacts that can be made again: compiled kernels, object files, pieces of remote stores.

    cache = ArtifactCache("programs", b"gdnbench-program-1\\n")
    cache.keep(key, {"symbol": "k"}, [ptx, cubin])
    cache.fetch(key)                                  # ({"symbol": "k"}, [ptx, cubin]), or None

Processes share a folder, and `making` lets one of them make an entry that several need. An entry appears
whole or not at all. `fetch` returns None for an entry that is damaged, was copied from another key, or that
another user could have written: compiled code is going to run.
When the entries of a folder exceed `MAX_BYTES`, the least recently used ones are deleted; a process looks at
its first write, and again after every 64th of `MAX_BYTES`.
`GDNBENCH_CACHE_DIR` names the place of all folders; the default is `gdnbench` in the user's cache directory.

Imports the standard library alone: the simulator and the kernels, which know nothing of each other, both use
it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "GDNBENCH_CACHE_DIR"
MAX_BYTES = 2 << 30
"""Of one folder. An entry takes 20 KB to 2 MB, so that a folder holds the some 3,000 of a whole test run."""
_KEPT_SHARE: Final = 0.9  # of the bound, once something has to be deleted
_LOCKS: Final = 64  # files: keys that share one wait for each other, which costs time alone
_DIGEST_SIZE: Final = hashlib.sha256().digest_size


class NoHomeError(RuntimeError):
    """The user has no home directory, as in containers that give a user a number alone."""


def user_cache() -> Path:
    """`gdnbench` in the user's cache directory (XDG_CACHE_HOME, else ~/.cache); NoHomeError without a
    home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "gdnbench"
    except RuntimeError:
        raise NoHomeError(f"user {os.geteuid()} has no home directory; set {VARIABLE}") from None


def cache_home() -> Path:
    """The folder that holds every cache: `GDNBENCH_CACHE_DIR`, else `user_cache()`. May raise NoHomeError."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else user_cache()


@dataclass(frozen=True, slots=True)
class ArtifactCache:
    """Entries in `cache_home() / folder`. `magic` starts each and names the version of their format."""

    folder: str
    magic: bytes

    def directory(self) -> Path:
        """NoHomeError if there is no place for it."""
        return cache_home() / self.folder

    def fetch(self, key: str) -> tuple[dict[str, Any], list[bytes]] | None:
        """The record and the byte strings under `key`, or None if there is no entry that can be trusted."""
        try:
            path = self.directory() / key
            with open(path, "rb", opener=_open_at_once) as file:
                status = os.fstat(file.fileno())
                if not _only_we_can_write(status) or status.st_size > MAX_BYTES:
                    return None
                data = file.read()
        except (OSError, NoHomeError):
            return None
        start = len(self.magic) + _DIGEST_SIZE
        body = data[start:]
        if data[:start] != self._head(key, body):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # its age counts from the last use
        line, _, rest = body.partition(b"\n")
        try:
            entry = json.loads(line)
            record, sizes = entry["record"], entry["sizes"]
        except (ValueError, TypeError, KeyError):
            return None
        parts = []
        for size in sizes:
            parts.append(rest[:size])
            rest = rest[size:]
        return (record, parts) if isinstance(record, dict) else None

    def keep(self, key: str, record: Mapping[str, Any], parts: Sequence[bytes]) -> None:
        """Writes an entry. A folder that cannot be written costs time, not results: nothing is raised."""
        line = json.dumps({"record": record, "sizes": [len(part) for part in parts]}).encode()
        body = b"\n".join([line, b"".join(parts)])
        try:
            folder = self.directory()
            folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(self._head(key, body) + body)
                os.replace(temporary, folder / key)
            except BaseException:  # do not fill a full disk with halves of entries
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            _limit_bytes(folder, len(body))
        except (OSError, NoHomeError):
            return

    @contextlib.contextmanager
    def making(self, key: str) -> Iterator[None]:
        """One process at a time makes the entry `key`: others wait here, and then `fetch` it.

        In a folder without locks all of them make it. A process that dies lets go of its lock. Not to be
        entered for two keys at once, since some keys share a lock.
        """
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError, NoHomeError):
                folder = cache_home() / "locks"
                folder.mkdir(parents=True, exist_ok=True)
                number = hashlib.sha256(key.encode()).digest()[0] % _LOCKS
                file = held.enter_context(open(folder / f"{self.folder}-{number}", "ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _head(self, key: str, body: bytes) -> bytes:
        """What an entry starts with. The key is in the checksum, so that an entry copied to another key
        fails."""
        return self.magic + hashlib.sha256(key.encode() + b"\0" + body).digest()


def _limit_bytes(folder: Path, written: int) -> None:
    """Apply MAX_BYTES at this process's first write and after every 64th of MAX_BYTES: listing some thousand
    entries takes longer than writing one."""
    _unlisted[folder] = _unlisted.get(folder, MAX_BYTES) + written
    if _unlisted[folder] >= MAX_BYTES // 64:
        _unlisted[folder] = 0
        delete_least_recently_used(folder, MAX_BYTES)


_unlisted: dict[Path, int] = {}
"""Bytes that this process has written to a folder since it last listed it."""


def delete_least_recently_used(folder: Path, limit: int) -> int:
    """If the files in `folder` exceed `limit` bytes, delete the oldest until nine tenths of it are left.

    Returns the bytes that remain. Files that killed processes left unfinished count too. Other processes may
    do the same meanwhile. Folders, and files that cannot be deleted, stay. Raises OSError if the folder
    cannot be read.
    """
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    continue
                files.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
    held = sum(size for _, size, _ in files)
    if held > limit:
        for _, size, path in sorted(files):
            if held <= _KEPT_SHARE * limit:
                break
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                held -= size
    return held


def _open_at_once(path: str, flags: int) -> int:
    """For `open`: opening a named pipe does not wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _only_we_can_write(status: os.stat_result) -> bool:
    """Whether this is a regular file of this user that neither the group nor others can write."""
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
