# SPDX-License-Identifier: Apache-2.0
"""A bounded cache folder for data read from object stores, shared by all processes of a user.

It lies in `GDNBENCH_CACHE_DIR` (default: the user's cache). `GDNBENCH_CACHE_BYTES` limits its size (default 1
GiB; 0 disables it). A name identifies bytes of one version of an object, so entries never go stale.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final, Self

from blake3 import blake3

from gdnbench.artifact_cache import VARIABLE, cache_home, delete_least_recently_used
from gdnbench.errors import BadInputError

_OLD_FOLDER: Final = "GDNBENCH_CACHE"
_BYTES: Final = "GDNBENCH_CACHE_BYTES"
_DEFAULT_BYTES: Final = 1 << 30


class PieceCache:
    """Pieces by name in `folder`; deletes the least recently used ones above `limit` bytes.

    Disk errors mean that a piece is not cached; no method raises them.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._held: int | None = None  # bytes, counted at the first `store_piece`

    @classmethod
    def of_user(cls) -> Self:
        """The cache that the environment configures.

        BadInputError if the limit is no number, or if the variable of earlier releases is set.
        """
        text = os.environ.get(_BYTES, "")
        if text and not text.isdecimal():
            raise BadInputError(f"{_BYTES} is {text!r}; give a number of bytes, 0 for no cache")
        if os.environ.get(_OLD_FOLDER):
            raise BadInputError(f"{_OLD_FOLDER} is no longer read; set {VARIABLE}, the folder of every cache")
        return cls(cache_home() / "objects", int(text or _DEFAULT_BYTES))

    def load_piece(self, name: str, size: int) -> bytes | None:
        """The piece; None if it is not cached with `size` bytes."""
        path = self._path(name)
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if len(content) == size:
                os.utime(path)
                return content
        return None

    def store_piece(self, name: str, content: bytes) -> None:
        if len(content) > self._limit:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._held is None:
                self._held = delete_least_recently_used(self._folder, self._limit)
            unfinished = self._folder / f".{secrets.token_hex(8)}"
            try:
                unfinished.write_bytes(content)
                os.replace(unfinished, self._path(name))
            finally:
                unfinished.unlink(missing_ok=True)
            self._held += len(content)
            if self._held > self._limit:
                self._held = delete_least_recently_used(self._folder, self._limit)

    def _path(self, name: str) -> Path:
        return self._folder / blake3(name.encode()).hexdigest()
