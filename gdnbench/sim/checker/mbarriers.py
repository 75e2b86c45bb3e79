"""mbarriers: the vector clocks that the arrivals of each phase release to those that wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.lanes import LaneSubset
from gdnbench.sim.checker.vector_clocks import ClockSet, WarpClocks

KEPT = 3
USED_AS_DATA = "an mbarrier used as data"
"""A load, store or copy of the bytes of one (PTX ISA, "mbarrier.inval": undefined before it)."""
TWO_PHASES = (
    "an arrival after the first wait that the next phase waits for: the first can fall two phases behind"
)


@dataclass(slots=True)
class Mbarrier:
    """One, from its mbarrier.init on. `users` is each warp's latest use of it; `waits`, by phase, who has
    waited for it: the number of the wait; `checked`, the latest of these phases. `expects` is the latest
    expect_tx, `signal` the latest operation that has signalled it, in phase `signalled`."""

    init: Event
    warps: int
    phases: dict[int, ClockSet] = field(default_factory=dict)
    users: dict[int, Event] = field(default_factory=dict)
    waits: dict[int, dict[int, tuple[int, Event]]] = field(default_factory=dict)
    checked: int = -1
    expects: Event | None = None
    signal: Event | None = None
    signalled: int = -1

    def phase_clocks(self, phase: int) -> ClockSet:
        """What the arrivals at `phase` carry so far."""
        found = self.phases.get(phase)
        if found is None:
            found = self.phases[phase] = ClockSet.zero(self.warps)
            for old in [number for number in self.phases if number <= phase - KEPT]:
                del self.phases[old]
                self.waits.pop(old, None)
        return found

    def record_wait(
        self, phase: int, event: Event, clocks: WarpClocks, part: LaneSubset, *, relaxed: bool
    ) -> list[Event]:
        """A warp has found `phase` to be over. Returns those that can fall two phases behind, of which only
        the first to find it is told. The phase before the first, -1, is over from the beginning: nothing was
        released by it, and whoever waits for it can fall behind as well."""
        if phase < 0:
            self.waits.setdefault(phase, {})[clocks.warp] = clocks.count_wait(), event
            return []
        # Phases that nobody waited for are seen to be over now.
        passed = [number for number in sorted(self.phases) if self.checked < number <= phase]
        late = [wait for number in passed for wait in self.waits_left_behind(number)]
        self.checked = max(self.checked, phase)
        clocks.acquire(self.phase_clocks(phase), part, relaxed=relaxed)
        self.waits.setdefault(phase, {})[clocks.warp] = clocks.count_wait(), event
        return late

    def waits_left_behind(self, phase: int) -> list[Event]:
        """`phase` is over: those that waited for the phase before it and whom nothing ordered before its end.
        They can fall two phases behind (PTX ISA, "mbarrier.test_wait": one phase before the current can be
        told)."""
        ended = self.phase_clocks(phase).waits
        waits = self.waits.get(phase - 1, {})
        return [wait for warp, (number, wait) in waits.items() if ended.by_warp[warp] < number]
