"""Whether one access is ordered after another, and if not, what would have ordered them.

PTX ISA: "Memory Consistency Model" (causality order), "Proxies", 9.7.16.6 (tcgen05). By who did what before:

    before                     now                       ordered if known in
    anything                   a generic access          base
    generic write              an async access           base, and proxied
    generic read               an async write            base, and proxied: else for review
    async access               an async access           base
    tcgen05 operation          a product or copy         base and fenced, or piped: the tensor core's order
    tcgen05 operation          tcgen05.ld, .st           base and fenced

Lanes of one warp are ordered by bar.warp.sync, which orders memory among those that take part, as barriers
do. Of instructions that lanes execute together (shfl.sync, elect.sync, whatever is .aligned) the ISA says
that they wait for one another and not what that means for memory: a pair that these alone part is for review.

The ISA promises the tensor core's order to five pairs of operations (9.7.16.6.2): products of one shape into
one accumulator, a copy before a product, and three with tcgen05.shift. That it holds of any products and
copies is taken for granted, as kernels and compilers do that overwrite an operand by the next copy.

A tcgen05.ld that no wait covers has read its cells once a register that it loads was used. The ISA
(9.7.16.6.4.5) orders such a use and no access to memory: what only that orders is for review.

What is in base and not in fenced is ordered by the release and acquire of an mbarrier or barrier alone. The
ISA says that the standard model serves tcgen05 too (9.7.16.6.3) and shows no pattern without the fence, so
that such a pair is for review.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gdnbench.sim.checker.events import Access, Event, Proxy
from gdnbench.sim.checker.lanes import MANY, UNSURE
from gdnbench.sim.checker.vector_clocks import Met, WarpViews


class Cause(Enum):
    """Why two accesses are not ordered."""

    RACE = "race"
    CONVERGED = "a collective alone"
    PROXY = "no proxy fence"
    INIT = "no fence of an mbarrier's initialisation"
    TCGEN05_FENCE = "no tcgen05 fence"
    IN_FLIGHT = "operation in flight"
    NO_WAIT = "no tcgen05.wait::ld"
    CTAS = "CTAs race"
    PHASES = "two phases behind"
    ROUNDS = "two rounds of a barrier"


class Verdict(Enum):
    ERROR = "error"
    REVIEW = "review"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Unordered:
    cause: Cause
    verdict: Verdict
    missing: str


class Pair(NamedTuple):
    """Two accesses that met at one place: the lanes. Implements `views.Met`."""

    before: int
    now: int

    @classmethod
    def of(cls, before: Event, now: Event) -> Pair:
        """As far as the accesses tell."""
        lanes = (UNSURE if event.lane == MANY else event.lane for event in (before, now))
        return cls(*lanes)

    def itself(self) -> bool:
        return self.before == self.now != MANY

    def pairs(self) -> tuple[tuple[int, int]]:
        return ((self.before, self.now),)


USED_ALONE = Unordered(
    Cause.NO_WAIT, Verdict.REVIEW, "tcgen05.wait::ld: nothing follows the load but a use of its registers"
)

PROXIES = Unordered(Cause.PROXY, Verdict.ERROR, "fence.proxy.async between the two")
# Copies were seen to overtake loads of what they overwrite (DeepEP, pull 642); CUTLASS has no such fence.
OVERTAKES = Unordered(
    Cause.PROXY,
    Verdict.REVIEW,
    "fence.proxy.async between the read and what overwrites it",
)

_PIPED = ("tcgen05.mma", "tcgen05.cp", "tcgen05.shift")


def unordered(before: Event, now: Event, views: WarpViews, memory: str, met: Met) -> Unordered | None:
    """None if `now`, which the warp of `views` does or sets going, is ordered after `before`, both in
    `memory`, shared or global, where they `met`."""
    if before.strong and now.strong and before.proxy is now.proxy:
        return None  # "Morally Strong Operations" of one CTA, whatever their scopes: they do not race
    if not views.knows(before, met):
        return _not_known(before, now, views, met)
    if before.init and now.proxy is not Proxy.GENERIC:
        if views.initialised(before, met):
            return None
        return Unordered(
            Cause.INIT, Verdict.REVIEW, "fence.mbarrier_init or fence.proxy.async after mbarrier.init"
        )
    writes = before.access.writes or now.access.writes
    if before.proxy is Proxy.GENERIC and writes and now.proxy is not Proxy.GENERIC:
        if views.proxied(memory, before, met):
            return None
        return PROXIES if before.access.writes else OVERTAKES
    return None


def unordered_in_tmem(before: Event, now: Event, views: WarpViews, met: Met) -> Unordered | None:
    """The same of two accesses to tensor memory, all of them tcgen05 operations."""
    assert before.token is not None
    if views.known.fenced >> before.token & 1 or _piped(before, now, views):
        return None
    if not views.knows(before, met):
        if views.known.used >> before.token & 1:
            return USED_ALONE
        return _not_known(before, now, views, met)
    return Unordered(
        Cause.TCGEN05_FENCE,
        Verdict.REVIEW,
        "tcgen05.fence::before_thread_sync and ::after_thread_sync around the synchronisation"
        " (PTX ISA 9.7.16.6.3), which is ordered by release and acquire alone",
    )


def _piped(before: Event, now: Event, views: WarpViews) -> bool:
    """Both are the tensor core's, which takes them up in the order of issue: see above."""
    if before.token is None or before.ins.op not in _PIPED or now.ins.op not in _PIPED:
        return False
    return bool(views.known.piped >> before.token & 1)


_WAITS = {
    "tcgen05.ld": "tcgen05.wait::ld",
    "tcgen05.st": "tcgen05.wait::st",
    "tcgen05.mma": "tcgen05.commit and a wait for its mbarrier",
    "tcgen05.cp": "tcgen05.commit and a wait for its mbarrier",
    "wgmma.mma_async": "wgmma.wait_group",
    "cp.async": "cp.async.wait_group, or cp.async.mbarrier.arrive and a wait",
}


def wait_for(before: Event) -> str:
    """What tells that an asynchronous operation is over."""
    wait = _WAITS.get(before.ins.op)
    if wait is not None:
        return wait
    if not before.ins.has("bulk_group"):
        return "a wait for the copy's mbarrier"
    return "cp.async.bulk.wait_group.read" if before.access is Access.READ else "cp.async.bulk.wait_group"


def _not_known(before: Event, now: Event, views: WarpViews, met: Met) -> Unordered | None:
    if _piped(before, now, views):
        return None
    if before.token is None:
        where = "a barrier" if before.warp != now.warp else "bar.warp.sync or a barrier"
        missing = f"{where} after the first and before the second"
        if views.converged(before, met):
            return Unordered(Cause.CONVERGED, Verdict.REVIEW, missing)
        return Unordered(Cause.RACE, Verdict.ERROR, missing)
    wait = wait_for(before)
    if before.warp != now.warp:
        wait += ", and a barrier from who waits to the second access"
    return Unordered(Cause.IN_FLIGHT, Verdict.ERROR, wait)
