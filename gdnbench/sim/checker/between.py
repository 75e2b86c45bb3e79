"""What the CTAs of a launch have in common: its global memory, and the words by which they synchronise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.checker.ctas import ALONE, unordered_between
from gdnbench.sim.checker.findings import Findings
from gdnbench.sim.checker.launch_memory import READERS, CtaMemory, LaunchMemory, Part, Touch
from gdnbench.sim.checker.paged_cells import PAGE
from gdnbench.sim.checker.sync_variables import Words
from gdnbench.sim.machine.memory import GlobalMemory

if TYPE_CHECKING:
    from gdnbench.sim.checker.cta_detector import Follower


class Between:
    """Judges accesses of different CTAs. Where none can wait for another, two that touch the same bytes, one
    of them writing, race whatever the order in which they ran; where they `talk`, they run in turns, and what
    one has acquired of another orders them.

    `size` is that of a cell of global memory.
    """

    def __init__(self, size: int, reachable: GlobalMemory | None, *, talk: bool) -> None:
        self.findings = Findings(0)
        self.memory = LaunchMemory(_pages(size, reachable), READERS if talk else 1)
        self.words = Words()
        self._size = size
        self._talk = talk

    def begin(self, follower: Follower) -> CtaMemory:
        """The global memory of a CTA that begins."""

        def judge(before: Touch, now: Touch, cell: int) -> None:
            self._judge(follower, before, now, cell)

        return self.memory.begin(follower.cta.index, follower, judge)

    def _judge(self, follower: Follower, before: Touch, now: Touch, cell: int) -> None:
        if not self._talk:
            self._race(before, now, cell)
            return
        views = follower.views[now.event.warp]
        why = unordered_between(
            before.event, before.cta, now.event, views.known.abroad, follower.variables.nearly
        )
        if why is not None:
            self.findings.pair(
                why, before.event, now.event, "global", cell * self._size, (before.cta, now.cta)
            )

    def _race(self, before: Touch, now: Touch, cell: int) -> None:
        self.findings.pair(ALONE, before.event, now.event, "global", cell * self._size, (before.cta, now.cta))

    def join(self, part: Part) -> None:
        """What CTAs did in another process."""
        self.memory.join(part, self._race)


def _pages(size: int, reachable: GlobalMemory | None) -> int:
    """How many pages of the shadow can be touched."""
    if reachable is None:
        return 0
    span = size * PAGE
    intervals = zip(reachable.bases.tolist(), reachable.ends.tolist(), strict=True)
    return sum((end - 1) // span - base // span + 1 for base, end in intervals)
