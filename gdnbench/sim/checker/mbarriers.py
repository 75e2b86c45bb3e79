"""mbarriers: what the arrivals of each phase release to those that wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.lanes import Part
from gdnbench.sim.checker.views import Carried, WarpViews

KEPT = 3
AS_DATA = "an mbarrier used as data"
"""A load, store or copy of the bytes of one (PTX ISA, "mbarrier.inval": undefined before it)."""


@dataclass(slots=True)
class Mbarrier:
    """One, from its mbarrier.init on. `users` is each warp's latest use of it; `waits`, by phase, who has
    waited for it: the number of the wait; `checked`, the latest of these phases. `expects` is the latest
    expect_tx, `signal` the latest operation that has signalled it, in phase `signalled`."""

    init: Event
    warps: int
    phases: dict[int, Carried] = field(default_factory=dict)
    users: dict[int, Event] = field(default_factory=dict)
    waits: dict[int, dict[int, tuple[int, Event]]] = field(default_factory=dict)
    checked: int = -1
    expects: Event | None = None
    signal: Event | None = None
    signalled: int = -1

    def at(self, phase: int) -> Carried:
        """What the arrivals at `phase` carry so far."""
        found = self.phases.get(phase)
        if found is None:
            found = self.phases[phase] = Carried.of(self.warps)
            for old in [number for number in self.phases if number <= phase - KEPT]:
                del self.phases[old]
                self.waits.pop(old, None)
        return found

    def waited(self, phase: int, event: Event, views: WarpViews, part: Part, *, relaxed: bool) -> list[Event]:
        """A warp has found `phase` to be over. Returns those that waited for the phase before it and whom
        nothing ordered before its end: they can fall two phases behind (PTX ISA, "mbarrier.test_wait": one
        phase before the current can be told)."""
        if phase < 0:
            return []
        late: list[Event] = []
        if phase > self.checked:
            self.checked = phase
            ended = self.at(phase).executed
            late = [
                wait
                for warp, (number, wait) in self.waits.get(phase - 1, {}).items()
                if ended.clocks[warp] < number
            ]
        views.acquire(self.at(phase), part, relaxed=relaxed)
        self.waits.setdefault(phase, {})[views.index] = views.waited(), event
        return late
