"""Global memory of a launch: for each cell, which access of which CTA wrote it last, and which have read it
since.

One shadow serves all CTAs, of 8 bytes a cell: the accesses of one CTA are judged by its follower, which is
given those before its own, and those of two by `judge`. Cells hold codes, by which the launch knows the
accesses of all CTAs; an access gets its code when it first touches global memory. Of the CTAs that have only
read a cell, the first few are kept: where CTAs cannot talk one is enough, since a write of any other races
with it. Strong accesses of a wide scope do not race with each other, so that many may be the last: those that
write join the readers of a cell, and who comes later is held against all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.ctas import strong
from gdnbench.sim.checker.events import Event, Events
from gdnbench.sim.checker.paged_shadow import PAGE, PagedShadow
from gdnbench.sim.checker.shadow import NOBODY, Cells, Numbers, Prior, ReadSets

# CTAs that read a cell and are remembered, where some may be ordered before a later write and others not.
READERS = 16

# No fewer codes and sets are looked through for such as no cell has any more.
LITTER = 1 << 16


class Touch(NamedTuple):
    """An access of a CTA."""

    cta: int
    event: Event


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


class _Readers(ReadSets):
    """Sets of readers, by their codes."""

    def __init__(self, memory: LaunchMemory) -> None:
        super().__init__(memory.supersedes)
        self._memory = memory

    def _kept(self, members: tuple[int, ...], reader: int) -> Iterable[int]:
        return self.beside(members, reader)

    def beside(self, members: Iterable[int], reader: int) -> list[int]:
        """Those of `members` that have to be remembered beside `reader`."""
        kept = list(super()._kept(tuple(members), reader))
        memory = self._memory
        foreign = [code for code in kept if memory[code].cta != memory[reader].cta]
        extra = set(foreign[memory.readers :])
        return [code for code in kept if code not in extra] if extra else kept

    def replace(self, sets: Iterable[tuple[int, ...]]) -> None:
        """Other sets, numbered as they come; the first is empty."""
        self.sets = list(sets)
        self._numbers = {members: number for number, members in enumerate(self.sets)}

    def number(self, members: tuple[int, ...]) -> int:
        """That of a set, which may be a new one."""
        found = self._numbers.setdefault(members, len(self.sets))
        if found == len(self.sets):
            self.sets.append(members)
        return found


class CtaMemory:
    """Global memory as the follower of one CTA sees it: its own accesses, by its own numbers."""

    def __init__(self, memory: LaunchMemory, cta: int, follower: Reader, judge: Judge) -> None:
        self.codes: dict[int, int] = {}
        self.follower = follower
        self._memory = memory
        self._cta = cta
        self._judge = judge

    def reads(self, cells: Cells, events: Numbers) -> list[Prior]:
        """See `Shadow`."""
        codes = self._coded(events)
        found = self._memory.earlier_updates(cells, codes)
        return self._own(found + self._memory.shadow.reads(cells, codes))

    def writes(self, cells: Cells, events: Numbers) -> list[Prior]:
        """See `Shadow`."""
        codes = self._coded(events)
        if not strong(self.follower.events[int(events[0])]):
            return self._own(self._memory.shadow.writes(cells, codes))
        return self._own(self._memory.updates(cells, codes))

    def _coded(self, events: Numbers) -> Numbers:
        if (events == events[0]).all():
            return np.full(len(events), self._code(int(events[0])), np.int32)
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
            comes = self._memory[now]
            if code == NOBODY:
                own.append(Prior(NOBODY, cell, comes.event.number))
                continue
            before = self._memory[code]
            if before.cta == self._cta:
                own.append(Prior(before.event.number, cell, comes.event.number))
            else:
                self._judge(before, comes, cell)
        return own


@dataclass(frozen=True, slots=True)
class Part:
    """What one process's CTAs did, to be pickled: `writers` and `readers` are those of all cells of
    `pages`."""

    touches: Sequence[Touch | None]
    sets: Sequence[tuple[int, ...]]
    pages: Sequence[int]
    writers: bytes
    readers: bytes


class LaunchMemory:
    """See above; `readers` CTAs that read a cell are kept, `pages` is how many can be touched."""

    def __init__(self, pages: int, readers: int) -> None:
        self.readers = readers
        self.touches: list[Touch | None] = [None]  # by code; the first is nobody's
        self.sets = _Readers(self)
        self.shadow = PagedShadow(self.sets, pages)
        self._running: dict[int, CtaMemory] = {}
        self._litter = LITTER
        self._piled = False  # some strong writes are kept with readers

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
        if len(self.touches) + len(self.sets.sets) > self._litter:
            self._drop()
            self._litter = max(LITTER, 2 * (len(self.touches) + len(self.sets.sets)))

    def supersedes(self, new: int, old: int) -> bool:
        """See `ReadSets`, of codes."""
        later, earlier = self[new], self[old]
        follower = self._running[later.cta].follower
        if later.cta == earlier.cta:
            return follower.supersedes(later.event.number, earlier.event.number)
        return follower.knows(later.event, earlier)

    def updates(self, cells: Cells, codes: Numbers) -> list[Prior]:
        """Strong writes, of one instruction: those before them that are strong stay."""
        writers, readers = self.shadow.columns(cells)
        priors = [*self.shadow.writes(cells, codes)]
        pairs, inverse = np.unique(np.stack([writers, readers]), axis=1, return_inverse=True)
        code = int(codes[0])
        sets: list[int] = []
        for writer, number in pairs.T.tolist():
            before = [*self.sets.sets[number], *([writer] if writer != NOBODY else [])]
            sets.append(self.sets.number(tuple(self.sets.beside(filter(self._updated, before), code))))
        self._piled |= any(sets)
        if self._piled:
            self.shadow.updated(cells, np.array(sets, np.int32)[inverse])
        return priors

    def earlier_updates(self, cells: Cells, codes: Numbers) -> list[Prior]:
        """Strong writes before the last one, of which a read has to know too."""
        if not self._piled:
            return []
        readers = self.shadow.columns(cells)[1]
        unique, first = np.unique(readers, return_index=True)
        return [
            Prior(code, int(cells[index]), int(codes[index]))
            for number, index in zip(unique.tolist(), first.tolist(), strict=True)
            for code in filter(self._updated, self.sets.sets[number])
        ]

    def _updated(self, code: int) -> bool:
        event = self[code].event
        return event.access.writes and strong(event)

    def _drop(self) -> None:
        """Give those codes and sets that some cell still has new numbers, and forget the others."""
        writers = np.zeros(len(self.touches), np.bool_)
        sets = np.zeros(len(self.sets.sets), np.bool_)
        writers[NOBODY] = sets[NOBODY] = True
        for _, writer, readers in self.shadow.touched():
            writers[writer] = True
            sets[readers] = True
        kept = [members for members, used in zip(self.sets.sets, sets.tolist(), strict=True) if used]
        writers[list({code for members in kept for code in members})] = True
        codes, numbers = _renumbered(writers), _renumbered(sets)
        table = codes.tolist()
        for _, writer, readers in self.shadow.touched():
            writer[:] = codes[writer]
            readers[:] = numbers[readers]
        self.sets.replace(tuple(table[code] for code in members) for members in kept)
        for memory in self._running.values():
            memory.codes = {number: table[code] for number, code in memory.codes.items() if writers[code]}
        self.touches = [touch for touch, used in zip(self.touches, writers.tolist(), strict=True) if used]

    def part(self) -> Part:
        """What was done in this process."""
        self._drop()
        pages = list(self.shadow.touched())
        # Neighbours most often have the same code: packed they are a few bytes a page.
        writers, readers = (zlib.compressobj(1) for _ in range(2))
        packed = [(writers.compress(writer.data), readers.compress(read.data)) for _, writer, read in pages]
        return Part(
            self.touches,
            self.sets.sets,
            self.shadow.owners,
            b"".join([one for one, _ in packed] + [writers.flush()]),
            b"".join([other for _, other in packed] + [readers.flush()]),
        )

    def join(self, part: Part, judge: Judge) -> None:
        """What CTAs did that ran in another process and that nothing orders with those here."""
        ahead = len(self.touches) - 1
        self.touches += part.touches[1:]
        numbers = np.array(
            [self.sets.number(tuple(code + ahead for code in members)) for members in part.sets], np.int32
        )
        writers, readers = zlib.decompressobj(), zlib.decompressobj()
        packed = part.writers, part.readers
        for page in part.pages:
            writer, packed_writers = _unpacked(writers, packed[0])
            read, packed_readers = _unpacked(readers, packed[1])
            packed = packed_writers, packed_readers
            self._join_page(page, np.where(writer, writer + ahead, NOBODY), numbers[read], judge)

    def _join_page(self, page: int, writer: Numbers, readers: Numbers, judge: Judge) -> None:
        mine, read = self.shadow.page(page)
        for one, other in ((mine, writer), (mine, self._first(readers)), (self._first(read), writer)):
            met = np.flatnonzero((one != NOBODY) & (other != NOBODY))
            pairs, at = np.unique(np.stack([one[met], other[met]]), axis=1, return_index=True)
            for (before, now), index in zip(pairs.T.tolist(), met[at].tolist(), strict=True):
                judge(self[before], self[now], page * PAGE + index)
        np.copyto(mine, writer, where=mine == NOBODY, casting="same_kind")
        np.copyto(read, readers, where=read == NOBODY)

    def _first(self, sets: Numbers) -> Numbers:
        """By cell, the first reader."""
        unique, inverse = np.unique(sets, return_inverse=True)
        members = [self.sets.sets[number] for number in unique.tolist()]
        return np.array([codes[0] if codes else NOBODY for codes in members], np.int32)[inverse]


def _renumbered(used: npt.NDArray[np.bool_]) -> Numbers:
    """New numbers of those that are used, in their order."""
    found: Numbers = np.cumsum(used, dtype=np.int32) - np.int32(1)
    return found


def _unpacked(stream: zlib._Decompress, data: bytes) -> tuple[Numbers, bytes]:
    """The codes of a page, and what is left of the data."""
    size = PAGE * np.dtype(np.int32).itemsize
    out = b""
    while len(out) < size:
        out += stream.decompress(data, size - len(out))
        data = stream.unconsumed_tail
    return np.frombuffer(out, np.int32), data
