# SPDX-License-Identifier: Apache-2.0
"""Findings: pairs of accesses that nothing orders, grouped by cause and by the pair of instructions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.happens_before import Cause, Unordered, Verdict
from gdnbench.sim.errors import Place


class Owner(NamedTuple):
    """Whose access it is: the index of the CTA, and of the warp in the CTA."""

    cta: int
    warp: int


@dataclass(frozen=True, slots=True)
class Members:
    """The CTAs whose warps a race detector numbers through: one CTA, or those of a cluster by rank, with
    `warps` warps each."""

    ctas: tuple[int, ...]
    warps: int

    def owner(self, event: Event) -> Owner:
        """Whose access an event of the detector is."""
        if len(self.ctas) == 1:
            return Owner(self.ctas[0], event.warp)
        rank, warp = divmod(event.warp, self.warps)
        return Owner(self.ctas[rank], warp)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two accesses of a finding. `cta` is the index of its CTA, `does` the instruction and what it
    does, as text."""

    place: Place
    cta: int
    warp: int
    does: str
    asynchronous: bool

    @classmethod
    def from_event(cls, event: Event, owner: Owner) -> Side:
        does = f"{event.ins.name} {event.access.value}"
        return cls(event.ins.place, owner.cta, owner.warp, does, event.token is not None)


@dataclass(slots=True)
class FindingGroup:
    """All pairs of accesses with one cause at one pair of instructions. `first` and `second` are the accesses
    of the first pair found; they met in `memory` at `cell` (a byte address, or in tensor memory 512 lane +
    column), within `size` bytes, 0 if that is not known. `count` is the number of pairs of executions; `ctas`
    (indices), `warps` (pairs) and `places` (pairs of pcs) are where they were found."""

    cause: Cause | str
    verdict: Verdict
    missing: str
    first: Side | None
    second: Side
    memory: str
    cell: int
    size: int = 0
    count: int = 0
    ctas: set[int] = field(default_factory=set)
    warps: set[tuple[int, int]] = field(default_factory=set)
    places: set[tuple[int, int]] = field(default_factory=set)


Key = tuple[object, ...]


@dataclass(slots=True)
class Findings:
    """The findings of one race detector, or of several after `merge`. `members` are the CTAs of the
    detector."""

    members: Members
    by_cause: dict[Key, FindingGroup] = field(default_factory=dict)

    def add_pair(
        self,
        why: Unordered,
        before: Event,
        now: Event,
        memory: str,
        cell: int,
        owners: tuple[Owner, Owner] | None = None,
        *,
        size: int = 0,
    ) -> None:
        """Add a pair: `now` accessed a cell that `before` accessed and is not ordered after it. `owners` says
        whose they are, if they are of different detectors. Findings for review are grouped by opcodes, errors
        by instructions."""
        first, second = owners or (self.members.owner(before), self.members.owner(now))
        key: Key = (why.cause, before.ins.pc, now.ins.pc, before.access, now.access, memory)
        if why.verdict is Verdict.REVIEW:
            key = (why.cause, before.ins.op, now.ins.op)
        found = self.by_cause.get(key)
        if found is None:
            sides = Side.from_event(before, first), Side.from_event(now, second)
            found = self.by_cause[key] = FindingGroup(
                why.cause, why.verdict, why.missing, *sides, memory, cell, size
            )
        _count(found, before, now, first, second)

    def add_single(
        self, what: str, verdict: Verdict, missing: str, now: Event, memory: str, cell: int
    ) -> None:
        """Add a finding of the cause `what` about one access."""
        key = (what, now.ins.pc, memory)
        found = self.by_cause.get(key)
        if found is None:
            side = Side.from_event(now, self.members.owner(now))
            found = self.by_cause[key] = FindingGroup(what, verdict, missing, None, side, memory, cell)
        owner = self.members.owner(now)
        _count(found, now, now, owner, owner)

    def merge(self, other: Findings) -> None:
        """Add the findings of another CTA or process."""
        for key, found in other.by_cause.items():
            mine = self.by_cause.get(key)
            if mine is None:
                self.by_cause[key] = found
            else:
                mine.count += found.count
                mine.ctas |= found.ctas
                mine.warps |= found.warps
                mine.places |= found.places

    def in_report_order(self) -> list[FindingGroup]:
        """Errors first, then by PTX line."""
        order = [Verdict.ERROR, Verdict.REVIEW, Verdict.INCOMPLETE]
        return sorted(
            self.by_cause.values(), key=lambda one: (order.index(one.verdict), one.second.place.line)
        )


def _count(found: FindingGroup, before: Event, now: Event, first: Owner, second: Owner) -> None:
    """One more pair of executions."""
    found.count += 1
    found.ctas |= {first.cta, second.cta}
    found.warps.add((first.warp, second.warp))
    found.places.add((before.ins.pc, now.ins.pc))
