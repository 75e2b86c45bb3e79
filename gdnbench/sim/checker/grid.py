"""Checks a launch: each of its CTAs, and what they do to each other's global memory.

CTAs of a kernel that has no atomics and no ordered accesses to global memory cannot wait for one another, so
that two of them that touch the same bytes, one of them writing, race whatever the order in which they ran. In
a kernel that has some, the checker does not follow what passes between CTAs, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.findings import Findings, Found
from gdnbench.sim.checker.follower import Follower
from gdnbench.sim.checker.order import Cause, Unordered, Verdict
from gdnbench.sim.checker.plain import Forms
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.grid import communicates
from gdnbench.sim.profile.roles import issued_as, role
from gdnbench.sim.ptx.ir import Kernel

Cells = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int64]

_BETWEEN = Unordered(
    Cause.CTAS, Verdict.ERROR, "bytes of its own for each CTA: nothing orders the CTAs of this kernel"
)


@dataclass(slots=True)
class _Bytes:
    """Global bytes in ascending order, each with a code: CTA << 32 | number of an event in
    `Between.events`."""

    cells: list[Cells] = field(default_factory=list)
    codes: list[Codes] = field(default_factory=list)

    def add(self, cells: Cells, codes: Codes) -> None:
        if cells.size:
            self.cells.append(cells)
            self.codes.append(codes)

    def sorted(self) -> tuple[Cells, Codes]:
        if not self.cells:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        cells, codes = np.concatenate(self.cells), np.concatenate(self.codes)
        order = np.argsort(cells, kind="stable")
        return cells[order], codes[order]


@dataclass(slots=True)
class Between:
    """What CTAs wrote and read in global memory, kept until all have ended."""

    size: int
    events: list[Event] = field(default_factory=list)
    _written: _Bytes = field(default_factory=_Bytes)
    _read: _Bytes = field(default_factory=_Bytes)

    def add(self, follower: Follower) -> None:
        """A CTA has ended."""
        cells, writers, sets = follower.memory.all_touched()
        cta = follower.cta.index
        self._keep(self._written, follower, cta, cells[writers != 0], writers[writers != 0])
        readers = np.array([members[0] if members else 0 for members in follower.memory.sets.sets], np.int64)
        first = readers[sets]
        self._keep(self._read, follower, cta, cells[first != 0], first[first != 0])

    def _keep(self, kept: _Bytes, follower: Follower, cta: int, cells: Cells, numbers: Codes) -> None:
        codes = np.zeros(numbers.max() + 1 if numbers.size else 0, np.int64)
        for number in np.unique(numbers).tolist():
            codes[number] = cta << 32 | len(self.events)
            self.events.append(follower.events[number])
        kept.add(cells, codes[numbers])

    def join(self, other: Between) -> None:
        """What other CTAs wrote and read."""
        ahead = len(self.events)
        self.events += other.events
        for mine, more in ((self._written, other._written), (self._read, other._read)):
            for cells, codes in zip(more.cells, more.codes, strict=True):
                mine.add(cells, codes + ahead)

    def judge(self, findings: Findings) -> None:
        """Bytes that one CTA wrote and another touched."""
        cells, codes = self._written.sorted()
        if not cells.size:
            return
        twice = np.flatnonzero((cells[1:] == cells[:-1]) & (codes[1:] >> 32 != codes[:-1] >> 32))
        self._pairs(findings, cells[twice], codes[twice], codes[twice + 1])
        read, readers = self._read.sorted()
        at = np.searchsorted(cells, read)
        at[at == cells.size] = 0
        met = np.flatnonzero((cells[at] == read) & (codes[at] >> 32 != readers >> 32))
        self._pairs(findings, read[met], codes[at[met]], readers[met])

    def _pairs(self, findings: Findings, cells: Cells, first: Codes, second: Codes) -> None:
        seen: set[tuple[int, int]] = set()
        for cell, one, other in zip(cells.tolist(), first.tolist(), second.tolist(), strict=True):
            if (one, other) not in seen:
                seen.add((one, other))
                before, now = (self.events[code & 0xFFFF_FFFF] for code in (one, other))
                findings.pair(_BETWEEN, before, now, "global", cell * self.size, (one >> 32, other >> 32))


def _roles(follower: Follower) -> tuple[str, ...]:
    """By warp; what names a role touches memory, so that the events have it."""
    issued = {(event.warp, event.ins.pc): event.ins for event in follower.events.all if event is not None}
    ops: list[dict[str, int]] = [{} for _ in range(follower.count)]
    for (warp, _), ins in issued.items():
        ops[warp][issued_as(ins)] = 1
    return tuple(map(role, ops))


@dataclass(slots=True)
class _Part:
    """What the CTAs of one process left: findings, roles by CTA and warp, bytes of global memory."""

    findings: Findings
    roles: dict[int, tuple[str, ...]]
    between: Between | None


class LaunchChecker:
    """One launch's; `begin` is what a `Launch` makes the checker of each CTA with. Implements
    `machine.checking.Parts`: its CTAs may run over several processes."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._forms = Forms(kernel)
        self._talks = communicates(kernel)
        self._running: dict[int, Follower] = {}
        self.reset()

    def reset(self) -> None:
        """See `Parts`."""
        between = None if self._talks else Between(self._forms.sizes["global"])
        self._part = _Part(Findings(0), {}, between)

    def part(self) -> object:
        """See `Parts`."""
        self._stopped()
        return self._part

    def join(self, part: object) -> None:
        """See `Parts`."""
        assert isinstance(part, _Part)
        self._part.findings.merge(part.findings)
        self._part.roles |= part.roles
        if self._part.between is not None and part.between is not None:
            self._part.between.join(part.between)

    def begin(self, cta: Cta) -> Follower:
        """The checker of a CTA."""
        follower = self._running[cta.index] = Follower(cta, self._forms, self._ended)
        return follower

    def _ended(self, follower: Follower) -> None:
        del self._running[follower.cta.index]
        self._keep(follower)
        if self._part.between is not None:
            self._part.between.add(follower)

    def _stopped(self) -> None:
        """CTAs that a fault ended leave what was found until then."""
        for follower in self._running.values():
            self._keep(follower)
        self._running.clear()

    def found(self) -> list[Found]:
        """What was found, once the launch has ended or failed: then also of the CTAs that it stopped."""
        self._stopped()
        if self._part.between is not None:
            self._part.between.judge(self._part.findings)
            self._part.between = None
        return self._part.findings.all()

    def _keep(self, follower: Follower) -> None:
        self._part.findings.merge(follower.findings)
        self._part.roles[follower.cta.index] = _roles(follower)

    def role(self, cta: int, warp: int) -> str:
        """What a warp is for, as far as its CTA got."""
        return self._part.roles[cta][warp]

    @property
    def follows_ctas(self) -> bool:
        """Whether accesses of different CTAs to global memory are judged."""
        return not self._talks
