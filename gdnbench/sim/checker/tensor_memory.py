"""Tensor memory: who wrote and read each cell, and whether its allocation is ordered with those that use
it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.happens_before import USED_ALONE, Cause, Pair, Unordered, Verdict, unordered_in_tmem
from gdnbench.sim.checker.shadow import NOBODY, Cells, ReadSets, Shadow
from gdnbench.sim.machine.footprint import TMEM_COLUMNS

if TYPE_CHECKING:
    from gdnbench.sim.checker.cta_detector import Follower

LANES = 128
MEMORY = "tmem"


class TensorMemory:
    """The shadow of one CTA's. `allocations` by first column: how many, and the tcgen05.alloc; `freed` by
    first column: the tcgen05.dealloc that has been reached."""

    def __init__(self, follower: Follower, sets: ReadSets) -> None:
        self._follower = follower
        self._shadow = Shadow(0, sets)
        self._sets = sets
        self._owner = np.zeros(TMEM_COLUMNS, np.int32)
        self._freed = np.zeros(TMEM_COLUMNS, np.int32)

    def touch(self, cells: Cells, event: Event) -> None:
        """`event`, a tcgen05 operation, touches `cells`: 512 lane + column."""
        follower = self._follower
        views = follower.views[event.warp]
        self._check_allocated(cells, event)
        shadow = self._there()
        numbers = np.full(len(cells), event.number, np.int32)
        prior = shadow.writes(cells, numbers) if event.access.writes else shadow.reads(cells, numbers)
        for one in prior:
            follower.judge(
                one, event, lambda before, met: unordered_in_tmem(before, event, views, met), MEMORY
            )

    def allocated(self, first: int, columns: int, event: Event) -> None:
        """tcgen05.alloc has given these columns."""
        self._owner[first : first + columns] = event.number
        self._freed[first : first + columns] = NOBODY
        self._there().forget(_block(first, columns))

    def freed(self, first: int, columns: int, event: Event) -> None:
        """tcgen05.dealloc is reached: all that used the columns has to be over."""
        follower = self._follower
        known, over = follower.views[event.warp].known, follower.views[event.warp].tokens()
        self._check_allocated(np.arange(first, first + columns, dtype=np.int64), event)
        for number, cell in self._there().touched(_block(first, columns)):
            before = follower.events[number]
            if before.token is not None and not over >> before.token & 1:
                why = Unordered(
                    Cause.RACE, Verdict.ERROR, "a wait for the first, and a barrier before tcgen05.dealloc"
                )
                if known.used >> before.token & 1:
                    why = USED_ALONE
                follower.findings.pair(why, before, event, MEMORY, cell)
        self._freed[first : first + columns] = event.number

    def _check_allocated(self, cells: Cells, event: Event) -> None:
        follower = self._follower
        views = follower.views[event.warp]
        columns = np.flatnonzero(np.bincount(cells % TMEM_COLUMNS))
        for number in np.unique(self._owner[columns]).tolist():
            if number == NOBODY:
                continue  # not allocated: the machine says so
            alloc = follower.events[number]
            if alloc.warp != event.warp and not views.knows(alloc, Pair(alloc.lane, event.lane)):
                why = Unordered(
                    Cause.RACE, Verdict.ERROR, "a barrier between tcgen05.alloc and the first use"
                )
                follower.findings.pair(why, alloc, event, MEMORY, int(columns[0]))
        for number in np.unique(self._freed[columns]).tolist():
            if number != NOBODY:
                why = Unordered(Cause.RACE, Verdict.ERROR, "a barrier before tcgen05.dealloc")
                follower.findings.pair(why, follower.events[number], event, MEMORY, int(columns[0]))

    def _there(self) -> Shadow:
        if not self._shadow.writer.size:
            self._shadow = Shadow(LANES * TMEM_COLUMNS, self._sets)
        return self._shadow


def _block(first: int, columns: int) -> Cells:
    lanes = np.arange(LANES, dtype=np.int64)[:, None] * TMEM_COLUMNS
    return (lanes + np.arange(first, first + columns)).reshape(-1)
