# SPDX-License-Identifier: Apache-2.0
"""The shadow of one CTA's tensor memory, and the order between tcgen05.alloc, accesses and
tcgen05.dealloc."""

from __future__ import annotations

import numpy as np

from gdnbench.sim.checker.cta_state import CtaState
from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.happens_before import (
    USED_ALONE,
    Cause,
    LanePair,
    Unordered,
    Verdict,
    unordered_in_tmem,
)
from gdnbench.sim.checker.shadow import NO_ACCESS, Cells, ReadSets, ShadowMemory
from gdnbench.sim.machine.footprint import TMEM_COLUMNS

LANES = 128
MEMORY = "tmem"


class TmemShadow:
    """The shadow of one CTA's tensor memory. `_owner` is, by column, the tcgen05.alloc that allocated it;
    `_freed` the tcgen05.dealloc that freed it.

    The CTAs of a pair allocate and free together: an access that is ordered after the tcgen05.alloc of either
    CTA is ordered after both. `_partners` maps the event number of the first tcgen05.alloc to that of the
    second. `_allocating` and `_freeing` have, by first column, the event of the peer where the CTA's own is
    yet to come."""

    def __init__(self, detector: CtaState, sets: ReadSets) -> None:
        self._detector = detector
        self._shadow = ShadowMemory(0, sets)
        self._sets = sets
        self._owner = np.zeros(TMEM_COLUMNS, np.int32)
        self._freed = np.zeros(TMEM_COLUMNS, np.int32)
        self._partners: dict[int, int] = {}
        self._allocating: dict[int, Event] = {}
        self._freeing: dict[int, Event] = {}

    def record_access(self, cells: Cells, event: Event) -> None:
        """Check a tcgen05 operation's access to `cells` (512 lane + column) and record it."""
        detector = self._detector
        clocks = detector.warp_clocks[event.warp]
        self._check_allocated(cells, event)
        shadow = self._allocated_shadow()
        numbers = np.full(len(cells), event.number, np.int32)
        prior = (
            shadow.record_writes(cells, numbers)
            if event.access.writes
            else shadow.record_reads(cells, numbers)
        )
        for one in prior:
            detector.check_pair(
                one, event, lambda before, met: unordered_in_tmem(before, event, clocks, met), MEMORY
            )

    def record_alloc(self, first: int, columns: int, event: Event, peer: TmemShadow | None) -> None:
        """tcgen05.alloc has allocated these columns, in a pair in the `peer` too: forget what was in them."""
        earlier = self._allocating.pop(first, None)
        if earlier is None:
            self._allocate(first, columns, event)
            if peer is not None:
                peer._allocate(first, columns, event)
                peer._allocating[first] = event
        elif peer is not None:
            for shadow in (self, peer):
                shadow._partners[earlier.number] = event.number

    def _allocate(self, first: int, columns: int, event: Event) -> None:
        self._owner[first : first + columns] = event.number
        self._freed[first : first + columns] = NO_ACCESS
        self._allocated_shadow().clear(_block(first, columns))

    def begin_dealloc(self, first: int, columns: int, event: Event, peer: TmemShadow | None) -> None:
        """A warp executes tcgen05.dealloc; in a pair the columns are freed once both have."""
        if peer is None:
            self._deallocate(first, columns, (event,))
            return
        earlier = self._freeing.pop(first, None)
        if earlier is None:
            peer._freeing[first] = event
            return
        for shadow in (self, peer):
            shadow._deallocate(first, columns, (earlier, event))

    def _deallocate(self, first: int, columns: int, events: tuple[Event, ...]) -> None:
        """The columns are freed: all operations that used them must have completed."""
        detector, event = self._detector, events[-1]
        over = loads_used = 0
        for one in events:
            clocks = detector.warp_clocks[one.warp]
            over |= clocks.completed_tokens()
            loads_used |= clocks.all_lanes.loads_used
            self._check_allocated(np.arange(first, first + columns, dtype=np.int64), one)
        for number, cell in self._allocated_shadow().prior_accesses(_block(first, columns)):
            before = detector.events[number]
            if before.token is not None and not over >> before.token & 1:
                why = Unordered(
                    Cause.RACE, Verdict.ERROR, "a wait for the first, and a barrier before tcgen05.dealloc"
                )
                if loads_used >> before.token & 1:
                    why = USED_ALONE
                detector.findings.add_pair(why, before, event, MEMORY, cell)
        self._freed[first : first + columns] = event.number

    def _check_allocated(self, cells: Cells, event: Event) -> None:
        detector = self._detector
        clocks = detector.warp_clocks[event.warp]
        columns = np.flatnonzero(np.bincount(cells % TMEM_COLUMNS))
        for number in np.unique(self._owner[columns]).tolist():
            if number == NO_ACCESS:
                continue  # not allocated: the machine raises the fault
            alloc = detector.events[number]
            allocs = [alloc]
            if number in self._partners:
                allocs.append(detector.events[self._partners[number]])
            if not any(
                one.warp == event.warp or clocks.ordered_after(one, LanePair(one.lane, event.lane))
                for one in allocs
            ):
                why = Unordered(
                    Cause.RACE, Verdict.ERROR, "a barrier between tcgen05.alloc and the first use"
                )
                detector.findings.add_pair(why, alloc, event, MEMORY, int(columns[0]))
        for number in np.unique(self._freed[columns]).tolist():
            if number != NO_ACCESS:
                why = Unordered(Cause.RACE, Verdict.ERROR, "a barrier before tcgen05.dealloc")
                detector.findings.add_pair(why, detector.events[number], event, MEMORY, int(columns[0]))

    def _allocated_shadow(self) -> ShadowMemory:
        if not self._shadow.writer.size:
            self._shadow = ShadowMemory(LANES * TMEM_COLUMNS, self._sets)
        return self._shadow


def _block(first: int, columns: int) -> Cells:
    lanes = np.arange(LANES, dtype=np.int64)[:, None] * TMEM_COLUMNS
    return (lanes + np.arange(first, first + columns)).reshape(-1)
