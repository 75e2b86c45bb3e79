"""A bounded folder of what was read from object stores, shared by all processes of a user.

`GDNBENCH_CACHE` names the folder (default: the user's cache), `GDNBENCH_CACHE_BYTES` what it may hold
(default 1 GiB; 0 keeps nothing). Names say which bytes of which content they are, so nothing in it grows old.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final, Self

from blake3 import blake3

from gdnbench.errors import BadInputError

_FOLDER: Final = "GDNBENCH_CACHE"
_BYTES: Final = "GDNBENCH_CACHE_BYTES"
_DEFAULT_BYTES: Final = 1 << 30
_KEPT: Final = 0.9  # of the bound, when something has to go


def user_cache() -> Path:
    """The folder below which we may keep what can be fetched or made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "gdnbench"


class PieceCache:
    """Pieces by name in `folder`, the least recently used deleted when they are more than `limit` bytes.

    What the disk refuses is not kept; no method raises for it.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._held: int | None = None  # bytes, counted at the first `put`

    @classmethod
    def of_user(cls) -> Self:
        """BadInputError for a bound that is no number."""
        text = os.environ.get(_BYTES, "")
        if text and not text.isdecimal():
            raise BadInputError(f"{_BYTES} is {text!r}; give a number of bytes, 0 for no cache")
        folder = os.environ.get(_FOLDER)
        return cls(Path(folder) if folder else user_cache() / "objects", int(text or _DEFAULT_BYTES))

    def get(self, name: str, size: int) -> bytes | None:
        """The piece, or None if it is not here with `size` bytes."""
        path = self._path(name)
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if len(content) == size:
                os.utime(path)
                return content
        return None

    def put(self, name: str, content: bytes) -> None:
        if len(content) > self._limit:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._held is None:
                self._held = sum(size for _, size, _ in self._pieces())
            unfinished = self._folder / f".{secrets.token_hex(8)}"
            try:
                unfinished.write_bytes(content)
                os.replace(unfinished, self._path(name))
            finally:
                unfinished.unlink(missing_ok=True)
            self._held += len(content)
            if self._held > self._limit:
                self._held = self._shrunk()

    def _shrunk(self) -> int:
        """Delete the least recently used pieces; the bytes that are left."""
        pieces = sorted(self._pieces())
        held = sum(size for _, size, _ in pieces)
        for _, size, path in pieces:
            if held <= _KEPT * self._limit:
                break
            path.unlink(missing_ok=True)
            held -= size
        return held

    def _pieces(self) -> list[tuple[int, int, Path]]:
        """Time of last use, bytes and path of each; what a killed process left unfinished too."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
        return found

    def _path(self, name: str) -> Path:
        return self._folder / blake3(name.encode()).hexdigest()
