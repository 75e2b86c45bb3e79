"""A shadow that also has the lane which touched a cell.

Its columns hold codes of 32 bits: a number, of an event or of a set of readers, and a lane. So a byte costs
as much as in a `Shadow`. Of a set of several readers the lane is UNSURE, unless all are the same lane of
their warps; the set knows which of them are several lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum, IntFlag
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
_BOTH_BITS = 4
_BOTH = (1 << _BOTH_BITS) - 1


class Met(NamedTuple):
    """An event that touched some of the cells before. `codes` are what the cells had, `lanes` who comes now;
    of them, those where `groups` is `group`, all if it is None. `many`: it was several lanes, whatever the
    codes say."""

    number: int
    cells: Cells
    codes: Numbers
    lanes: By
    groups: npt.NDArray[np.intp] | None = None
    group: int = 0
    many: bool = False

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
        return (np.full_like(codes, MANY) if self.many else codes & _LANE), lanes

    def before(self) -> Numbers:
        """By cell, the lane that touched it before."""
        return self._lanes()[0]

    def itself(self) -> bool:
        """See `views.Met`."""
        before, lanes = self._lanes()
        return bool((before == lanes).all()) and bool((before < MANY).all())

    def pairs(self) -> Iterator[tuple[int, int]]:
        """See `views.Met`."""
        before, lanes = self._lanes()
        for pair in np.unique(before << LANE_BITS | lanes).tolist():
            yield pair >> LANE_BITS, pair & _LANE


class Lane(IntEnum):
    """Of the readers of a cell, the lane that its code has: that of who comes now, MANY or UNSURE."""

    NOW = 0
    MANY = MANY
    UNSURE = UNSURE


class Both(IntFlag):
    """The lanes of a cell, of its code before and of who comes now."""

    WAS_MANY = 1
    IS_MANY = 2
    SAME = 4
    OTHER = 8  # both are known, and differ


def _both(was: int, now: int) -> int:
    if MANY in (was, now) or UNSURE in (was, now):
        return Both.WAS_MANY * (was == MANY) | Both.IS_MANY * (now == MANY)
    return Both.SAME if was == now else Both.OTHER


_BOTH_OF = np.array([[_both(was, now) for now in range(_LANE + 1)] for was in range(_LANE + 1)], np.int32)


class LaneSets(ReadSets):
    """Sets of readers with lanes. `known(new, old)` says that `old` is ordered before `new` whatever the
    lanes, `writes` which events write. A member is 2 event, + 1 if several lanes of its warp have read, which
    of the only member of a set the code says."""

    def __init__(
        self,
        supersedes: Callable[[int, int], bool],
        known: Callable[[int, int], bool],
        same_warp: Callable[[int, int], bool],
        writes: Callable[[int], bool],
    ) -> None:
        super().__init__(supersedes)
        self._known = known
        self._same_warp = same_warp
        self.writes = writes

    def readers(self, number: int) -> Iterator[tuple[int, bool]]:
        """Of the set `number`: the event, and whether it was several lanes."""
        for member in self.sets[number]:
            yield member >> 1, bool(member & 1)

    def joined(self, number: int, reader: int, both: Both) -> tuple[int, Lane]:
        """The set `number` and `reader`, and what lane its cells have."""
        old = [*self.readers(number)]
        kept: list[int] = []
        many, sure = Both.IS_MANY in both, True
        for event, several in old:
            if event != reader and not self._supersedes(reader, event):
                several = several or (len(old) == 1 and Both.WAS_MANY in both)
                kept.append(2 * event + several)
            elif event == reader or (self._same_warp(reader, event) and not self._known(reader, event)):
                # From here on the reader stands for that one too.
                was_many = several or (len(old) == 1 and Both.WAS_MANY in both)
                many = many or was_many or Both.OTHER in both
                sure = Both.SAME in both
        if kept:
            found = self._number((*kept, 2 * reader + many))
            return found, Lane.NOW if Both.SAME in both else Lane.UNSURE
        return self._number((2 * reader,)), Lane.MANY if many else Lane.NOW if sure else Lane.UNSURE


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
        before = self.readers[cells]
        self.readers[cells] = self._with_reader(before, event, _of_cells(self.readers, cells, lanes))
        return found

    def _with_reader(self, before: Numbers, event: int, by: By) -> Numbers:
        """Codes of the sets `before` and `event`, which is `by` at each cell."""
        sets = before >> LANE_BITS
        keys = sets << _BOTH_BITS | np.where(sets == 0, 0, _BOTH_OF[before & _LANE, by])
        unique, inverse = _distinct(keys)
        after = [self.sets.joined(key >> _BOTH_BITS, event, Both(key & _BOTH)) for key in unique]
        numbers = np.array([number << LANE_BITS for number, _ in after], np.int32)[inverse]
        lanes = np.array([lane for _, lane in after], np.int32)[inverse]
        codes: Numbers = numbers | np.where(lanes == Lane.NOW, by, lanes).astype(np.int32)
        return codes

    def writes(self, cells: Cells, event: int, lanes: By) -> list[Met]:
        """`event` writes the cells: the writers and readers before."""
        found = self.touched(cells, lanes)
        self.writer[cells] = event << LANE_BITS | _of_cells(self.writer, cells, lanes)
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
            readers = self.sets.readers(prior.number)
            found += [prior._replace(number=reader, many=many) for reader, many in readers]
        return found


def _of_cells(column: Numbers, cells: Cells, lanes: By) -> By:
    """`lanes`, MANY where several are at one cell. The column's codes of these cells are lost."""
    if isinstance(lanes, int):
        return lanes
    column[cells] = lanes
    others = column[cells] != lanes
    if not others.any():
        return lanes
    column[cells[others]] = MANY
    return column[cells]


def _distinct(keys: Numbers) -> tuple[list[int], npt.NDArray[np.intp]]:
    """Those that there are, and which of them each is."""
    first = int(keys[0])
    if (keys == first).all():
        return [first], np.zeros(len(keys), np.intp)
    unique, inverse = np.unique(keys, return_inverse=True)
    return unique.tolist(), inverse


def _each(codes: Numbers, cells: Cells, lanes: By) -> list[Met]:
    """The distinct numbers in `codes`."""
    if not codes.size:
        return []
    numbers = codes >> LANE_BITS
    unique, inverse = _distinct(numbers)
    if len(unique) == 1:
        return [Met(unique[0], cells, codes, lanes)]
    return [Met(number, cells, codes, lanes, inverse, group) for group, number in enumerate(unique)]
