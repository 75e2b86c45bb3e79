"""Files that are there as a whole or as they were, whatever ends the process that writes them."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def replace_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Make `text`, as UTF-8, the content of the file at `path`; `durable`: on the disk before this returns.

    OSError, and UnicodeEncodeError for half of a surrogate pair, leave what was there and nothing else.
    A link stays one. What is no file, a pipe or /dev/null, is written to: replacing it would take it from
    everybody.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
