# SPDX-License-Identifier: Apache-2.0
"""mbarriers: the vector clocks that the arrivals of each phase release to those that wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.lanes import LaneSubset
from gdnbench.sim.checker.vector_clocks import ClockSet, WarpClocks

KEPT = 3
"""Latest phases of an mbarrier whose clocks are kept."""
USED_AS_DATA = "an mbarrier used as data"
"""The cause of findings about loads, stores and copies of an mbarrier's bytes, which are undefined before
mbarrier.inval (PTX ISA, "mbarrier.inval")."""
TWO_PHASES = (
    "an arrival after the first wait that the next phase waits for: the first can fall two phases behind"
)


@dataclass(slots=True)
class Mbarrier:
    """One mbarrier, from its mbarrier.init to its mbarrier.inval. `phases` are the clocks released into
    recent phases. `users`: the latest use by each warp. `waits`: by phase and warp, the number of the warp's
    wait and its event; `checked` is the latest phase waited for. `expects` is the latest expect_tx; `signal`
    the latest operation that has signalled the mbarrier, in phase `signalled`."""

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
        """The clocks that the arrivals of `phase` have released so far."""
        found = self.phases.get(phase)
        if found is None:
            found = self.phases[phase] = ClockSet.zero(self.warps)
            for old in [number for number in self.phases if number <= phase - KEPT]:
                del self.phases[old]
                self.waits.pop(old, None)
        return found

    def record_wait(
        self, phase: int, event: Event, clocks: WarpClocks, subset: LaneSubset, *, relaxed: bool
    ) -> list[Event]:
        """A warp's wait has found `phase` complete: acquire its clocks. Returns the waits that can fall two
        phases behind, each only once. The phase before the first, -1, is complete from the beginning: it
        released nothing, and a warp that waits for it can fall behind too."""
        if phase < 0:
            self.waits.setdefault(phase, {})[clocks.warp] = clocks.count_wait(), event
            return []
        # Check all phases that have completed since the last check, also those that nobody waited for.
        passed = [number for number in sorted(self.phases) if self.checked < number <= phase]
        late = [wait for number in passed for wait in self.waits_left_behind(number)]
        self.checked = max(self.checked, phase)
        clocks.acquire(self.phase_clocks(phase), subset, relaxed=relaxed)
        self.waits.setdefault(phase, {})[clocks.warp] = clocks.count_wait(), event
        return late

    def waits_left_behind(self, phase: int) -> list[Event]:
        """The waits for phase - 1 that nothing orders before the completion of `phase`, which is complete
        now. Such a wait can fall two phases behind: when it tests the mbarrier, that may be in phase + 1.
        Only the latest complete phase can be tested (PTX ISA, "mbarrier.test_wait")."""
        ended = self.phase_clocks(phase).waits
        waits = self.waits.get(phase - 1, {})
        return [wait for warp, (number, wait) in waits.items() if ended.by_warp[warp] < number]
