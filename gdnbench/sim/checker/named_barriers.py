"""Rounds of named barriers: who arrives in one has to come after all that arrived in the round before.

A barrier counts warps, whichever they are, and is ready for its next round once it has them (PTX ISA, "bar,
barrier"). An arrival that nothing orders after one of the round before may count for that round, in its
place. Rounds of a single warp are left out: each is over as soon as it has begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.happens_before import Cause, Pair, Unordered, Verdict
from gdnbench.sim.checker.vector_clocks import WarpViews
from gdnbench.sim.machine.barriers import Round

BARRIER = "barrier"
"""What findings have for a memory that are of a named barrier; its number is their cell."""

ROUNDS = Unordered(
    Cause.ROUNDS,
    Verdict.ERROR,
    "synchronisation from the first arrival to the second, which may count for the first's round",
)


@dataclass(slots=True)
class Arrivals:
    """Who has arrived at one barrier in its latest round, and who did in the round before."""

    latest: Round
    now: list[Event] = field(default_factory=list)
    before: list[Event] = field(default_factory=list)

    def arrive(self, use: Round, event: Event, views: WarpViews) -> Iterator[Event]:
        """The warp of `views` arrives in the round `use`: those of the round before that it may precede."""
        if use is not self.latest:
            self.latest, self.before, self.now = use, self.now, []
        self.now.append(event)
        return (one for one in self.before if not views.knows(one, Pair.of(one, event)))
