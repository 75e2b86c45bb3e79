"""Global memory of a launch: for each cell, which access of which CTA wrote it last, and which have read it
since.

It serves all CTAs: the accesses of one are judged by its follower, which is given those before its own, and
those of two by `judge`. An access gets a code when it first touches global memory. A cell holds the number of
a state, a writer and its readers by their codes, of which each is kept once: 4 bytes a cell.

Of the CTAs that have only read a cell, the first few are kept: where CTAs cannot talk one is enough, since a
write of any other races with it. Strong accesses need not race with each other, so that many may be the last
to write: they join the readers, and who comes later is held against all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.events import Event, Events
from gdnbench.sim.checker.paged_cells import PAGE, PagedCells
from gdnbench.sim.checker.shadow import NOBODY, Cells, Numbers, Prior

# CTAs that read a cell and are remembered, where some may be ordered before a later write and others not.
READERS = 16

# No fewer codes and states are looked through for such as no cell has any more.
LITTER = 1 << 16


class Touch(NamedTuple):
    """An access of a CTA."""

    cta: int
    event: Event


class State(NamedTuple):
    """Of a cell, by codes: who wrote it last, NOBODY if none, and who has read it since."""

    writer: int
    readers: tuple[int, ...] = ()


UNTOUCHED = State(NOBODY)

Judge = Callable[[Touch, Touch, int], None]
"""Told of an access, of one of another CTA that comes later, and of a cell that both touch."""


class Reader(Protocol):
    """What the launch asks of the follower of a CTA."""

    @property
    def events(self) -> Events: ...

    def supersedes(self, new: int, old: int) -> bool:
        """Whoever is ordered after the reader `new` of this CTA is ordered after the reader `old`."""
        ...

    def knows(self, new: Event, old: Touch) -> bool:
        """The same, where `old` is of another CTA."""
        ...


class CtaMemory:
    """Global memory as the follower of one CTA sees it: its own accesses, by its own numbers."""

    def __init__(self, memory: LaunchMemory, cta: int, follower: Reader, judge: Judge) -> None:
        self.codes: dict[int, int] = {}
        self.follower = follower
        self._memory = memory
        self._cta = cta
        self._judge = judge

    def reads(self, cells: Cells, events: Numbers) -> list[Prior]:
        """See `Shadow`; what nobody wrote is not told."""
        return self._own(self._memory.reads(cells, self._coded(events)))

    def writes(self, cells: Cells, events: Numbers) -> list[Prior]:
        """See `Shadow`."""
        return self._own(self._memory.writes(cells, self._coded(events)))

    def _coded(self, events: Numbers) -> Numbers:
        first = events[0]
        if (events == first).all():
            return np.full(len(events), self._code(int(first)), np.int32)
        unique, inverse = np.unique(events, return_inverse=True)
        return np.array([self._code(number) for number in unique.tolist()], np.int32)[inverse]

    def _code(self, number: int) -> int:
        code = self.codes.get(number)
        if code is None:
            code = self.codes[number] = len(self._memory.touches)
            self._memory.touches.append(Touch(self._cta, self.follower.events[number]))
        return code

    def _own(self, found: list[Prior]) -> list[Prior]:
        """Those of this CTA; the others are judged."""
        own: list[Prior] = []
        for code, cell, now in found:
            before, comes = self._memory[code], self._memory[now]
            if before.cta == self._cta:
                own.append(Prior(before.event.number, cell, comes.event.number))
            else:
                self._judge(before, comes, cell)
        return own


@dataclass(frozen=True, slots=True)
class Part:
    """What one process's CTAs did, to be pickled: `packed` has the states of the cells of each of
    `pages`."""

    touches: Sequence[Touch | None]
    states: Sequence[State]
    pages: Sequence[int]
    packed: Sequence[bytes]


class LaunchMemory:
    """See above; `readers` CTAs that read a cell are kept, `pages` is how many can be touched."""

    def __init__(self, pages: int, readers: int) -> None:
        self.touches: list[Touch | None] = [None]  # by code; the first is nobody's
        self.cells = PagedCells(pages)
        self._readers = readers
        self._states = [UNTOUCHED]
        self._numbers = {UNTOUCHED: 0}
        self._running: dict[int, CtaMemory] = {}
        self._litter = LITTER

    def __getitem__(self, code: int) -> Touch:
        touch = self.touches[code]
        assert touch is not None
        return touch

    def begin(self, cta: int, follower: Reader, judge: Judge) -> CtaMemory:
        """That of a CTA, until it ends."""
        memory = self._running[cta] = CtaMemory(self, cta, follower, judge)
        return memory

    def ended(self, cta: int) -> None:
        """A CTA has ended. What no cell has any more is dropped, once that may be much."""
        del self._running[cta]
        if len(self.touches) + len(self._states) > self._litter:
            self._drop()
            self._litter = max(LITTER, 2 * (len(self.touches) + len(self._states)))

    def reads(self, cells: Cells, codes: Numbers) -> list[Prior]:
        """Each of `codes`, one a cell, reads its cell: who wrote it before."""
        found: list[Prior] = []
        for state, code, cell in self._change(cells, codes, self._read):
            writers = [state.writer] if state.writer != NOBODY else []
            found += [Prior(writer, cell, code) for writer in writers + self._updates(state.readers)]
        return found

    def writes(self, cells: Cells, codes: Numbers) -> list[Prior]:
        """Each of `codes` writes its cell: who wrote and read it before."""
        found: list[Prior] = []
        for state, code, cell in self._change(cells, codes, self._written):
            writers = (state.writer,) if state.writer != NOBODY else ()
            found += [Prior(before, cell, code) for before in (*writers, *state.readers)]
        return found

    def _change(
        self, cells: Cells, codes: Numbers, after: Callable[[State, int], State]
    ) -> list[tuple[State, int, int]]:
        """Give each cell the state `after` its own and the code: these pairs, each with one of its cells."""
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

    def _read(self, state: State, code: int) -> State:
        return State(state.writer, (*self._beside(state.readers, code), code))

    def _written(self, state: State, code: int) -> State:
        if not self[code].event.strong:
            return State(code)
        writers = (state.writer,) if state.writer != NOBODY else ()
        strong = (old for old in (*state.readers, *writers) if self[old].event.strong)
        return State(code, tuple(self._beside(strong, code)))

    def _updates(self, codes: Iterable[int]) -> list[int]:
        """Those that write."""
        return [code for code in codes if self[code].event.access.writes]

    def _beside(self, members: Iterable[int], reader: int) -> list[int]:
        """Those of `members` that have to be remembered beside `reader`."""
        kept: list[int] = []
        foreign = 0
        for old in members:
            if old == reader or self._supersedes(reader, old):
                continue
            if self[old].cta != self[reader].cta:
                foreign += 1
                if foreign > self._readers:
                    continue
            kept.append(old)
        return kept

    def _supersedes(self, new: int, old: int) -> bool:
        later, earlier = self[new], self[old]
        follower = self._running[later.cta].follower
        if later.cta == earlier.cta:
            return follower.supersedes(later.event.number, earlier.event.number)
        return follower.knows(later.event, earlier)

    def _number(self, state: State) -> int:
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self._states)
            self._states.append(state)
        return found

    def _drop(self) -> None:
        """Give those codes and states that some cell still has new numbers, and forget the others."""
        used = np.zeros(len(self._states), np.bool_)
        used[0] = True
        for numbers in self.cells.touched():
            used[numbers] = True
        states = [state for state, has in zip(self._states, used.tolist(), strict=True) if has]
        coded = np.zeros(len(self.touches), np.bool_)
        coded[[NOBODY, *{code for state in states for code in (state.writer, *state.readers)}]] = True
        table, codes = _renumbered(used), _renumbered(coded).tolist()
        for numbers in self.cells.touched():
            numbers[:] = table[numbers]
        self._states = [_with(state, codes.__getitem__) for state in states]
        self._numbers = {state: number for number, state in enumerate(self._states)}
        for memory in self._running.values():
            memory.codes = {number: codes[code] for number, code in memory.codes.items() if coded[code]}
        self.touches = [touch for touch, has in zip(self.touches, coded.tolist(), strict=True) if has]

    def part(self) -> Part:
        """What was done in this process."""
        self._drop()
        packed = [zlib.compress(numbers.data, 1) for numbers in self.cells.touched()]
        return Part(self.touches, self._states, self.cells.owners, packed)

    def join(self, part: Part, judge: Judge) -> None:
        """What CTAs did that ran in another process and that nothing orders with those here."""
        ahead = len(self.touches) - 1
        self.touches += part.touches[1:]
        states = [_with(state, lambda code: code + ahead if code else NOBODY) for state in part.states]
        for page, packed in zip(part.pages, part.packed, strict=True):
            self._join_page(page, np.frombuffer(zlib.decompress(packed), np.int32), states, judge)

    def _join_page(self, page: int, theirs: Numbers, states: Sequence[State], judge: Judge) -> None:
        mine = self.cells.page(page)
        pairs = mine.astype(np.int64) << 32 | theirs
        unique, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        joined: list[int] = []
        for pair, cell in zip(unique.tolist(), first.tolist(), strict=True):
            one, other = self._states[pair >> 32], states[pair & 0xFFFF_FFFF]
            for before in filter(None, (one.writer, *one.readers)):
                for now in filter(None, (other.writer, *other.readers)):
                    if before == one.writer or now == other.writer:
                        judge(self[before], self[now], page * PAGE + cell)
            joined.append(self._number(State(one.writer or other.writer, one.readers or other.readers)))
        mine[:] = np.array(joined, np.int32)[inverse]


def _with(state: State, code: Callable[[int], int]) -> State:
    """The same with other codes."""
    return State(code(state.writer), tuple(map(code, state.readers)))


def _renumbered(used: npt.NDArray[np.bool_]) -> Numbers:
    """New numbers of those that are used, in their order."""
    found: Numbers = np.cumsum(used, dtype=np.int32) - np.int32(1)
    return found
