"""What the checker found: two accesses that nothing orders, grouped by cause."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.happens_before import Cause, Unordered, Verdict
from gdnbench.sim.errors import Place


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two accesses; `cta` is the index of its CTA."""

    place: Place
    cta: int
    warp: int
    does: str
    asynchronous: bool

    @classmethod
    def of(cls, event: Event, cta: int) -> Side:
        does = f"{event.ins.name} {event.access.value}"
        return cls(event.ins.place, cta, event.warp, does, event.token is not None)


@dataclass(slots=True)
class Found:
    """Pairs of one cause at one pair of instructions: `first` and `second` are those of the first pair,
    `memory` and `cell` where it met: an address, or in tensor memory 512 lane + column. It met in the `size`
    bytes from there on, 0 if that is not known. `count` pairs of executions in `ctas`, of `warps` and
    `places`, pairs of pcs."""

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
    """Those of a CTA, or of many."""

    cta: int
    by_cause: dict[Key, Found] = field(default_factory=dict)

    def pair(
        self,
        why: Unordered,
        before: Event,
        now: Event,
        memory: str,
        cell: int,
        ctas: tuple[int, int] | None = None,
        *,
        size: int = 0,
    ) -> None:
        """`now` touched a cell that `before` did; `ctas` are theirs if they are of different ones."""
        first, second = (self.cta, self.cta) if ctas is None else ctas
        key: Key = (why.cause, before.ins.pc, now.ins.pc, before.access, now.access, memory)
        if why.verdict is Verdict.REVIEW:
            key = (why.cause, before.ins.op, now.ins.op)
        found = self.by_cause.get(key)
        if found is None:
            sides = Side.of(before, first), Side.of(now, second)
            found = self.by_cause[key] = Found(
                why.cause, why.verdict, why.missing, *sides, memory, cell, size
            )
        _count(found, before, now, {first, second})

    def alone(self, what: str, verdict: Verdict, missing: str, now: Event, memory: str, cell: int) -> None:
        """`now` is at fault by itself."""
        key = (what, now.ins.pc, memory)
        found = self.by_cause.get(key)
        if found is None:
            side = Side.of(now, self.cta)
            found = self.by_cause[key] = Found(what, verdict, missing, None, side, memory, cell)
        _count(found, now, now, {self.cta})

    def merge(self, other: Findings) -> None:
        """Those of another CTA."""
        for key, found in other.by_cause.items():
            mine = self.by_cause.get(key)
            if mine is None:
                self.by_cause[key] = found
            else:
                mine.count += found.count
                mine.ctas |= found.ctas
                mine.warps |= found.warps
                mine.places |= found.places

    def all(self) -> list[Found]:
        """Errors first, then by place."""
        order = [Verdict.ERROR, Verdict.REVIEW, Verdict.INCOMPLETE]
        return sorted(
            self.by_cause.values(), key=lambda one: (order.index(one.verdict), one.second.place.line)
        )


def _count(found: Found, before: Event, now: Event, ctas: set[int]) -> None:
    """One more pair of executions."""
    found.count += 1
    found.ctas |= ctas
    found.warps.add((before.warp, now.warp))
    found.places.add((before.ins.pc, now.ins.pc))
