# SPDX-License-Identifier: Apache-2.0
"""The exclusive lock of a store, for pruning and merging."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gdnbench.errors import BadInputError, StoreError
from gdnbench.store.layout import METADATA


@contextmanager
def hold_store_lock(path: Path) -> Iterator[None]:
    """Hold the lock of the store at `path`. Recording needs no lock.

    BadInputError if another process holds it, StoreError if the store cannot be written.
    """
    try:
        # NFS gives an exclusive lock only for a file that is open for writing (flock(2)).
        lock = os.open(path / METADATA, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise StoreError(f"{path / METADATA} cannot be locked: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInputError(
                f"{path} is being pruned or merged into by another process; try again later"
            ) from None
        yield
    finally:
        os.close(lock)
