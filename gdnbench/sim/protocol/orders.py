# SPDX-License-Identifier: Apache-2.0
"""The check of all orders at once, by the happens-before relation of one recorded run.

An example: warp 0 fills the one slot of a ring twice and waits for nothing, warp 1 waits for each fill.

    warp 0    arrive FULL (phase 0)    arrive FULL (phase 1)
    warp 1    wait FULL (phase 0)      wait FULL (phase 1)

Program order and the phases give these edges: arrival 0 -> arrival 1, wait 0 -> wait 1, arrival 0 -> wait 0,
arrival 1 -> wait 1. Nothing puts wait 0 before arrival 1, so both arrivals may come first. Then two phases
are over, the barrier has the parity that it began with, and wait 0 never ends. If warp 1 arrives at EMPTY
behind wait 0, and warp 0 waits for that before its second fill, then wait 0 -> arrive EMPTY -> wait EMPTY ->
arrival 1, and every order is right.

In general the run gives each arrival the phase that it counted for and each wait the phase whose end it saw.
*Happens-before* is the least partial order in which an actor's events follow one another, a landing follows
its issue, and a wait for a phase follows all that counted for it. As long as every act meets the phase that
it met in the run, the events so far are a *consistent cut*: with an event it has all that happen before it.
And a barrier has completed exactly those phases whose acts are all in the cut. So the first act that meets
another phase is one of these:

- an arrival of phase n + 1, unless all acts of phase n happen before it;
- a wait for phase n that its actor can come to while fewer phases are complete, by an even number;
- a wait for phase n that happens before no act of phase n + 1: phase n + 1 can be over before it;
- an act of an mbarrier that does not happen after its init, or not before its inval;
- a request to cancel a cluster, unless it happens before each act by which its CTA reads that one failed.

Each condition is exact, and the smallest consistent cut gives the shortest order. If none holds, no order
stops before its end: of the events that are left, one has no other before it. An arrival can always be done,
and such a wait has its phase complete, and no later one. That replaces the search through states, of which
there are exponentially many, by a pass through the events.

A phase is over as soon as no arrivals and no bytes are pending, which may be before all its acts have been,
if bytes are announced, or an arrival is added, after the last arrival. Where each such announcement happens
before an arrival of its phase, and an added arrival counts for the phase that it was added to, this cannot
be. Elsewhere the plain search decides (`search.py`).

A pool (setmaxnreg, the columns of tensor memory) is a counting semaphore and gives no edge. If no release
happens after an acquire, and the pool holds enough for all acquires, then all releases happen before the
warps that can only wait for the pool, and one of them can go on. Elsewhere the plain search decides, too.

A *drain* is a wait after which its warp does nothing but wait (`drains.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from enum import Enum

from gdnbench.sim.protocol.barriers import Fault
from gdnbench.sim.protocol.drains import drains_of, without
from gdnbench.sim.protocol.events import Kind, Protocol, rank_of
from gdnbench.sim.protocol.machine import Machine
from gdnbench.sim.protocol.search import Broken, Wrong, continued, deviation, search

STATES = 200_000
"""The states of the plain search, where it is needed."""
Phase = tuple[int, int]  # barrier and phase
EventSet = int  # of events: bit e for event e


class Verdict(Enum):
    PROVED = "every order meets the same phases as the run, and none stops"
    BROKEN = "an order meets another phase than the run"
    OPEN = "not proved"


@dataclass(frozen=True, slots=True)
class Checked:
    """`broken` is a wrong order, and no other is shorter if it is `shortest`. One continuation of it ends
    with `then`, or regularly if that is None. `why` gives the reason of a verdict that is not proved. The
    waits `drains` can pass early, which changes nothing. If `broken` is a drain, `exposed` are the landings
    and arrivals at mbarriers of a CTA that can come after it has ended. Those in `late` have a later commit
    of their warp before its end, so that only the arrival itself could be late."""

    verdict: Verdict
    events: int
    broken: Broken | None = None
    then: Broken | None = None
    shortest: bool = True
    why: str = ""
    drains: tuple[int, ...] = ()
    exposed: tuple[int, ...] = ()
    late: tuple[int, ...] = ()


@dataclass(slots=True)
class _Orders:
    """Sets of events that are closed under happens-before. `past[e]` is the least in which e can be next, if
    the barriers let it: what its actor did before, its issue, and all that happens before those. `closure[e]`
    is the least that has e: that, what e waits for, and e."""

    machine: Machine
    past: list[EventSet] = field(default_factory=list)
    closure: list[EventSet] = field(default_factory=list)
    counting: dict[Phase, list[int]] = field(default_factory=lambda: defaultdict(list))
    waiting: dict[Phase, list[int]] = field(default_factory=lambda: defaultdict(list))
    releases: list[int] = field(default_factory=list)
    acquires: list[int] = field(default_factory=list)
    inits: dict[int, int] = field(default_factory=dict)
    invals: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        machine, full = self.machine, dict[Phase, EventSet]()
        for number, acts in enumerate(machine.acts):
            past = _union(self.closure[one] for one in machine.protocol.before[number])
            closure = past | 1 << number
            for (act, at), phase in zip(acts, machine.phases[number], strict=True):
                key = at, phase
                if act.kind.counts and number not in self.counting[key]:
                    self.counting[key].append(number)
                elif act.kind.waits:
                    self.waiting[key].append(number)
                    if key not in full:  # in the run all that counts for it has been
                        full[key] = self.all_of(key)
                    closure |= full[key]
                elif act.kind is Kind.RELEASE:
                    self.releases.append(number)
                elif act.kind is Kind.ACQUIRE:
                    self.acquires.append(number)
                elif act.kind is Kind.INIT:
                    self.inits[at] = number
                elif act.kind is Kind.INVAL:
                    self.invals[at] = number
            self.past.append(past)
            self.closure.append(closure)

    def all_of(self, phase: Phase) -> EventSet:
        """All that counts for a phase, and what happens before it."""
        return _union(self.closure[one] for one in self.counting.get(phase, ()))


def _union(sets: Iterable[EventSet]) -> EventSet:
    found = 0
    for one in sets:
        found |= one
    return found


def check(protocol: Protocol, states: int = STATES) -> Checked:
    """Check all orders of a run in which every warp came to its end. Raises ValueError if the events are no
    run. `states` bounds the plain search, where it is needed."""
    drains, passed = drains_of(protocol), set[int]()
    exposed: EventSet | None = None
    last: Checked | None = None
    while True:
        orders = _Orders(Machine(protocol))
        after_exit = _after_exit(orders)
        exposed = after_exit if exposed is None else exposed
        late = _chained(orders, after_exit & ~exposed)
        unguarded = after_exit & ~late
        checked, early = _judged(orders, states, drains - passed)
        if last is not None and last.broken is not None and unguarded & ~exposed:
            found = tuple(_members(unguarded & ~exposed))
            return replace(last, exposed=found, drains=tuple(sorted(passed - {last.broken.order[-1]})))
        if not early:
            return replace(checked, drains=tuple(sorted(passed)), late=tuple(_members(late)))
        last = checked
        passed |= early
        protocol = without(protocol, early)


def _judged(orders: _Orders, states: int, drains: Set[int]) -> tuple[Checked, set[int]]:
    """What is found, first of what is no drain; if that is a drain, all drains that can pass early."""
    machine = orders.machine
    candidates = list(_broken(orders))
    early = {one.last[-1] for one in candidates if _drains_early(machine, one.wrong, one.last, drains)}
    found = min(
        candidates,
        key=lambda one: (
            one.waiter is None and one.last[-1] in early,
            one.events.bit_count() + len(one.last),
        ),
        default=None,
    )
    count = len(machine.protocol.events)
    doubt = _may_end_early(orders) or _may_wait_for_pool(orders)
    broken = None if found is None else _replayed(machine, found)
    shortest = doubt is None
    if found is not None and broken is None and orders.releases:  # one of its events waits for the pool
        shortest, broken = False, _replayed(machine, _with_releases(orders, found))
    if doubt is not None:
        searched = search(machine, states)
        shortest = searched.complete
        if searched.complete:
            broken = searched.broken
        elif broken is None:
            event, reason = doubt
            why = f"{machine.protocol.events[event].text}: {reason}; {states} states were too few"
            return Checked(Verdict.OPEN, count, why=why), set()
    if broken is None and found is not None and doubt is None:
        assert orders.releases, found
        text = machine.protocol.events[found.last[-1] if found.waiter is None else found.waiter].text
        why = f"{text}: {found.wrong.value}, unless a wait for a pool prevents it"
        return Checked(Verdict.OPEN, count, why=why), set()
    if broken is None:
        return Checked(Verdict.PROVED, count), set()
    checked = Checked(Verdict.BROKEN, count, broken, continued(machine, broken), shortest)
    if not _drains_early(machine, broken.wrong, broken.order, drains):
        return checked, set()
    return checked, early | {broken.order[-1]}


def _drains_early(machine: Machine, wrong: Wrong, order: tuple[int, ...], drains: Set[int]) -> bool:
    """Whether the order ends with a drain that passes early, of a phase that is the last that is over: the
    drain passes at the latest when all others have come to their ends."""
    if wrong is not Wrong.PREMATURE or order[-1] not in drains:
        return False
    ((_, at),), (phase,) = machine.acts[order[-1]], machine.phases[order[-1]]
    return machine.last[at].phase == phase + 1


def _after_exit(orders: _Orders) -> EventSet:
    """The landings and the arrivals of other CTAs' warps at mbarriers of a CTA that need not be before the
    end of one of its warps."""
    protocol, ends, found = orders.machine.protocol, dict[int, EventSet](), 0
    for actor, rank in protocol.ranks.items():
        last = orders.closure[protocol.actors[actor][-1]] if protocol.actors[actor] else 0
        ends[rank] = ends.get(rank, 0) | last
    for number, event in enumerate(protocol.events):
        own = protocol.ranks.get(event.actor)
        ranks = {rank_of(act.barrier) for act in event.acts} - {None, own}
        if any(not ends.get(rank, 0) >> number & 1 for rank in ranks if rank is not None):
            found |= 1 << number
    return found


def _chained(orders: _Orders, events: EventSet) -> EventSet:
    """Those of these landings that a later landing of their chain follows which is before the CTA's end."""
    protocol, later, found = orders.machine.protocol, set[Hashable](), 0
    after_exit = _after_exit(orders)
    for number in range(len(protocol.events) - 1, -1, -1):
        chain = protocol.events[number].chain
        if chain is None:
            continue
        if events >> number & 1 and chain in later:
            found |= 1 << number
        if not after_exit >> number & 1:
            later.add(chain)
    return found


def _may_wait_for_pool(orders: _Orders) -> tuple[int, str] | None:
    """An acquire that may have to wait for a release that happens after it; None if all can go on."""
    acts, total, size = orders.machine.acts, dict[int, int](), dict[int, int]()
    for act, at in (one for event in orders.acquires for one in acts[event]):
        total[at] = total.get(at, 0) + act.amount
        size[at] = act.size
    enough = {at for at in total if total[at] <= size[at]}
    acquires = _mask(event for event in orders.acquires if acts[event][0][1] not in enough)
    for event in orders.releases:
        for earlier in _members(orders.past[event] & acquires):
            if {at for _, at in acts[event]} & {at for _, at in acts[earlier]}:
                return earlier, "it may wait for what others release later"
    return None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The events of the set in the order of the run, then `last`."""

    wrong: Wrong
    events: EventSet
    last: tuple[int, ...] = ()
    waiter: int | None = None


def _broken(orders: _Orders) -> Iterator[_Candidate]:
    yield from _of_other_phases(orders)
    yield from _wrong_waits(orders)
    yield from _outside_lifetime(orders)
    yield from _late_requests(orders)


def _of_other_phases(orders: _Orders) -> Iterator[_Candidate]:
    """Arrivals that can come in the phase before theirs."""
    for (at, phase), events in orders.counting.items():
        earlier = _mask(orders.counting.get((at, phase - 1), ()))
        for event in events:
            if earlier & ~orders.past[event] & ~(1 << event):
                yield _Candidate(Wrong.OTHER_PHASE, orders.past[event], (event,))


def _wrong_waits(orders: _Orders) -> Iterator[_Candidate]:
    masks = {key: _mask(events) for key, events in orders.counting.items()}
    until: dict[Phase, EventSet] = defaultdict(int)  # what all phases up to this one need
    for at, phase in sorted(masks):
        until[at, phase] = until[at, phase - 1] | orders.all_of((at, phase))
    for (at, phase), events in orders.waiting.items():
        for event in events:
            if orders.machine.acts[event][0][0].kind is not Kind.WAIT:
                continue
            past = orders.past[event]
            seen = phase + 1
            while seen > 0 and masks[at, seen - 1] & ~past:
                seen -= 1
            seen += (phase + 1 - seen) % 2
            if seen < phase + 1:
                yield _Candidate(Wrong.PREMATURE, past | until[at, seen - 1], (event,))
            following = until[at, phase + 1]
            if orders.machine.last[at].phase >= phase + 2 and not following >> event & 1:
                yield _Candidate(Wrong.MISSED, following, waiter=event)


def _outside_lifetime(orders: _Orders) -> Iterator[_Candidate]:
    for event, acts in enumerate(orders.machine.acts):
        past = orders.past[event]
        for act, at in acts:
            if act.kind is Kind.INIT:
                before = orders.machine.previous.get(at)
                first = None if before is None else orders.invals[before]
            else:
                first = orders.inits.get(at)
            if first is not None and not past >> first & 1:
                yield _Candidate(Wrong.FAULT, past, (event,))
            last = orders.invals.get(at)
            if last is not None and last != event and not orders.past[last] >> event & 1:
                yield _Candidate(Wrong.FAULT, past | orders.past[last], (last, event))


def _late_requests(orders: _Orders) -> Iterator[_Candidate]:
    """Requests that can come after their CTA has read that one failed."""
    requests, refused = dict[int, list[int]](), list[tuple[int, int]]()
    for event, acts in enumerate(orders.machine.acts):
        for act, at in acts:
            if act.kind is Kind.REQUEST:
                requests.setdefault(at, []).append(event)
            elif act.kind is Kind.REFUSED:
                refused.append((event, at))
    for reads, at in refused:
        for event in requests.get(at, ()):
            if not orders.past[reads] >> event & 1:
                before = orders.past[event] | orders.past[reads]
                yield _Candidate(Wrong.FAULT, before, (reads, event))


_PARTLY = "its phase may be over before it"


def _may_end_early(orders: _Orders) -> tuple[int, str] | None:
    """An event of a phase that may be over before all its acts have been (see above); None if none may."""
    acts = orders.machine.acts
    for (at, phase), events in orders.counting.items():
        last = orders.machine.last[at]
        over = last.phase > phase
        increments = [
            e for e in events if any(act.kind is Kind.INCREMENT and where == at for act, where in acts[e])
        ]
        if not over and not increments and last.pending:
            continue  # its arrivals were too few, whatever the bytes
        if not over and last.tx < 0:
            return events[0], _PARTLY  # the sum of some of its bytes may be 0
        by_itself = [e for e in events if _arrives_by_itself(orders.machine, e, at)]
        added = sum(
            act.amount
            for e in set(events) - set(by_itself)
            for act, where in acts[e]
            if act.kind is Kind.ARRIVE and where == at
        )
        if added != sum(act.amount for e in increments for act, where in acts[e] if where == at):
            # An added arrival counts for another phase than its own.
            return (increments[0] if increments else events[0]), _PARTLY
        arrivals = _union(orders.past[e] for e in by_itself)
        for event in events:
            kinds = [act.kind for act, where in acts[event] if where == at]
            announces = Kind.EXPECT in kinds or Kind.INCREMENT in kinds
            follows = Kind.ARRIVE in kinds and kinds.index(Kind.ARRIVE) > kinds.index(
                Kind.EXPECT if Kind.EXPECT in kinds else kinds[0]
            )
            if announces and not follows and not arrivals >> event & 1:
                return event, _PARTLY
    return None


def _arrives_by_itself(machine: Machine, event: int, at: int) -> bool:
    """Whether the arrival is one that mbarrier.init counts, not one that EXTRA has added."""
    added = any(
        act.kind is Kind.INCREMENT and where == at
        for one in machine.protocol.events[event].after
        for act, where in machine.acts[one]
    )
    return not added and any(act.kind is Kind.ARRIVE and where == at for act, where in machine.acts[event])


def _replayed(machine: Machine, found: _Candidate) -> Broken | None:
    """The order, if it is wrong at its last event and not before; it can be otherwise only where a phase can
    end early."""
    order = (*_members(found.events & ~_mask(found.last)), *found.last)
    state = machine.start()
    for place, event in enumerate(order):
        final = place == len(order) - 1
        try:
            stepped = machine.step(state, event)
        except Fault as fault:
            return Broken(Wrong.FAULT, order, text=str(fault)) if final else None
        if stepped is None:
            return None
        differs = deviation(machine, state, event, *stepped)
        if differs is not None:
            return Broken(differs[0], order, differs[1]) if final else None
        state = stepped[0]
    return None


def _with_releases(orders: _Orders, found: _Candidate) -> _Candidate:
    """The candidate with the releases that pools need before its events can acquire from them: of those that
    do not need its last event or the wait that is missed, those that need the fewest further events."""
    kept = _mask(found.last) if found.waiter is None else 1 << found.waiter
    events = found.events
    possible = {one for one in orders.releases if not orders.closure[one] & kept}
    while (pool := _lacking(orders.machine, _members(events))) is not None:
        more = [one for one in possible if any(at == pool for _, at in orders.machine.acts[one])]
        more = [one for one in more if not events >> one & 1]
        if not more:
            break
        events |= orders.closure[
            min(more, key=lambda one: ((orders.closure[one] & ~events).bit_count(), one))
        ]
    return replace(found, events=events)


def _lacking(machine: Machine, order: Iterable[int]) -> int | None:
    """The first pool that has not enough for an event of this order; None if all have."""
    left = dict[int, int]()
    for event in order:
        for act, at in machine.acts[event]:
            if act.kind in (Kind.RELEASE, Kind.ACQUIRE):
                change = act.amount if act.kind is Kind.RELEASE else -act.amount
                left[at] = left.get(at, act.size) + change
                if left[at] < 0:
                    return at
    return None


def _mask(events: Iterable[int]) -> EventSet:
    return _union(1 << one for one in events)


def _members(events: EventSet) -> Iterator[int]:
    while events:
        low = events & -events
        yield low.bit_length() - 1
        events ^= low
