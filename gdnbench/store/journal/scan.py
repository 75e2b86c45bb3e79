# SPDX-License-Identifier: Apache-2.0
"""Finds the complete entries of one journal file, and describes what follows them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.store.journal.format import (
    PREFIX_BYTES,
    TRAILER_BYTES,
    JournalDamage,
    Prefix,
    check_trailer,
    padding,
    unpack_head,
    unpack_prefix,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A complete entry: its frame is checked, its payloads are not read."""

    prefix: Prefix
    lengths: tuple[int, ...]
    header: Mapping[str, Any]
    start: int  # in its file
    checksum: int

    @property
    def end(self) -> int:
        return self.start + self.prefix.entry_bytes

    @property
    def payloads(self) -> list[tuple[int, int]]:
        """(offset in the file, bytes) of every payload."""
        places = []
        at = self.start + self.prefix.head_bytes
        for nbytes in self.lengths:
            places.append((at, nbytes))
            at += nbytes + padding(nbytes)
        return places


@dataclass(frozen=True, slots=True)
class Scan:
    entries: list[Entry]
    end: int  # offset after the last whole entry
    fault: (
        JournalDamage | None
    )  # why the bytes at `end` are no entry; None: they are one's beginning, or nothing
    tail: str | None  # description of the unfinished entry at `end`


def scan(fd: int, path: Path, start: int) -> Scan:
    """The complete entries from offset `start` on. Reads with `pread` only: the file may grow or be
    truncated.

    StoreError for an entry of a newer version.
    """
    size = os.fstat(fd).st_size
    entries: list[Entry] = []
    at = start
    fault = None
    tail = None
    try:
        while at < size:
            prefix, head = _read_head(fd, path, at)
            if prefix is None or head is None or at + prefix.entry_bytes > size:
                tail = _describe(prefix, head, size - at)
                break
            trailer = os.pread(fd, TRAILER_BYTES, at + prefix.entry_bytes - TRAILER_BYTES)
            if len(trailer) < TRAILER_BYTES:  # the writer removed its unfinished entry
                break
            total = check_trailer(prefix, trailer, f"{path}, byte {at}")
            entries.append(Entry(prefix, *head, start=at, checksum=total))
            at += prefix.entry_bytes
    except JournalDamage as error:
        fault = error
    return Scan(entries, at, fault, tail)


Head = tuple[tuple[int, ...], dict[str, Any]]


def _read_head(fd: int, path: Path, at: int) -> tuple[Prefix | None, Head | None]:
    """Prefix, lengths and header of the entry at `at`, as far as the file contains them."""
    data = os.pread(fd, PREFIX_BYTES, at)
    if len(data) < PREFIX_BYTES:
        return None, None
    where = f"{path}, byte {at}"
    prefix = unpack_prefix(data, where)
    rest = os.pread(fd, prefix.head_bytes - PREFIX_BYTES, at + PREFIX_BYTES)
    if len(rest) < prefix.head_bytes - PREFIX_BYTES:
        return prefix, None
    return prefix, unpack_head(prefix, rest, where)


def _describe(prefix: Prefix | None, head: Head | None, nbytes: int) -> str:
    if prefix is None or head is None:
        return f"an entry of which {nbytes} bytes were written"
    info = head[1].get("info")
    what = (
        f"call {info['call']} of {info['layer'] or info['target']}" if info else f"a {prefix.kind.name} entry"
    )
    return f"{what}, of which {nbytes} of {prefix.entry_bytes} bytes were written"
