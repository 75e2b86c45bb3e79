# SPDX-License-Identifier: Apache-2.0
"""Limits the disk space of a segment that is being recorded: deletes its oldest batches to make room for new
ones."""

from __future__ import annotations

import os
import shutil
from collections import deque
from pathlib import Path
from typing import NamedTuple

from gdnbench.errors import BadInputError
from gdnbench.store.durable import sync
from gdnbench.store.layout import METADATA, parse_node
from gdnbench.store.summary import END
from gdnbench.units import human_bytes

_BATCHES = 8  # batches that the limit should hold: a batch is the smallest unit to drop


class _Held(NamedTuple):
    name: str
    nbytes: int
    stop: int  # the number after the batch's last record


class Quota:
    """The batches of the segment `folder`, and their limit in bytes on disk.

    Batches are dropped whole, so their writer shares no tensors between batches. `spare` is a folder of the
    same file system to which a batch is renamed before it is deleted.
    """

    def __init__(self, folder: Path, spare: Path, limit: int, durable: bool) -> None:
        self._folder, self._spare = folder, spare
        self._limit = limit
        self._durable = durable
        held = [_held(batch) for batch in _batches(folder)]
        self._held = deque(sorted(held, key=lambda batch: batch.stop))
        self._bytes = sum(batch.nbytes for batch in held)

    @staticmethod
    def batch_bytes(limit: int, most: int) -> int:
        """The maximum size of a batch, which is `most` without a limit."""
        return max(1, min(most, limit // _BATCHES))

    def make_room(self, batch: Path) -> None:
        """Drop the oldest batches until `batch`, which is about to be committed, fits.

        BadInputError, and nothing is dropped, if it exceeds the limit by itself.
        """
        nbytes = _tree_bytes(batch)
        if nbytes > self._limit:
            raise BadInputError(
                f"it takes {human_bytes(nbytes)}, more than the {human_bytes(self._limit)} that are kept"
            )
        while self._bytes + nbytes > self._limit:
            self._drop_oldest()

    def add(self, batch: Path) -> None:
        """Count `batch`, which is committed."""
        held = _held(batch)
        self._held.append(held)
        self._bytes += held.nbytes

    def _drop_oldest(self) -> None:
        # The rename hides it at once; the segment's next writer removes what a killed writer leaves.
        batch = self._held[0]
        gone = self._spare / f"{batch.name}.dropped"
        os.rename(self._folder / batch.name, gone)
        self._held.popleft()  # before anything can fail, so that it is not counted twice
        self._bytes -= batch.nbytes
        if self._durable:
            sync(self._folder)
        shutil.rmtree(gone)


def dropped_records(segment: Path) -> int:
    """The number of records dropped from a captured segment: those before its first remaining one."""
    try:
        batches = _batches(segment)
    except FileNotFoundError:
        return 0
    return min((_span(batch)[0] for batch in batches), default=0)


def _batches(segment: Path) -> list[Path]:
    return [path for path in segment.iterdir() if path.is_dir() and path.name != END]


def _span(batch: Path) -> tuple[int, int]:
    """The number of the batch's first record, and the number after its last."""
    _, ours = parse_node((batch / METADATA).read_bytes(), "group", str(batch))
    first = int(ours["first"])
    return first, first + int(ours["count"])


def _held(batch: Path) -> _Held:
    return _Held(batch.name, _tree_bytes(batch), _span(batch)[1])


def _tree_bytes(root: Path) -> int:
    return sum(os.lstat(os.path.join(top, name)).st_size for top, _, names in os.walk(root) for name in names)
