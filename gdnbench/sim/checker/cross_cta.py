# SPDX-License-Identifier: Apache-2.0
"""Races between CTAs in global memory: the shadow memory that they share, and the rule that orders them.

Each CTA has its own vector clocks. A warp keeps, beside its own CTA's, one `RemoteClock` for each other CTA
that it has synchronised with through global memory (`sync_variables.py`). Base causality order (PTX ISA,
"Causality order") is the transitive closure of the program order of a thread, the barriers of a CTA, and
releases that another thread acquires. Two accesses that conflict need, beside that order:

    earlier access             later access              needed
    strong, of .gpu or .sys    the same, same proxy      nothing, not even that order: the two do not race
                                                         ("Data Races", "Morally Strong Operations")
    a generic write            an async access           a fence.proxy.async in between, in either CTA
    an async access            any access                a wait for the first; its completion includes a proxy
                                                         fence ("Async Proxy")

A kernel without global atomics and ordered global accesses has no edge between CTAs. There two accesses of
different CTAs to the same bytes, one of which writes, race in whatever order they ran.
"""

from __future__ import annotations

from collections.abc import Callable

from gdnbench.sim.checker.cta_state import CtaState
from gdnbench.sim.checker.earlier_launches import EarlierLaunches
from gdnbench.sim.checker.events import Event, overlap_completely
from gdnbench.sim.checker.findings import Findings, Members, Owner
from gdnbench.sim.checker.happens_before import Cause, Unordered, Verdict, completion_wait
from gdnbench.sim.checker.launch_memory import READERS, CtaAccess, CtaShadow, GlobalShadow, ProcessShadow
from gdnbench.sim.checker.load_store import has_gpu_scope
from gdnbench.sim.checker.paged_cells import PAGE
from gdnbench.sim.checker.remote_clocks import RemoteClocks
from gdnbench.sim.checker.sync_variables import NearMisses, SyncWords
from gdnbench.sim.machine.memory import GlobalMemory

NO_CTA_ORDER = Unordered(
    Cause.CTAS, Verdict.ERROR, "bytes of its own for each CTA: nothing orders the CTAs of this kernel"
)
_RELEASE = "a release at .gpu or .sys scope after the first"
_ACQUIRE = "an acquire of what was released after the first"


def unordered_across_ctas(
    before: Event, cta: int, now: Event, remote: RemoteClocks, near_misses: NearMisses
) -> Unordered | None:
    """None if `now`, of a warp with the clocks `remote`, is ordered after `before` of the CTA `cta`; else
    what is missing."""
    if _morally_strong(before, now):
        return None
    clock = remote.by_cta.get(cta)
    if clock is not None and clock.contains(before):
        if clock.visible_through(before, now.proxy):
            return None
        return Unordered(Cause.PROXY, Verdict.ERROR, "fence.proxy.async between the two")
    if clock is not None and clock.contains_issue(before):
        return Unordered(Cause.IN_FLIGHT, Verdict.ERROR, f"{completion_wait(before)}, before the release")
    return Unordered(Cause.CTAS, Verdict.ERROR, _missing(before, cta, near_misses))


def _missing(before: Event, cta: int, near_misses: NearMisses) -> str:
    def covered(clocks: RemoteClocks) -> bool:
        clock = clocks.by_cta.get(cta)
        return clock is not None and clock.contains_issue(before)

    if covered(near_misses.acquired):
        return "a barrier from the warp that acquired the first's release to the second's warp"
    if covered(near_misses.released):
        return f"{_ACQUIRE}: .acquire, or a fence after the strong read, of scope .gpu or .sys"
    if covered(near_misses.written):
        return (
            f"{_RELEASE}: .release, or a fence before the strong write, of scope .gpu or .sys, and a barrier"
            " before it if it is another warp's"
        )
    return f"{_RELEASE}, and an acquire of it before the second"


def _morally_strong(before: Event, now: Event) -> bool:
    """Whether two accesses of different CTAs, of one launch or of two, do not race whatever their order
    ("Morally Strong Operations", PTX ISA 9.1, 8.7). The scope .gpu includes the other launch (table 21)."""
    strong = _strong_at_gpu_scope(before) and _strong_at_gpu_scope(now)
    return strong and before.proxy is now.proxy and overlap_completely(before, now)


def _strong_at_gpu_scope(event: Event) -> bool:
    """Whether it is strong at a scope that includes other CTAs. Bulk reductions are `.relaxed.gpu` (PTX ISA,
    "cp.reduce.async.bulk")."""
    return event.strong and has_gpu_scope(event.ins)


class CrossCtaDetector:
    """The race detector between the CTAs of one launch. `cell_bytes` is the size of a cell of global memory
    in bytes, `reachable` the memory that the launch may touch (None if unknown), `earlier` the launches that
    may still run. The CTAs of a cluster count as one, by the index of the first: their own detector orders
    them. `owner_of` says which of them made an access. `synchronized`: the kernel
    has accesses by which CTAs can synchronise. The simulator then interleaves them, and releases and acquires
    order them. Otherwise every conflict of two CTAs is a race."""

    def __init__(
        self,
        cell_bytes: int,
        reachable: GlobalMemory | None,
        earlier: EarlierLaunches | None = None,
        *,
        synchronized: bool,
    ) -> None:
        self.findings = Findings(Members((0,), 1))
        self.owner_of: Callable[[CtaAccess], Owner] = lambda access: Owner(access.cta, access.event.warp)
        self.memory = GlobalShadow(_shadow_pages(cell_bytes, reachable), READERS if synchronized else 1)
        if earlier is not None:
            sizes = earlier.cell_bytes, cell_bytes
            latest, *older = earlier.launches
            self.memory.put_earlier(earlier.memory, sizes, latest.ctas, older=bool(older))
        self.earlier = earlier
        self.words = SyncWords()
        self._cell_bytes = cell_bytes
        self._synchronized = synchronized

    def begin_cta(self, detector: CtaState) -> CtaShadow:
        """A CTA begins: the shadow of global memory through which `detector` records its accesses."""

        def check_pair(before: CtaAccess, now: CtaAccess, cell: int) -> None:
            self._check_pair(detector, before, now, cell)

        return self.memory.begin_cta(detector.index, detector, check_pair)

    def _check_pair(self, detector: CtaState, before: CtaAccess, now: CtaAccess, cell: int) -> None:
        clocks = detector.warp_clocks[now.event.warp].all_lanes
        if before.cta < 0:
            assert self.earlier is not None
            missing = self.earlier.unordered(before.cta, clocks.remote)
            if missing is not None and not _morally_strong(before.event, now.event):
                self._add(missing, before, now, cell)
            return
        if not self._synchronized:
            self._add_race(before, now, cell)
            return
        near_misses = detector.sync_variables.near_misses
        why = unordered_across_ctas(before.event, before.cta, now.event, clocks.remote, near_misses)
        if why is not None:
            self._add(why, before, now, cell)

    def _add_race(self, before: CtaAccess, now: CtaAccess, cell: int) -> None:
        self._add(NO_CTA_ORDER, before, now, cell)

    def _add(self, why: Unordered, before: CtaAccess, now: CtaAccess, cell: int) -> None:
        address, owners = cell * self._cell_bytes, (self.owner_of(before), self.owner_of(now))
        self.findings.add_pair(why, before.event, now.event, "global", address, owners)

    def join_process(self, shadow: ProcessShadow) -> None:
        """Check what CTAs of another process did against what was done here. Nothing orders them."""
        self.memory.join_process(shadow, self._add_race)


def _shadow_pages(cell_bytes: int, reachable: GlobalMemory | None) -> int:
    """How many pages of the shadow can be touched; 0 if that is not known."""
    if reachable is None:
        return 0
    span = cell_bytes * PAGE
    intervals = zip(reachable.bases.tolist(), reachable.ends.tolist(), strict=True)
    return sum((end - 1) // span - base // span + 1 for base, end in intervals)
