# SPDX-License-Identifier: Apache-2.0
"""The happens-before rule: whether one access is ordered after an earlier one, and what is missing if not.

PTX ISA: "Memory Consistency Model" (causality order), "Proxies", 9.7.16.6 (tcgen05). The later access is
ordered if its warp's clocks (`vector_clocks.ClockSet`) contain the epoch of the earlier one:

    earlier access             later access              ordered if contained in
    strong access              strong, same proxy, size  (no clock: strong accesses do not race)
    anything                   a generic access          base
    mbarrier.init              an async access           base and mbarrier_inits; base alone: review
    generic write              an async access           base and async_proxy; base alone: error
    generic read               an async write            base and async_proxy; base alone: review
    async access               an async access           base
    tcgen05 operation          a tcgen05 operation       tcgen05_fenced; base alone: review
    product or copy            a product or copy         the same, or tensor_pipe

A pair is reported for review if the ISA leaves its order open. Besides the rows for mbarrier.init and for
generic reads, these are:

- Lanes of one warp. bar.warp.sync and barriers order memory among the lanes that take part. In shfl.sync,
  elect.sync and .aligned instructions lanes wait for one another; the ISA does not say that this orders
  memory. If only such an instruction separates the two accesses, the pair is for review.
- tcgen05.ld without a wait. Once an instruction uses a register that the load writes, the load has read
  tensor memory. The ISA (9.7.16.6.4.5) orders that use after the load, and does not say that it orders other
  memory accesses. If a later access follows the load only by such a use, the pair is for review.
- Stores of equal bits. Weak stores of one size to the same shared memory, which left the same bits in this
  run, race; but a read that is ordered after both returns these bits (`stored_values.py`).
- A wgmma for which another of its four warps has waited. The ISA speaks of a warpgroup's operation, and of
  the groups that "the executing threads" have committed. In clusters CUTLASS's PipelineTmaAsync frees a stage
  by one thread of a warpgroup, without a barrier of its four warps.
- No tcgen05 fence. An access contained in base and not in tcgen05_fenced is ordered by the release and
  acquire of an mbarrier or barrier alone. The ISA says that the standard model applies to tcgen05 too
  (9.7.16.6.3), and shows no pattern without the fence.

One assumption: products (tcgen05.mma) and copies (tcgen05.cp) of the tensor core run in the order of issue.
The ISA promises this for five pairs only (9.7.16.6.2): products of one shape into one accumulator, a copy
before a product, and three with tcgen05.shift. Kernels and compilers that overwrite an operand by the next
copy make the same assumption.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gdnbench.sim.checker.events import Access, Event, Proxy, overlap_completely
from gdnbench.sim.checker.lanes import MANY, UNSURE
from gdnbench.sim.checker.vector_clocks import LanePairs, WarpClocks
from gdnbench.sim.ptx.forms import Until


class Cause(Enum):
    """Why two accesses are not ordered. The values are stored in JSON and accept files."""

    RACE = "race"
    EQUAL_STORES = "stores of equal bits"
    CONVERGED = "a collective alone"
    PROXY = "no proxy fence"
    INIT = "no fence of an mbarrier's initialisation"
    TCGEN05_FENCE = "no tcgen05 fence"
    IN_FLIGHT = "operation in flight"
    NO_WAIT = "no tcgen05.wait::ld"
    CTAS = "CTAs race"
    CLUSTER = "CTAs of a cluster race"
    LAUNCHES = "launches race"
    PHASES = "two phases behind"
    ROUNDS = "two rounds of a barrier"


class Verdict(Enum):
    ERROR = "error"
    REVIEW = "review"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Unordered:
    """Why a pair is not ordered. `missing` is the synchronisation that would order it: a message reads
    "..., without {missing}"."""

    cause: Cause
    verdict: Verdict
    missing: str


class LanePair(NamedTuple):
    """The lanes of two accesses that met at one cell. Implements `vector_clocks.LanePairs`."""

    before: int
    now: int

    @classmethod
    def of_events(cls, before: Event, now: Event) -> LanePair:
        """The lanes of the events, UNSURE where an event is of several lanes."""
        lanes = (UNSURE if event.lane == MANY else event.lane for event in (before, now))
        return cls(*lanes)

    def same_lane(self) -> bool:
        return self.before == self.now != MANY

    def lane_pairs(self) -> tuple[tuple[int, int]]:
        return ((self.before, self.now),)


USED_ALONE = Unordered(
    Cause.NO_WAIT, Verdict.REVIEW, "tcgen05.wait::ld: nothing follows the load but a use of its registers"
)

CLUSTER_MISSING = (
    "barrier.cluster, or an arrival at an mbarrier and a wait, after the first and before the second"
)

PROXIES = Unordered(Cause.PROXY, Verdict.ERROR, "fence.proxy.async between the two")
# Copies were seen to overtake loads of what they overwrite (DeepEP, pull 642); CUTLASS has no such fence.
OVERTAKES = Unordered(
    Cause.PROXY,
    Verdict.REVIEW,
    "fence.proxy.async between the read and what overwrites it",
)


def unordered(before: Event, now: Event, clocks: WarpClocks, memory: str, met: LanePairs) -> Unordered | None:
    """The happens-before rule for shared and global memory: None if `now`, an access of the warp of `clocks`,
    is ordered after `before`; else what is missing. `met` are the lanes of the two."""
    if before.strong and now.strong and _morally_strong(before, now, clocks):
        return None  # they do not race
    if before.init and clocks.init_visible(before, met):
        return None  # fence.mbarrier_init releases it, whatever follows
    if not clocks.ordered_after(before, met):
        return _not_known(before, now, clocks, met)
    if before.init and now.proxy is not Proxy.GENERIC:
        if clocks.init_visible(before, met):
            return None
        return Unordered(
            Cause.INIT, Verdict.REVIEW, "fence.mbarrier_init or fence.proxy.async after mbarrier.init"
        )
    writes = before.access.writes or now.access.writes
    if before.proxy is Proxy.GENERIC and writes and now.proxy is not Proxy.GENERIC:
        if clocks.visible_to_async_proxy(memory, before, met):
            return None
        return PROXIES if before.access.writes else OVERTAKES
    return None


def _morally_strong(before: Event, now: Event, clocks: WarpClocks) -> bool:
    """Whether two strong accesses are so relative to each other: "Morally Strong Operations" (PTX ISA 9.1,
    8.7)."""
    return (
        before.proxy is now.proxy and _scopes_include(before, now, clocks) and overlap_completely(before, now)
    )


def _scopes_include(before: Event, now: Event, clocks: WarpClocks) -> bool:
    """Whether the scopes of two strong accesses include each other's CTA: those of one CTA always do, those
    of two CTAs of a cluster unless one is `.cta`."""
    return clocks.same_cta(before) or not (before.ins.has("cta") or now.ins.has("cta"))


def unordered_in_tmem(before: Event, now: Event, clocks: WarpClocks, met: LanePairs) -> Unordered | None:
    """The same rule for tensor memory, which only tcgen05 operations access."""
    assert before.token is not None
    if clocks.all_lanes.tcgen05_fenced >> before.token & 1 or _in_tensor_pipe_order(before, now, clocks):
        return None
    if not clocks.ordered_after(before, met):
        if clocks.all_lanes.loads_used >> before.token & 1:
            return USED_ALONE
        return _not_known(before, now, clocks, met)
    return Unordered(
        Cause.TCGEN05_FENCE,
        Verdict.REVIEW,
        "tcgen05.fence::before_thread_sync and ::after_thread_sync around the synchronisation"
        " (PTX ISA 9.7.16.6.3): the pair is ordered by release and acquire alone",
    )


def _in_tensor_pipe_order(before: Event, now: Event, clocks: WarpClocks) -> bool:
    """Whether both are products or copies of the tensor core, which runs them in the order of issue: see the
    assumption above."""
    piped = before.ins.form.until is now.ins.form.until is Until.TENSOR_COMMIT
    if before.token is None or not piped:
        return False
    return bool(clocks.all_lanes.tensor_pipe >> before.token & 1)


def completion_wait(before: Event) -> str:
    """The wait that completes an asynchronous operation, as text for a message."""
    until = before.ins.form.until
    return (
        f"{until.value}.read" if until is Until.BULK_GROUP and before.access is Access.READ else until.value
    )


def _not_known(before: Event, now: Event, clocks: WarpClocks, met: LanePairs) -> Unordered | None:
    """What is missing for a pair that `base` does not order; None if the tensor core's order covers it."""
    if _in_tensor_pipe_order(before, now, clocks):
        return None
    if before.token is None and not clocks.same_cta(before):
        return Unordered(Cause.CLUSTER, Verdict.ERROR, CLUSTER_MISSING)
    if before.token is None:
        where = "a barrier" if before.warp != now.warp else "bar.warp.sync or a barrier"
        missing = f"{where} after the first and before the second"
        if clocks.ordered_by_convergence(before, met):
            return Unordered(Cause.CONVERGED, Verdict.REVIEW, missing)
        return Unordered(Cause.RACE, Verdict.ERROR, missing)
    wait = completion_wait(before)
    if clocks.all_lanes.parts_waited >> before.token & 1:
        wait += " of the warp itself: another one of its warpgroup has waited"
        return Unordered(Cause.IN_FLIGHT, Verdict.REVIEW, wait)
    if before.warp != now.warp:
        wait += ", and a barrier from the waiting warp to the second's warp"
    return Unordered(Cause.IN_FLIGHT, Verdict.ERROR, wait)
