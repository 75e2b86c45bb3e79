# SPDX-License-Identifier: Apache-2.0
"""Shadow memory: for each cell, the last write and the reads since then.

A cell is 1, 2 or 4 bytes of memory (`KernelAccesses.cell_bytes`), or a 32-bit cell of tensor memory. Two
arrays of 32-bit numbers have an entry for each cell: the event that wrote the cell last, and the set of
events that have read it since. Each distinct set is stored once. So a cell costs 8 bytes of shadow memory.

FastTrack's shadow has the same two parts: the epoch of the last write, and for the reads an epoch or, while
they are concurrent, a vector clock. ThreadSanitizer's has up to four accesses, of which it evicts one at
random when a fifth comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]

NO_ACCESS = 0


class PriorAccess(NamedTuple):
    """An earlier access to some of the cells: its event or code, one such cell, and the event or code of the
    current access."""

    number: int
    cell: int
    now: int


class ReadSets:
    """Sets of readers by number; 0 is the empty set. `supersedes(new, old)`: an access ordered after the read
    `new` is ordered after the read `old`, so that `old` need not be kept."""

    def __init__(self, supersedes: Callable[[int, int], bool]) -> None:
        self.sets: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._supersedes = supersedes

    def with_reader(self, number: int, reader: int) -> int:
        """The number of the set `number` with `reader` added and superseded readers removed."""
        kept = tuple(old for old in self.sets[number] if old != reader and not self._supersedes(reader, old))
        return self._number((*kept, reader))

    def _number(self, members: tuple[int, ...]) -> int:
        found = self._numbers.get(members)
        if found is None:
            found = self._numbers[members] = len(self.sets)
            self.sets.append(members)
        return found


class ShadowMemory:
    """The shadow of `cells` cells: `writer` and `readers` by cell."""

    def __init__(self, cells: int, sets: ReadSets) -> None:
        self.writer: Numbers = np.zeros(cells, np.int32)
        self.readers: Numbers = np.zeros(cells, np.int32)
        self.sets = sets

    def record_reads(self, cells: Cells, events: Numbers) -> list[PriorAccess]:
        """Each of `events`, one for each cell, reads it. Returns the last writers, NO_ACCESS where there is
        none."""
        before = self.writer[cells]
        found = list(_group_by_number(before, cells, events))
        before = self.readers[cells]
        if (before == before[0]).all() and (events == events[0]).all():
            self.readers[cells] = self.sets.with_reader(int(before[0]), int(events[0]))
            return found
        pairs = before.astype(np.int64) << 32 | events
        unique, inverse = np.unique(pairs, return_inverse=True)
        sets = [self.sets.with_reader(pair >> 32, pair & 0xFFFF_FFFF) for pair in unique.tolist()]
        self.readers[cells] = np.array(sets, np.int32)[inverse]
        return found

    def record_writes(self, cells: Cells, events: Numbers) -> list[PriorAccess]:
        """Each of `events` writes its cell. Returns the last writers, and the readers since."""
        found = [
            prior
            for prior in _group_by_number(self.writer[cells], cells, events)
            if prior.number != NO_ACCESS
        ]
        for prior in _group_by_number(self.readers[cells], cells, events):
            found += [PriorAccess(reader, prior.cell, prior.now) for reader in self.sets.sets[prior.number]]
        self.writer[cells] = events
        self.readers[cells] = 0
        return found

    def prior_accesses(self, cells: Cells) -> Iterable[tuple[int, int]]:
        """(event, one of its cells) for every last writer of the cells and every reader since."""
        for prior in _group_by_number(self.writer[cells], cells, self.writer[cells]):
            if prior.number != NO_ACCESS:
                yield prior.number, prior.cell
        for prior in _group_by_number(self.readers[cells], cells, self.writer[cells]):
            for reader in self.sets.sets[prior.number]:
                yield reader, prior.cell

    def clear(self, cells: Cells) -> None:
        """Forget all accesses to the cells."""
        self.writer[cells] = NO_ACCESS
        self.readers[cells] = 0


def _group_by_number(numbers: Numbers, cells: Cells, events: Numbers) -> Iterable[PriorAccess]:
    """The distinct pairs of (number, event), each with one of its cells."""
    if not numbers.size:
        return
    if (numbers == numbers[0]).all() and (events == events[0]).all():
        yield PriorAccess(int(numbers[0]), int(cells[0]), int(events[0]))
        return
    pairs = numbers.astype(np.int64) << 32 | events
    unique, first = np.unique(pairs, return_index=True)
    for pair, index in zip(unique.tolist(), first.tolist(), strict=True):
        yield PriorAccess(pair >> 32, int(cells[index]), pair & 0xFFFF_FFFF)
