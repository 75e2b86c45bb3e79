"""Compiled programs on disk, shared by processes.

An entry is a file under its key: a checksum, a JSON record, and byte strings. One that is damaged, of another
name, or that somebody else could have written is none: it is compiled again, since its host object is going
to run. Beyond `MAX_ENTRIES` those unused for longest go. `GDNBENCH_CACHE_DIR` names the place; by default it
lies in the user's cache directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_MAGIC = b"gdnbench-program-1\n"
_HEAD = len(_MAGIC) + hashlib.sha256().digest_size
# An entry is 0.3 to 2 MB.
MAX_ENTRIES = 200
FOLDER = "programs"


def directory() -> Path:
    """Where compiled programs are kept; NoHomeError if that is nowhere."""
    chosen = os.environ.get("GDNBENCH_CACHE_DIR")
    if chosen:
        return Path(chosen) / FOLDER
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else _home() / ".cache") / "gdnbench" / FOLDER


class NoHomeError(RuntimeError):
    """A user who has no home directory, as in containers that give a user a number alone."""


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise NoHomeError(f"user {os.geteuid()} has no home directory; set GDNBENCH_CACHE_DIR") from None


def fetch(key: str) -> tuple[dict[str, Any], list[bytes]] | None:
    """The record and the byte strings kept under `key`, or None."""
    try:
        path = directory() / key
        # Not waiting for the other end of what may be a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not _own(os.fstat(file.fileno())):
                return None
            data = file.read()
    except (OSError, NoHomeError):
        return None
    body = data[_HEAD:]
    if data[:_HEAD] != _head(key, body):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # its age is the time since it was last used
    line, _, rest = body.partition(b"\n")
    entry = json.loads(line)
    texts = []
    for size in entry["sizes"]:
        texts.append(rest[:size])
        rest = rest[size:]
    return entry["record"], texts


def keep(key: str, record: Mapping[str, Any], texts: Sequence[bytes]) -> None:
    """Write an entry; it appears whole or not at all. A cache that cannot be written costs time alone."""
    line = json.dumps({"record": record, "sizes": [len(text) for text in texts]}).encode()
    body = b"\n".join([line, b"".join(texts)])
    try:
        folder = directory()
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_head(key, body) + body)
            os.replace(temporary, folder / key)
        except BaseException:  # a full disk is not filled with halves of entries
            os.unlink(temporary)
            raise
        _trim(folder)
    except (OSError, NoHomeError):
        return


def _own(status: os.stat_result) -> bool:
    """Whether this is a file that nobody else could have written."""
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _head(key: str, body: bytes) -> bytes:
    """What an entry starts with. The key is in the checksum: a copy under another name is none."""
    return _MAGIC + hashlib.sha256(key.encode() + b"\0" + body).digest()


def _trim(folder: Path) -> None:
    """Delete what was not used for longest, a tenth at a time; other processes may do the same meanwhile."""
    names = os.listdir(folder)
    if len(names) <= MAX_ENTRIES:
        return
    ages = []
    for name in names:
        with contextlib.suppress(OSError):
            ages.append(((folder / name).stat().st_mtime_ns, name))
    for _, name in sorted(ages)[: len(names) - MAX_ENTRIES * 9 // 10]:
        (folder / name).unlink(missing_ok=True)
