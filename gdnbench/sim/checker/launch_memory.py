# SPDX-License-Identifier: Apache-2.0
"""The shadow of global memory, which all CTAs of a launch share: for each cell the last write and the reads
since, of whichever CTA.

When a CTA accesses a cell, its own race detector gets the earlier accesses of this CTA, and `check_pair` gets
those of other CTAs. An event gets a code at its first access to global memory. A `ShadowCell` has the
codes of the last writer and of the readers since. Equal ones are stored once, so a cell costs 4 bytes, the
number of its `ShadowCell`.

Only the first few reads of a cell by other CTAs are kept. If CTAs cannot synchronise, one is enough, because
a write of any other CTA races with it. Strong accesses need not race with each other, so that a cell
may have several last writers: those join the readers, and a later access is checked against all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.events import Event, EventLog
from gdnbench.sim.checker.paged_cells import PAGE, PagedCells
from gdnbench.sim.checker.shadow import NO_ACCESS, Cells, Numbers, PriorAccess

# How many reads of a cell by other CTAs are kept, if some may be ordered before a later write and others not.
READERS = 16

# Unused codes and states are dropped only when there are more than this in all.
COMPACT_THRESHOLD = 1 << 16


class CtaAccess(NamedTuple):
    """An access, and the index of its CTA; negative for a CTA of an earlier launch, `earlier_launches.py`."""

    cta: int
    event: Event


class ShadowCell(NamedTuple):
    """The shadow of one cell: the codes of the last writer (NO_ACCESS if none) and of the readers since."""

    writer: int
    readers: tuple[int, ...] = ()


UNTOUCHED = ShadowCell(NO_ACCESS)

PairCheck = Callable[[CtaAccess, CtaAccess, int], None]
"""Called with an access, a later one of another CTA, and a cell that both access."""


class CtaOrder(Protocol):
    """What the shadow asks of a CTA's race detector."""

    @property
    def events(self) -> EventLog: ...

    def supersedes(self, new: int, old: int) -> bool:
        """Whether the read `old` need not be kept beside the read `new`, both of this CTA: an access ordered
        after `new` is then ordered after `old`."""
        ...

    def ordered_after_remote(self, new: Event, old: CtaAccess) -> bool:
        """The same, where `old` is an access of another CTA."""
        ...


class CtaShadow:
    """The shadow of global memory as one CTA's race detector uses it: it names its own accesses by its own
    event numbers."""

    def __init__(self, memory: GlobalShadow, cta: int, detector: CtaOrder, check_pair: PairCheck) -> None:
        self.codes: dict[int, int] = {}
        self.detector = detector
        self._memory = memory
        self._cta = cta
        self._check_pair = check_pair

    def record_reads(self, cells: Cells, events: Numbers) -> list[PriorAccess]:
        """As `ShadowMemory.record_reads`, without entries for cells that nothing wrote."""
        return self._own(self._memory.record_reads(cells, self._coded(events)))

    def record_writes(self, cells: Cells, events: Numbers) -> list[PriorAccess]:
        """As `ShadowMemory.record_writes`."""
        return self._own(self._memory.record_writes(cells, self._coded(events)))

    def _coded(self, events: Numbers) -> Numbers:
        first = events[0]
        if (events == first).all():
            return np.full(len(events), self._code(int(first)), np.int32)
        unique, inverse = np.unique(events, return_inverse=True)
        return np.array([self._code(number) for number in unique.tolist()], np.int32)[inverse]

    def _code(self, number: int) -> int:
        code = self.codes.get(number)
        if code is None:
            code = self.codes[number] = len(self._memory.accesses)
            self._memory.accesses.append(CtaAccess(self._cta, self.detector.events[number]))
        return code

    def _own(self, found: list[PriorAccess]) -> list[PriorAccess]:
        """The accesses of this CTA. Accesses of other CTAs go to `check_pair`."""
        own: list[PriorAccess] = []
        for code, cell, now in found:
            before, comes = self._memory[code], self._memory[now]
            if before.cta == self._cta:
                own.append(PriorAccess(before.event.number, cell, comes.event.number))
            else:
                self._check_pair(before, comes, cell)
        return own


@dataclass(frozen=True, slots=True)
class ProcessShadow:
    """The shadow as one process left it, to be pickled. `packed` has, for each of `pages`, the compressed
    numbers of its cells; a number is an index into `states`, whose codes are indices into `accesses`."""

    accesses: Sequence[CtaAccess | None]
    states: Sequence[ShadowCell]
    pages: Sequence[int]
    packed: Sequence[bytes]


class GlobalShadow:
    """The shadow of global memory. `readers` is how many reads of a cell by other CTAs are kept; `pages` is
    how many pages of the shadow can be touched, 0 if that is not known."""

    def __init__(self, pages: int, readers: int) -> None:
        self.accesses: list[CtaAccess | None] = [None]  # by code; the first is nobody's
        self.cells = PagedCells(pages)
        self._readers = readers
        self._states = [UNTOUCHED]
        self._numbers = {UNTOUCHED: 0}
        self._running: dict[int, CtaShadow] = {}
        self._compact_at = COMPACT_THRESHOLD

    def __getitem__(self, code: int) -> CtaAccess:
        access = self.accesses[code]
        assert access is not None
        return access

    def put_earlier(
        self, earlier: GlobalShadow, bytes_of: tuple[int, int], ctas: int, *, older: bool
    ) -> None:
        """Begin with the shadow that the launch in front left, of `ctas` CTAs. `bytes_of` a cell there and
        here. A CTA with the number n there has -1 - n here. Those with negative numbers there, of launches
        before it, follow these, or are left out without `older`."""
        assert len(self.accesses) == 1
        self.accesses += [
            one and one._replace(cta=-1 - one.cta if one.cta >= 0 else one.cta - ctas)
            for one in earlier.accesses[1:]
        ]

        def kept(code: int) -> bool:
            return code != NO_ACCESS and (older or earlier[code].cta >= 0)

        table = np.array(
            [
                self._number(
                    ShadowCell(
                        state.writer if kept(state.writer) else NO_ACCESS,
                        tuple(filter(kept, state.readers)),
                    )
                )
                for state in earlier._states
            ],
            np.int32,
        )
        for page, numbers in zip(earlier.cells.owners, earlier.cells.touched(), strict=True):
            for at, part in _resized(page * PAGE, table[numbers], *bytes_of):
                self._put(at, part)

    def _put(self, first: int, numbers: Numbers) -> None:
        """Join states into the cells from `first` on, where others may be: of two writers one is kept."""
        places = self.cells.places(np.arange(first, first + len(numbers), dtype=np.int64))
        pairs = self.cells.numbers[places].astype(np.int64) << 32 | numbers
        unique, inverse = np.unique(pairs, return_inverse=True)
        joined = [
            self._number(_joined(self._states[p >> 32], self._states[p & 0xFFFF_FFFF]))
            for p in unique.tolist()
        ]
        self.cells.numbers[places] = np.array(joined, np.int32)[inverse]

    def begin_cta(self, cta: int, detector: CtaOrder, check_pair: PairCheck) -> CtaShadow:
        """A CTA begins: its view of the shadow, for use until `end_cta`."""
        memory = self._running[cta] = CtaShadow(self, cta, detector, check_pair)
        return memory

    def end_cta(self, cta: int) -> None:
        """A CTA has ended. Drops, from time to time, codes and states that no cell refers to."""
        del self._running[cta]
        if len(self.accesses) + len(self._states) > self._compact_at:
            self._compact()
            self._compact_at = max(COMPACT_THRESHOLD, 2 * (len(self.accesses) + len(self._states)))

    def record_reads(self, cells: Cells, codes: Numbers) -> list[PriorAccess]:
        """Each of `codes`, one a cell, reads its cell. Returns the earlier writers."""
        found: list[PriorAccess] = []
        for state, code, cell in self._change(cells, codes, self._after_read):
            writers = [state.writer] if state.writer != NO_ACCESS else []
            found += [PriorAccess(writer, cell, code) for writer in writers + self._writing(state.readers)]
        return found

    def record_writes(self, cells: Cells, codes: Numbers) -> list[PriorAccess]:
        """Each of `codes` writes its cell. Returns the earlier writers and readers."""
        found: list[PriorAccess] = []
        for state, code, cell in self._change(cells, codes, self._after_write):
            writers = (state.writer,) if state.writer != NO_ACCESS else ()
            found += [PriorAccess(before, cell, code) for before in (*writers, *state.readers)]
        return found

    def _change(
        self, cells: Cells, codes: Numbers, after: Callable[[ShadowCell, int], ShadowCell]
    ) -> list[tuple[ShadowCell, int, int]]:
        """Set each cell to the state `after` its old state and its code. Returns the distinct pairs of old
        state and code, each with one of its cells."""
        places = self.cells.places(cells)
        column = self.cells.numbers
        pairs = column[places].astype(np.int64) << 32 | codes
        if (pairs == pairs[0]).all():
            state, code = self._states[int(pairs[0]) >> 32], int(codes[0])
            column[places] = self._number(after(state, code))
            return [(state, code, int(cells[0]))]
        # Neighbours most often have the same.
        starts = np.concatenate([[0], np.flatnonzero(pairs[1:] != pairs[:-1]) + 1])
        unique, first, inverse = np.unique(pairs[starts], return_index=True, return_inverse=True)
        found = [
            (self._states[pair >> 32], pair & 0xFFFF_FFFF, cell)
            for pair, cell in zip(unique.tolist(), cells[starts[first]].tolist(), strict=True)
        ]
        numbers = np.array([self._number(after(state, code)) for state, code, _ in found], np.int32)
        column[places] = np.repeat(numbers[inverse], np.diff(starts, append=len(pairs)))
        return found

    def _after_read(self, state: ShadowCell, code: int) -> ShadowCell:
        return ShadowCell(state.writer, (*self._kept_beside(state.readers, code), code))

    def _after_write(self, state: ShadowCell, code: int) -> ShadowCell:
        if not self[code].event.strong:
            return ShadowCell(code)
        writers = (state.writer,) if state.writer != NO_ACCESS else ()
        strong = (old for old in (*state.readers, *writers) if self[old].event.strong)
        return ShadowCell(code, tuple(self._kept_beside(strong, code)))

    def _writing(self, codes: Iterable[int]) -> list[int]:
        """Those of the codes whose access writes."""
        return [code for code in codes if self[code].event.access.writes]

    def _kept_beside(self, members: Iterable[int], reader: int) -> list[int]:
        """Those of `members` that the shadow has to keep beside `reader`."""
        kept: list[int] = []
        foreign = 0
        for old in members:
            if old == reader or self._supersedes(reader, old):
                continue
            if 0 <= self[old].cta != self[reader].cta:
                foreign += 1
                if foreign > self._readers:
                    continue
            kept.append(old)
        return kept

    def _supersedes(self, new: int, old: int) -> bool:
        later, earlier = self[new], self[old]
        detector = self._running[later.cta].detector
        if later.cta == earlier.cta:
            return detector.supersedes(later.event.number, earlier.event.number)
        return detector.ordered_after_remote(later.event, earlier)

    def _number(self, state: ShadowCell) -> int:
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self._states)
            self._states.append(state)
        return found

    def _compact(self) -> None:
        """Renumber the codes and states that some cell refers to, and forget the others."""
        used = np.zeros(len(self._states), np.bool_)
        used[0] = True
        for numbers in self.cells.touched():
            used[numbers] = True
        states = [state for state, has in zip(self._states, used.tolist(), strict=True) if has]
        coded = np.zeros(len(self.accesses), np.bool_)
        coded[[NO_ACCESS, *{code for state in states for code in (state.writer, *state.readers)}]] = True
        table, codes = _renumbered(used), _renumbered(coded).tolist()
        for numbers in self.cells.touched():
            numbers[:] = table[numbers]
        self._states = [_recoded(state, codes.__getitem__) for state in states]
        self._numbers = {state: number for number, state in enumerate(self._states)}
        for memory in self._running.values():
            memory.codes = {number: codes[code] for number, code in memory.codes.items() if coded[code]}
        self.accesses = [access for access, has in zip(self.accesses, coded.tolist(), strict=True) if has]

    def process_shadow(self) -> ProcessShadow:
        """The shadow of this process, to be sent to another."""
        self._compact()
        packed = [zlib.compress(numbers.data, 1) for numbers in self.cells.touched()]
        return ProcessShadow(self.accesses, self._states, self.cells.owners, packed)

    def join_process(self, part: ProcessShadow, check_pair: PairCheck) -> None:
        """Join the shadow of another process. Nothing orders its CTAs with those here: every pair of accesses
        that conflict goes to `check_pair`, once, with the first cell that both access on the first page."""
        checked: set[tuple[int, int]] = set()

        def check_once(before: int, now: int, cell: int) -> None:
            if (before, now) not in checked:
                checked.add((before, now))
                check_pair(self[before], self[now], cell)

        ahead = len(self.accesses) - 1
        self.accesses += part.accesses[1:]
        states = [_recoded(state, lambda code: code + ahead if code else NO_ACCESS) for state in part.states]
        for page, packed in zip(part.pages, part.packed, strict=True):
            self._join_page(page, np.frombuffer(zlib.decompress(packed), np.int32), states, check_once)

    def _join_page(
        self,
        page: int,
        theirs: Numbers,
        states: Sequence[ShadowCell],
        check_codes: Callable[[int, int, int], None],
    ) -> None:
        mine = self.cells.page(page)
        pairs = mine.astype(np.int64) << 32 | theirs
        unique, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        joined: list[int] = []
        for pair, cell in zip(unique.tolist(), first.tolist(), strict=True):
            one, other = self._states[pair >> 32], states[pair & 0xFFFF_FFFF]
            for before in filter(None, (one.writer, *one.readers)):
                for now in filter(None, (other.writer, *other.readers)):
                    if (before == one.writer or now == other.writer) and self[before].cta >= 0 <= self[
                        now
                    ].cta:
                        check_codes(before, now, page * PAGE + cell)
            joined.append(self._number(ShadowCell(one.writer or other.writer, one.readers or other.readers)))
        mine[:] = np.array(joined, np.int32)[inverse]


def _resized(first: int, numbers: Numbers, theirs: int, mine: int) -> Iterator[tuple[int, Numbers]]:
    """States of consecutive cells of `theirs` bytes for cells of `mine` bytes: pairs of a first cell and the
    states from there on. Sizes are powers of two."""
    if theirs >= mine:
        yield first * (theirs // mine), np.repeat(numbers, theirs // mine)
        return
    several = mine // theirs
    for part in range(several):
        yield first // several, numbers[part::several]


def _joined(one: ShadowCell, other: ShadowCell) -> ShadowCell:
    """The state of a cell with the accesses of two. Of two writers one joins the readers: both are checked
    against later accesses that write, and one of them against reads."""
    if NO_ACCESS in (one.writer, other.writer) or one.writer == other.writer:
        return ShadowCell(one.writer or other.writer, tuple(dict.fromkeys((*one.readers, *other.readers))))
    readers = dict.fromkeys((*one.readers, *other.readers, other.writer))
    return ShadowCell(one.writer, tuple(readers))


def _recoded(state: ShadowCell, code: Callable[[int], int]) -> ShadowCell:
    """The same state with other codes."""
    return ShadowCell(code(state.writer), tuple(map(code, state.readers)))


def _renumbered(used: npt.NDArray[np.bool_]) -> Numbers:
    """New consecutive numbers for the used ones, in their order."""
    found: Numbers = np.cumsum(used, dtype=np.int32) - np.int32(1)
    return found
