# SPDX-License-Identifier: Apache-2.0
"""Named barriers: an arrival in one round must be ordered after all arrivals in the round before.

A barrier counts arriving warps without telling them apart. It begins its next round once enough have
arrived (PTX ISA, "bar, barrier"). If nothing orders an arrival after an arrival in the round before, the
later one may be counted in the round before.

Rounds of a single warp are not checked: each is complete as soon as it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.happens_before import Cause, LanePair, Unordered, Verdict
from gdnbench.sim.checker.vector_clocks import WarpClocks
from gdnbench.sim.machine.barrier_state import Round

BARRIER = "barrier"
"""The `memory` of findings about a named barrier; `cell` is then the barrier's number."""

ROUNDS = Unordered(
    Cause.ROUNDS,
    Verdict.ERROR,
    "synchronisation from the first arrival to the second, which may count for the first's round",
)


@dataclass(slots=True)
class Arrivals:
    """The arrivals at one barrier in its latest round (`now`) and in the round before."""

    latest: Round
    now: list[Event] = field(default_factory=list)
    before: list[Event] = field(default_factory=list)

    def record_arrival(self, use: Round, event: Event, clocks: WarpClocks) -> Iterator[Event]:
        """The warp of `clocks` arrives in the round `use`. Yields the arrivals of the round before that it is
        not ordered after."""
        if use is not self.latest:
            self.latest, self.before, self.now = use, self.now, []
        self.now.append(event)
        return (one for one in self.before if not clocks.ordered_after(one, LanePair.of_events(one, event)))
