# SPDX-License-Identifier: Apache-2.0
"""File operations that survive a power failure, and that two processes may do at the same time."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_SYNC_THREADS = 4  # enough for the flushes of many small files to overlap


def sync(path: Path) -> None:
    """Flush a file or folder to its device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Flush everything under `root`: files before the folders that name them."""
    folders, files = [], []
    for folder, _, names in os.walk(root):
        folders.append(Path(folder))
        files += [Path(folder, name) for name in names]
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        list(pool.map(sync, files))
        list(pool.map(sync, folders))


def publish(path: Path, content: bytes, spare: Path, durable: bool) -> bool:
    """Create `path` with `content` atomically, unless it exists; returns whether this call created it.

    `spare` is a folder of the same file system for the unfinished file.
    """
    unfinished = spare / f"{path.name}.{secrets.token_hex(8)}"
    unfinished.write_bytes(content)
    try:
        if durable:
            sync(unfinished)
        os.link(unfinished, path)  # unlike a rename, fails if another process was first
    except FileExistsError:
        return False
    finally:
        unfinished.unlink(missing_ok=True)
    if durable:
        sync(path.parent)
    return True


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents, while other processes may be removing empty parents."""
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError):
            folder.mkdir(parents=True, exist_ok=True)
            return
    raise FileNotFoundError(f"{folder} cannot be made: a folder above it keeps vanishing")


def remove_if_empty(folder: Path) -> None:
    """Remove `folder` unless it is not empty or does not exist."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
