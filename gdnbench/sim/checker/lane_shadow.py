"""A shadow that also has the lane which touched a cell.

Its columns hold codes of 32 bits: a number, of an event or of a set of readers, and a lane. So a byte costs
as much as in a `Shadow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.lanes import MANY, UNSURE
from gdnbench.sim.checker.shadow import NOBODY, Cells, Numbers, ReadSets

By = Numbers | int
"""Lanes: one for each cell, or one for all."""

# A code: number << LANE_BITS | lane, or MANY. An event is a Python object: 2**25 of them fill no machine.
LANE_BITS = 6
_LANE = (1 << LANE_BITS) - 1


class Met(NamedTuple):
    """An event that touched some of the cells before. `codes` are what the cells had, `lanes` who comes now;
    of them, those where `groups` is `group`, all if it is None. `one`: nobody else is in those codes."""

    number: int
    cells: Cells
    codes: Numbers
    lanes: By
    groups: npt.NDArray[np.intp] | None = None
    group: int = 0
    one: bool = True

    def where(self) -> Cells:
        """The cells."""
        return self.cells if self.groups is None else self.cells[self.groups == self.group]

    def cell(self) -> int:
        """The first of them."""
        return int(self.where().min())

    def extent(self) -> int:
        """How many there are from the first to the last."""
        where = self.where()
        return int(where.max() - where.min()) + 1

    def _lanes(self) -> tuple[Numbers, By]:
        """Of those before and now."""
        codes, lanes = self.codes, self.lanes
        if self.groups is not None:
            here = self.groups == self.group
            codes = codes[here]
            lanes = lanes if isinstance(lanes, int) else lanes[here]
        return codes & _LANE, lanes

    def before(self) -> Numbers:
        """By cell, the lane that touched it before."""
        return self._lanes()[0]

    def itself(self) -> bool:
        """See `views.Met`."""
        before, lanes = self._lanes()
        return bool((before == lanes).all()) and not (before == MANY).any()

    def pairs(self) -> Iterator[tuple[int, int]]:
        """See `views.Met`."""
        before, lanes = self._lanes()
        for pair in np.unique(before << LANE_BITS | lanes).tolist():
            lane = pair >> LANE_BITS
            yield (UNSURE if lane == MANY and not self.one else lane), pair & _LANE


class LaneSets(ReadSets):
    """Sets of readers with lanes. `known(new, old)` says that `old` is ordered before `new` whatever the
    lanes, `writes` which events write."""

    def __init__(
        self,
        supersedes: Callable[[int, int], bool],
        known: Callable[[int, int], bool],
        writes: Callable[[int], bool],
    ) -> None:
        super().__init__(supersedes)
        self._known = known
        self.writes = writes

    def joined(self, number: int, reader: int) -> tuple[int, bool]:
        """The set `number` and `reader`; whether its other readers are of no account any more."""
        found, old = self.with_reader(number, reader), self.sets[number]
        alone = len(self.sets[found]) == 1
        return found, alone and all(one != reader and self._known(reader, one) for one in old)


class LaneShadow:
    """The shadow of `cells` cells. Among the readers of one are those that updated it and do not race with
    whoever wrote it last."""

    def __init__(self, cells: int, sets: LaneSets) -> None:
        self.writer: Numbers = np.zeros(cells, np.int32)
        self.readers: Numbers = np.zeros(cells, np.int32)
        self.sets = sets
        self._kept = False  # some updates are

    def reads(self, cells: Cells, event: int, lanes: By) -> list[Met]:
        """`event` reads the cells: the writers before, NOBODY where there was none."""
        found = _each(self.writer[cells], cells, lanes)
        if self._kept:
            found += [one for one in self._read_by(cells, lanes) if self.sets.writes(one.number)]
        _put(self.readers, cells, self._with_reader(self.readers[cells], event, lanes), lanes)
        return found

    def _with_reader(self, before: Numbers, event: int, lanes: By) -> Numbers:
        """Codes of the sets `before` and `event`: of a lane while nobody else has read."""
        sets = before >> LANE_BITS
        if (sets == sets[0]).all():
            number, alone = self.sets.joined(int(sets[0]), event)
            if alone:
                return np.full(len(sets), number << LANE_BITS, np.int32) | lanes
            return np.where(before & _LANE == lanes, lanes, MANY).astype(np.int32) | number << LANE_BITS
        unique, inverse = np.unique(sets, return_inverse=True)
        after = [self.sets.joined(one, event) for one in unique.tolist()]
        numbers = np.array([number << LANE_BITS for number, _ in after], np.int32)
        fresh = np.array([alone for _, alone in after])
        by = np.where(fresh[inverse] | (before & _LANE == lanes), lanes, MANY).astype(np.int32)
        codes: Numbers = numbers[inverse] | by
        return codes

    def writes(self, cells: Cells, event: int, lanes: By) -> list[Met]:
        """`event` writes the cells: the writers and readers before."""
        found = self.touched(cells, lanes)
        _put(self.writer, cells, np.full(len(cells), event << LANE_BITS, np.int32) | lanes, lanes)
        self.readers[cells] = 0
        return found

    def touched(self, cells: Cells, lanes: By) -> list[Met]:
        """All that wrote or read one of the cells, which `lanes` are about to do."""
        found = [prior for prior in _each(self.writer[cells], cells, lanes) if prior.number != NOBODY]
        return found + self._read_by(cells, lanes)

    def keep(self, prior: Met) -> None:
        """`prior`, told of a write of its cells, does not race with it and is not ordered before it: whoever
        comes later is held against both."""
        self._kept = True
        cells, codes = prior.where(), prior.before()
        self.readers[cells] = self._with_reader(self.readers[cells], prior.number, codes)

    def _read_by(self, cells: Cells, lanes: By) -> list[Met]:
        found: list[Met] = []
        for prior in _each(self.readers[cells], cells, lanes):
            members = self.sets.sets[prior.number]
            found += [prior._replace(number=reader, one=len(members) == 1) for reader in members]
        return found


def _put(column: Numbers, cells: Cells, codes: Numbers, lanes: By) -> None:
    """Set the codes of cells, MANY where several lanes are at one."""
    column[cells] = codes
    if isinstance(lanes, int):
        return
    others = column[cells] != codes
    if others.any():
        column[cells[others]] = codes[others] & ~_LANE | MANY


def _each(codes: Numbers, cells: Cells, lanes: By) -> list[Met]:
    """The distinct numbers in `codes`."""
    if not codes.size:
        return []
    numbers = codes >> LANE_BITS
    first = int(numbers[0])
    if (numbers == first).all():
        return [Met(first, cells, codes, lanes)]
    unique, inverse = np.unique(numbers, return_inverse=True)
    return [Met(number, cells, codes, lanes, inverse, group) for group, number in enumerate(unique.tolist())]
