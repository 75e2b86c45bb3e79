# SPDX-License-Identifier: Apache-2.0
"""Events: the accesses that the checker remembers, each with its epoch (warp and clock, or token), its
instruction, its kind and its proxy. Shadow memory refers to events by number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import NamedTuple

from gdnbench.sim.checker.lanes import MANY, LaneSubset, lane_of, subset_of
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Warp
from gdnbench.sim.ptx.ir import Instruction
from gdnbench.sim.ptx.literals import width_of

_STRONG = ("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")


def is_strong(ins: Instruction) -> bool:
    """Whether an access is a strong operation (PTX ISA, "Operation Types"). All atomics are."""
    return ins.form.atomic or ins.has(*_STRONG)


def is_async_store(ins: Instruction) -> bool:
    """Whether it is an asynchronous operation of the generic proxy with an mbarrier. The PTX ISA ("Async
    Proxy") lists the operations of the async proxy: bulk copies, wgmma and tcgen05."""
    return ins.op in ("st.async", "red.async")


@cache
def _element_bits(type_name: str) -> frozenset[int]:
    """Bits of the accesses that an access to one element counts as; a packed one also counts as one to each
    of its values (PTX ISA 9.1, 8.2.4 and 8.2.5)."""
    return frozenset((width_of(type_name), width_of(type_name.partition("x")[0])))


class Access(Enum):
    READ = "reads"
    WRITE = "writes"
    ATOMIC = "updates"

    @property
    def writes(self) -> bool:
        return self is not Access.READ


class Proxy(Enum):
    """The proxy through which memory is accessed. For shared memory TENSOR counts as the async proxy."""

    GENERIC = "generic"
    ASYNC = "async"
    TENSOR = "tensor"


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One access. Its epoch is `clock` of `warp` (the warp's own clock at the instruction), or, for an
    asynchronous operation, `token`: the bit of this access; `operation` is then the operation's number. Both
    are None if the access is complete when its instruction is. `lane` is MANY if several lanes made it.
    `init`: it is an mbarrier.init. `strong`: it does not race with other strong accesses whose scope
    includes it."""

    number: int
    warp: int
    clock: int
    ins: Instruction
    access: Access
    proxy: Proxy
    token: int | None = None
    init: bool = False
    operation: int | None = None
    lane: int = MANY
    strong: bool = False


def overlap_completely(before: Event, now: Event) -> bool:
    """Whether two strong accesses that overlap are of one size, as "Morally Strong Operations" asks for (PTX
    ISA 9.1, 8.7). Elements are aligned to their size, so that those of one size overlap completely.
    Atomics exclude one another whatever their sizes ("Limitations on Mixed-size Data-races", 8.7.2). The
    elements of an asynchronous operation are taken to fit."""
    if before.access is now.access is Access.ATOMIC:
        return True
    if not (before.ins.form.in_engine and now.ins.form.in_engine):
        return True
    return not _element_bits(before.ins.types[-1]).isdisjoint(_element_bits(now.ins.types[-1]))


class IssuedInstruction(NamedTuple):
    """An instruction that a warp hands to the machine. `sources` are those of `Cta.issue`."""

    warp: Warp
    ins: Instruction
    lanes: Lanes
    sources: tuple[Argument, ...]

    @property
    def subset(self) -> LaneSubset:
        return subset_of(self.lanes, self.warp.exists)

    @property
    def lane(self) -> int:
        return lane_of(self.lanes)


@dataclass(slots=True)
class EventLog:
    """The events of one CTA by number; number 0 is no event. If a warp repeats an instruction before its
    clock advances, both executions have one epoch and are one event. `tokens` counts the tokens given out."""

    all: list[Event | None] = field(default_factory=lambda: [None])
    tokens: int = 0
    _latest: dict[tuple[int, int, Access], Event] = field(default_factory=dict)

    def __getitem__(self, number: int) -> Event:
        event = self.all[number]
        assert event is not None
        return event

    def record(
        self,
        warp: int,
        clock: int,
        ins: Instruction,
        access: Access,
        *,
        lane: int = MANY,
        init: bool = False,
    ) -> Event:
        """An access through the generic proxy that is complete when its instruction is."""
        latest = self._latest.get((warp, ins.pc, access))
        if latest is not None and (latest.clock, latest.lane, latest.init) == (clock, lane, init):
            return latest
        event = self._add(warp, clock, ins, access, Proxy.GENERIC, None, init, None, lane)
        self._latest[warp, ins.pc, access] = event
        return event

    def record_async(
        self,
        warp: int,
        clock: int,
        ins: Instruction,
        access: Access,
        proxy: Proxy,
        token: int,
        operation: int | None = None,
        lane: int = MANY,
    ) -> Event:
        """An access of an asynchronous operation. `token` is the access's bit; `operation` the number that
        all accesses of the operation share, `token` unless given."""
        operation = token if operation is None else operation
        return self._add(warp, clock, ins, access, proxy, token, False, operation, lane)

    def new_token(self) -> int:
        """The number of a bit that no other operation has."""
        self.tokens += 1
        return self.tokens - 1

    def _add(
        self,
        warp: int,
        clock: int,
        ins: Instruction,
        access: Access,
        proxy: Proxy,
        token: int | None,
        init: bool,
        operation: int | None,
        lane: int,
    ) -> Event:
        strong = access is Access.ATOMIC or is_strong(ins)
        event = Event(len(self.all), warp, clock, ins, access, proxy, token, init, operation, lane, strong)
        self.all.append(event)
        return event
