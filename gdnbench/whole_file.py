# SPDX-License-Identifier: Apache-2.0
"""Files that are there as a whole or as they were, whatever ends the process that writes them."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def replace_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Make `text`, as UTF-8, the content of the file at `path`; `durable`: on the disk before this returns.

    OSError, and UnicodeEncodeError for half of a surrogate pair, leave what was there and nothing else.
    A link stays one. What is no file, a pipe or /dev/null, is written to: replacing it would take it from
    everybody.
    """
    with replacing(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def replace_message(path: Path, text: str) -> None:
    """`replace_text` for text that may quote a store: half of a surrogate pair becomes its escape."""
    replace_text(path, text.encode("utf-8", "backslashreplace").decode("utf-8"))


def copy_whole(source: Path, path: Path) -> None:
    """Copy the file `source` to `path`, in place of a file that is there. OSError leaves what was there."""
    with _in_place_of(path) as unfinished:
        shutil.copyfile(source, unfinished)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path to write a file at, which takes the place of `path` if the block raises nothing.

    A link stays one. What is no file, a pipe or /dev/null, is written to itself.
    IsADirectoryError for a folder.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    with _in_place_of(path) as unfinished:
        yield unfinished


@contextmanager
def _in_place_of(path: Path) -> Iterator[Path]:
    """The path of a file beside `path`, which takes the place of `path` if the block raises nothing."""
    unfinished = _beside(path)
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def new_file(path: Path, *, replace: bool = False) -> Iterator[IO[bytes]]:
    """A file to write `path` through; it has that name once the block ends, and after an error nothing has.

    FileExistsError if there is one and `replace` is False, or if it is no file, such as a device; other
    OSErrors as `open`. A link to a file stays one.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not (replace and path.is_file()):
        raise _exists(path)
    unfinished = _beside(path)
    try:
        with unfinished.open("xb") as file:
            yield file
        if replace:
            unfinished.replace(path)
        else:
            _name_new(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _name_new(unfinished: Path, path: Path) -> None:
    """Give the file the name `path`, which no file has: one of the same name may have appeared meanwhile."""
    try:
        path.hardlink_to(unfinished)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:  # a file system without links
        path.open("xb").close()
        unfinished.replace(path)


def _exists(path: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")
