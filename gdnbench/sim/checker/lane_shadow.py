# SPDX-License-Identifier: Apache-2.0
"""Shadow memory that also records which lane accessed a cell; the checker uses it for shared memory.

Its two arrays hold codes of 32 bits: the number of an event or of a set of readers, and a lane. So it costs
as many bytes as `ShadowMemory`. The code of a set of several readers has their lane if all of them used the
same lane number, else UNSURE. The set itself records which of its readers read by several lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.lanes import MANY, UNSURE
from gdnbench.sim.checker.shadow import NO_ACCESS, Cells, Numbers, ReadSets

LaneNumbers = Numbers | int
"""The lane of each cell, or one lane for all cells."""

# A code: number << LANE_BITS | lane; the lane may be MANY or UNSURE. 25 bits are enough for the number: an
# event is a Python object, so 2**25 events would take gigabytes.
LANE_BITS = 6
_LANE = (1 << LANE_BITS) - 1
_MATCH_BITS = 4
_MATCH = (1 << _MATCH_BITS) - 1


class PriorLaneAccess(NamedTuple):
    """An earlier event that accessed some of the cells. `codes` are the cells' codes, `lanes` the lanes of
    the access that comes now. Only the cells where `groups` equals `group` count, all if `groups` is None.
    `many`: the event was of several lanes, whatever the codes say."""

    number: int
    cells: Cells
    codes: Numbers
    lanes: LaneNumbers
    groups: npt.NDArray[np.intp] | None = None
    group: int = 0
    many: bool = False

    def overlap(self) -> Cells:
        """The cells that both accesses have."""
        return self.cells if self.groups is None else self.cells[self.groups == self.group]

    def cell(self) -> int:
        """The first of those cells."""
        return int(self.overlap().min())

    def extent(self) -> int:
        """The number of cells from the first to the last of them."""
        where = self.overlap()
        return int(where.max() - where.min()) + 1

    def _lanes(self) -> tuple[Numbers, LaneNumbers]:
        """The lanes of the earlier access and of this one, by cell."""
        codes, lanes = self.codes, self.lanes
        if self.groups is not None:
            here = self.groups == self.group
            codes = codes[here]
            lanes = lanes if isinstance(lanes, int) else lanes[here]
        return (np.full_like(codes, MANY) if self.many else codes & _LANE), lanes

    def before(self) -> Numbers:
        """The lane of the earlier access, by cell."""
        return self._lanes()[0]

    def same_lane(self) -> bool:
        """See `LanePairs`."""
        before, lanes = self._lanes()
        return bool((before == lanes).all()) and bool((before < MANY).all())

    def lane_pairs(self) -> Iterator[tuple[int, int]]:
        """See `LanePairs`."""
        before, lanes = self._lanes()
        for pair in np.unique(before << LANE_BITS | lanes).tolist():
            yield pair >> LANE_BITS, pair & _LANE


class ReaderLane(IntEnum):
    """The lane that a cell's code has for its readers: the lane of the read that comes now, MANY or
    UNSURE."""

    NOW = 0
    MANY = MANY
    UNSURE = UNSURE


class LaneMatch(IntFlag):
    """How the lane in a cell's code compares with the lane of the access that comes now."""

    WAS_MANY = 1
    IS_MANY = 2
    SAME = 4
    OTHER = 8  # both are known, and differ


def _lane_match(was: int, now: int) -> int:
    if MANY in (was, now) or UNSURE in (was, now):
        return LaneMatch.WAS_MANY * (was == MANY) | LaneMatch.IS_MANY * (now == MANY)
    return LaneMatch.SAME if was == now else LaneMatch.OTHER


_LANE_MATCHES = np.array(
    [[_lane_match(was, now) for now in range(_LANE + 1)] for was in range(_LANE + 1)], np.int32
)


class LaneSets(ReadSets):
    """Sets of readers with lanes. `known(new, old)` is whether `old` is ordered before `new` for all lanes,
    `writes(event)` whether an event writes. A member of a set is 2 * event, + 1 if several lanes of its warp
    have read; where a set has one member, the cell's code says so instead."""

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
        """The members of the set `number`: the event, and whether several lanes read."""
        for member in self.sets[number]:
            yield member >> 1, bool(member & 1)

    def with_reader_lanes(self, number: int, reader: int, match: LaneMatch) -> tuple[int, ReaderLane]:
        """The set `number` with `reader` added, and the lane that the codes of its cells have."""
        old = [*self.readers(number)]
        kept: list[int] = []
        many, sure = LaneMatch.IS_MANY in match, True
        for event, several in old:
            if event != reader and not self._supersedes(reader, event):
                several = several or (len(old) == 1 and LaneMatch.WAS_MANY in match)
                kept.append(2 * event + several)
            elif event == reader or (self._same_warp(reader, event) and not self._known(reader, event)):
                # The new reader replaces that one, so its lanes have to cover that one's lanes.
                was_many = several or (len(old) == 1 and LaneMatch.WAS_MANY in match)
                many = many or was_many or LaneMatch.OTHER in match
                sure = LaneMatch.SAME in match
        if kept:
            found = self._number((*kept, 2 * reader + many))
            return found, ReaderLane.NOW if LaneMatch.SAME in match else ReaderLane.UNSURE
        return self._number(
            (2 * reader,)
        ), ReaderLane.MANY if many else ReaderLane.NOW if sure else ReaderLane.UNSURE


class LaneShadow:
    """The shadow of `cells` cells. The readers of a cell include strong accesses, writes too, that do not
    race with its last writer."""

    def __init__(self, cells: int, sets: LaneSets) -> None:
        self.writer: Numbers = np.zeros(cells, np.int32)
        self.readers: Numbers = np.zeros(cells, np.int32)
        self.sets = sets
        self._kept = False  # whether `keep_unordered` was called: `readers` may then include writes

    def record_reads(self, cells: Cells, event: int, lanes: LaneNumbers) -> list[PriorLaneAccess]:
        """Record that `event` reads the cells. Returns the last writers, NO_ACCESS where there is none."""
        found = _group_by_number(self.writer[cells], cells, lanes)
        if self._kept:
            found += [one for one in self._read_by(cells, lanes) if self.sets.writes(one.number)]
        before = self.readers[cells]
        self.readers[cells] = self._with_reader(before, event, _lanes_by_cell(self.readers, cells, lanes))
        return found

    def _with_reader(self, before: Numbers, event: int, by: LaneNumbers) -> Numbers:
        """The codes of the reader sets `before` with `event` added, which has the lane `by` at each cell."""
        sets = before >> LANE_BITS
        keys = sets << _MATCH_BITS | np.where(sets == 0, 0, _LANE_MATCHES[before & _LANE, by])
        unique, inverse = _distinct(keys)
        after = [
            self.sets.with_reader_lanes(key >> _MATCH_BITS, event, LaneMatch(key & _MATCH)) for key in unique
        ]
        numbers = np.array([number << LANE_BITS for number, _ in after], np.int32)[inverse]
        lanes = np.array([lane for _, lane in after], np.int32)[inverse]
        codes: Numbers = numbers | np.where(lanes == ReaderLane.NOW, by, lanes).astype(np.int32)
        return codes

    def record_writes(self, cells: Cells, event: int, lanes: LaneNumbers) -> list[PriorLaneAccess]:
        """Record that `event` writes the cells. Returns the last writers, and the readers since."""
        found = self.prior_accesses(cells, lanes)
        self.writer[cells] = event << LANE_BITS | _lanes_by_cell(self.writer, cells, lanes)
        self.readers[cells] = 0
        return found

    def prior_accesses(self, cells: Cells, lanes: LaneNumbers) -> list[PriorLaneAccess]:
        """The last writers of the cells and the readers since, for an access by `lanes`."""
        found = [
            prior for prior in _group_by_number(self.writer[cells], cells, lanes) if prior.number != NO_ACCESS
        ]
        return found + self._read_by(cells, lanes)

    def keep_unordered(self, prior: PriorLaneAccess) -> None:
        """Keep the access `prior` among the readers of its cells, which a write has just overwritten. The
        write neither races with it nor is ordered after it, so a later access is checked against both."""
        self._kept = True
        cells, codes = prior.overlap(), prior.before()
        self.readers[cells] = self._with_reader(self.readers[cells], prior.number, codes)

    def _read_by(self, cells: Cells, lanes: LaneNumbers) -> list[PriorLaneAccess]:
        found: list[PriorLaneAccess] = []
        for prior in _group_by_number(self.readers[cells], cells, lanes):
            readers = self.sets.readers(prior.number)
            found += [prior._replace(number=reader, many=many) for reader, many in readers]
        return found


def _lanes_by_cell(column: Numbers, cells: Cells, lanes: LaneNumbers) -> LaneNumbers:
    """`lanes`, with MANY where several of them access one cell. Uses `column` as scratch: overwrites the
    codes of the cells."""
    if isinstance(lanes, int):
        return lanes
    column[cells] = lanes
    others = column[cells] != lanes
    if not others.any():
        return lanes
    column[cells[others]] = MANY
    return column[cells]


def _distinct(keys: Numbers) -> tuple[list[int], npt.NDArray[np.intp]]:
    """The distinct keys, and for each key its index among them."""
    first = int(keys[0])
    if (keys == first).all():
        return [first], np.zeros(len(keys), np.intp)
    unique, inverse = np.unique(keys, return_inverse=True)
    return unique.tolist(), inverse


def _group_by_number(codes: Numbers, cells: Cells, lanes: LaneNumbers) -> list[PriorLaneAccess]:
    """One `PriorLaneAccess` for each distinct number in `codes`."""
    if not codes.size:
        return []
    numbers = codes >> LANE_BITS
    unique, inverse = _distinct(numbers)
    if len(unique) == 1:
        return [PriorLaneAccess(unique[0], cells, codes, lanes)]
    return [
        PriorLaneAccess(number, cells, codes, lanes, inverse, group) for group, number in enumerate(unique)
    ]
