"""What the checker found: two accesses that nothing orders, grouped by cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.order import Cause, Unordered, Verdict
from gdnbench.sim.errors import Place


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two accesses."""

    place: Place
    warp: int
    does: str
    asynchronous: bool

    @classmethod
    def of(cls, event: Event) -> Side:
        return cls(
            event.ins.place, event.warp, f"{event.ins.name} {event.access.value}", event.token is not None
        )


@dataclass(slots=True)
class Found:
    """Pairs of one cause at one pair of instructions: `first` and `second` are those of the first pair,
    `memory` and `cell` where it met; `count` pairs of executions in `ctas` CTAs."""

    cause: Cause | str
    verdict: Verdict
    missing: str
    first: Side | None
    second: Side
    memory: str
    cell: int
    cta: int
    count: int = 1
    ctas: set[int] = field(default_factory=set)
    warps: set[tuple[int, int]] = field(default_factory=set)


Key = tuple[object, ...]


@dataclass(slots=True)
class Findings:
    """Those of a CTA, or of many."""

    cta: int
    by_cause: dict[Key, Found] = field(default_factory=dict)

    def pair(self, why: Unordered, before: Event, now: Event, memory: str, cell: int) -> None:
        """`now` touched a cell that `before` did."""
        key: Key = (why.cause, before.ins.pc, now.ins.pc, before.access, now.access, memory)
        if why.verdict is Verdict.REVIEW:
            key = (why.cause, before.ins.op, now.ins.op)
        self._add(
            key,
            lambda: Found(
                why.cause, why.verdict, why.missing, Side.of(before), Side.of(now), memory, cell, self.cta
            ),
            (before.warp, now.warp),
        )

    def alone(self, what: str, verdict: Verdict, missing: str, now: Event, memory: str, cell: int) -> None:
        """`now` is at fault by itself."""
        key = (what, now.ins.pc, memory)
        self._add(
            key,
            lambda: Found(what, verdict, missing, None, Side.of(now), memory, cell, self.cta),
            (now.warp, now.warp),
        )

    def _add(self, key: Key, make: Callable[[], Found], warps: tuple[int, int]) -> None:
        found = self.by_cause.get(key)
        if found is None:
            found = self.by_cause[key] = make()
            found.ctas.add(self.cta)
        else:
            found.count += 1
        found.warps.add(warps)

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

    def all(self) -> list[Found]:
        """Errors first, then by place."""
        order = [Verdict.ERROR, Verdict.REVIEW, Verdict.INCOMPLETE]
        return sorted(
            self.by_cause.values(), key=lambda one: (order.index(one.verdict), one.second.place.line)
        )
