"""Whether one access is ordered after another, and if not, what would have ordered them.

PTX ISA: "Memory Consistency Model" (causality order), "Proxies", 9.7.16.6 (tcgen05). By who did what before:

    before                     now                       ordered if known in
    anything                   a generic access          base
    generic write              an async access           base, and proxied
    generic read               an async access           base
    async access               an async access           base
    tcgen05 operation          a product or copy         base and fenced, or piped: the tensor core's order
    tcgen05 operation          tcgen05.ld, .st           base and fenced

A tcgen05.ld that no wait covers has read its cells once a register that it loads was used. The ISA
(9.7.16.6.4.5) orders such a use and no access to memory: what only that orders is for review.

What is in base and not in fenced is ordered by the release and acquire of an mbarrier or barrier alone. The
ISA says that the standard model serves tcgen05 too (9.7.16.6.3) and shows no pattern without the fence, so
that such a pair is for review.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gdnbench.sim.checker.events import Access, Event, Proxy
from gdnbench.sim.checker.views import View, WarpViews


class Cause(Enum):
    """Why two accesses are not ordered."""

    RACE = "race"
    PROXY = "no proxy fence"
    INIT = "no fence of an mbarrier's initialisation"
    TCGEN05_FENCE = "no tcgen05 fence"
    IN_FLIGHT = "operation in flight"
    NO_WAIT = "no tcgen05.wait::ld"
    CTAS = "CTAs race"
    PHASES = "two phases behind"


class Verdict(Enum):
    ERROR = "error"
    REVIEW = "review"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Unordered:
    cause: Cause
    verdict: Verdict
    missing: str


USED_ALONE = Unordered(
    Cause.NO_WAIT, Verdict.REVIEW, "tcgen05.wait::ld: nothing follows the load but a use of its registers"
)

_PIPED = ("tcgen05.mma", "tcgen05.cp", "tcgen05.shift")


def unordered(before: Event, now: Event, views: WarpViews, memory: str) -> Unordered | None:
    """None if `now`, which the warp of `views` does or sets going, is ordered after `before`, both in
    `memory`, shared or global."""
    if before.access is Access.ATOMIC and now.access is Access.ATOMIC:
        return None
    known = views.known
    if not _knows(known.base, before, views.index):
        if _piped(before, now, views):
            return None
        return _not_known(before, now)
    if before.init and now.proxy is not Proxy.GENERIC:
        if known.inits.clocks[before.warp] >= before.clock:
            return None
        return Unordered(
            Cause.INIT, Verdict.REVIEW, "fence.mbarrier_init or fence.proxy.async after mbarrier.init"
        )
    if before.proxy is Proxy.GENERIC and before.access.writes and now.proxy is not Proxy.GENERIC:
        if _knows(known.proxied[memory], before, None):
            return None
        return Unordered(Cause.PROXY, Verdict.ERROR, "fence.proxy.async between the two")
    return None


def unordered_in_tmem(before: Event, now: Event, views: WarpViews) -> Unordered | None:
    """The same of two accesses to tensor memory, all of them tcgen05 operations."""
    assert before.token is not None
    if views.known.fenced >> before.token & 1 or _piped(before, now, views):
        return None
    if not _knows(views.known.base, before, views.index):
        return USED_ALONE if views.known.used >> before.token & 1 else _not_known(before, now)
    return Unordered(
        Cause.TCGEN05_FENCE,
        Verdict.REVIEW,
        "tcgen05.fence::before_thread_sync and ::after_thread_sync around the synchronisation"
        " (PTX ISA 9.7.16.6.3), which is ordered by release and acquire alone",
    )


def _knows(view: View, event: Event, own: int | None) -> bool:
    if event.token is not None:
        return bool(view.tokens >> event.token & 1)
    return event.warp == own or view.clocks[event.warp] >= event.clock


def _piped(before: Event, now: Event, views: WarpViews) -> bool:
    """Both are the tensor core's, which takes them up in the order of issue (PTX ISA 9.7.16.6.2)."""
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


def _not_known(before: Event, now: Event) -> Unordered:
    if before.token is None:
        where = "a barrier" if before.warp != now.warp else "an ordering"
        return Unordered(Cause.RACE, Verdict.ERROR, f"{where} after the first and before the second")
    wait = wait_for(before)
    if before.warp != now.warp:
        wait += ", and a barrier from who waits to the second access"
    return Unordered(Cause.IN_FLIGHT, Verdict.ERROR, wait)
