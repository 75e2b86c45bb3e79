# SPDX-License-Identifier: Apache-2.0
"""The events of a barrier protocol, in the order in which one run had them.

An *actor* does its events one after the other. A warp is an actor. So is each asynchronous operation: its
one event is its landing, `after` the event that issued it. An event does its *acts* at one moment:

    Event(0, (Act(Kind.EXPECT, 0x40, 128), Act(Kind.ARRIVE, 0x40, 1)), "warp 0: arrive.expect_tx")

What the warps did is taken as fixed: no order makes a warp take another branch. A loop around try_wait is the
one wait that ended it. The lanes of a warp keep the order that the run had.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """Of an act; `amount` and `size` mean different things to each (`Act`)."""

    INIT = "initialises"
    INVAL = "invalidates"
    ARRIVE = "arrives at"
    INCREMENT = "adds an arrival to"  # cp.async.mbarrier.arrive without .noinc, when it is issued
    EXPECT = "expects bytes at"
    COMPLETE = "completes bytes at"
    WAIT = "waits for"
    JOIN = "joins"  # a named barrier
    LEAVE = "leaves"  # a named barrier, once the round that the actor joined is over
    RELEASE = "releases to"  # a pool: setmaxnreg.dec, tcgen05.dealloc
    ACQUIRE = "acquires from"  # a pool: setmaxnreg.inc, which waits until the pool has enough; tcgen05.alloc
    REQUEST = "requests a cluster by"  # clusterlaunchcontrol.try_cancel of a CTA
    REFUSED = "reads that a request failed by"  # after which a request of that CTA is undefined

    @property
    def waits(self) -> bool:
        return self in (Kind.WAIT, Kind.LEAVE)

    @property
    def counts(self) -> bool:
        """Whether it counts for a phase."""
        return self in (Kind.ARRIVE, Kind.INCREMENT, Kind.EXPECT, Kind.COMPLETE, Kind.JOIN)


class Act(NamedTuple):
    """`amount`: the arrivals that INIT expects and ARRIVE makes, the bytes of EXPECT and COMPLETE, the parity
    that WAIT waits for, the threads that JOIN brings, what RELEASE and ACQUIRE move. `size`: the threads that
    the round of JOIN waits for, by how many ARRIVE lowers what later phases expect (arrive_drop), and what is
    in the pool of RELEASE and ACQUIRE at first."""

    kind: Kind
    barrier: Hashable
    amount: int = 0
    size: int = 0


class Shared(NamedTuple):
    """An mbarrier in the shared memory of the CTA of this rank in its cluster."""

    rank: int
    address: int

    def __str__(self) -> str:
        return f"mbarrier {self.address:#x}" + (f" of the CTA of rank {self.rank}" if self.rank else "")


def rank_of(barrier: Hashable) -> int | None:
    """The rank of the CTA in whose shared memory an mbarrier is; None for another barrier."""
    return barrier.rank if isinstance(barrier, Shared) else None


@dataclass(frozen=True, slots=True)
class Event:
    """Acts of one actor at one moment, after its earlier events and after the events numbered `after`.
    `quiet`: up to its next event, or its end, the actor accesses no memory and issues nothing. `chain`: of
    landings of equal chains the later one is over only once what the earlier one reports is done (commits of
    one warp)."""

    actor: int
    acts: tuple[Act, ...]
    text: str = ""
    after: tuple[int, ...] = ()
    quiet: bool = False
    chain: Hashable = None


@dataclass(slots=True)
class Protocol:
    """Events in the order of the run. `before[e]` are the events that must come directly before event e
    whatever the barriers do: the actor's previous one, and `after`. `ranks`: by actor that is a warp, the
    rank of its CTA in the cluster."""

    events: Sequence[Event]
    ranks: Mapping[int, int] = field(default_factory=dict)
    actors: list[list[int]] = field(init=False)
    before: list[tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.actors = [
            [] for _ in range(1 + max((*self.ranks, *(one.actor for one in self.events)), default=-1))
        ]
        self.before = []
        for number, event in enumerate(self.events):
            if any(earlier >= number for earlier in event.after):
                raise ValueError(f"event {number} is after an event that the run had later: {event.after}")
            if len(event.acts) > 1 and any(act.kind.waits for act in event.acts):
                raise ValueError(f"event {number} waits and does more: a wait is an event of its own")
            earlier = self.actors[event.actor]
            self.before.append((*earlier[-1:], *event.after))
            earlier.append(number)
