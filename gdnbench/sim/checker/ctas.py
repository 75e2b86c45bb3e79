"""Whether an access to global memory is ordered after one of another CTA, and if not, what is missing.

PTX ISA, "Causality order": base causality order goes through the program order of a thread, barriers of a
CTA and releases that another acquires (`sync_variables.py`), through as many as there are. Beyond it:

    before                     now                       has to be ordered, and
    strong, of a wide scope    the same, by its proxy    nothing: they do not race ("Data Races", "Morally
                                                         Strong Operations")
    a generic write            an async access           a fence.proxy.async on the way, in either CTA
    an async access            any access                to be waited for: its end has a proxy fence of its
                                                         own, so that no other is needed ("Async Proxy")
"""

from __future__ import annotations

from gdnbench.sim.checker.abroad import Abroad
from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.happens_before import Cause, Unordered, Verdict, wait_for
from gdnbench.sim.checker.load_store import is_wide
from gdnbench.sim.checker.sync_variables import Nearly

ALONE = Unordered(
    Cause.CTAS, Verdict.ERROR, "bytes of its own for each CTA: nothing orders the CTAs of this kernel"
)
_RELEASE = "a release of another CTA's scope after the first"
_ACQUIRE = "an acquire of what was released after the first"


def unordered_between(
    before: Event, cta: int, now: Event, abroad: Abroad, nearly: Nearly
) -> Unordered | None:
    """None if `now`, of a warp that knows `abroad`, is ordered after `before`, which is of the CTA `cta`."""
    if _strong(before) and _strong(now) and before.proxy is now.proxy:
        return None
    known = abroad.ctas.get(cta)
    if known is not None and known.has(before):
        if known.reaches(before, now.proxy):
            return None
        return Unordered(Cause.PROXY, Verdict.ERROR, "fence.proxy.async between the two")
    if known is not None and known.ran(before):
        return Unordered(Cause.IN_FLIGHT, Verdict.ERROR, f"{wait_for(before)}, before the release")
    return Unordered(Cause.CTAS, Verdict.ERROR, _missing(before, cta, nearly))


def _missing(before: Event, cta: int, nearly: Nearly) -> str:
    def ran(abroad: Abroad) -> bool:
        known = abroad.ctas.get(cta)
        return known is not None and known.ran(before)

    if ran(nearly.acquired):
        return "a barrier from who acquired what the first released, to the second"
    if ran(nearly.released):
        return f"{_ACQUIRE}: .acquire, or a fence after the strong read, of scope .gpu or .sys"
    if ran(nearly.written):
        return (
            f"{_RELEASE}: .release, or a fence before the strong write, of scope .gpu or .sys, and a barrier"
            " before it if it is another warp's"
        )
    return f"{_RELEASE}, and an acquire of it before the second"


def _strong(event: Event) -> bool:
    """Of a scope that has other CTAs in it. Bulk reductions are `.relaxed.gpu` (PTX ISA,
    "cp.reduce.async.bulk")."""
    return event.strong and is_wide(event.ins)
