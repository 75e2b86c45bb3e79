"""Accesses as the checker remembers them, by number: who, which instruction, in which way."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gdnbench.sim.checker.lanes import MANY
from gdnbench.sim.ptx.ir import Instruction

_STRONG = ("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")


def is_strong(ins: Instruction) -> bool:
    """Whether an access is a strong operation (PTX ISA, "Operation Types"); atomics all are."""
    return ins.op in ("atom", "red") or ins.has(*_STRONG)


class Access(Enum):
    READ = "reads"
    WRITE = "writes"
    ATOMIC = "updates"

    @property
    def writes(self) -> bool:
        return self is not Access.READ


class Proxy(Enum):
    """Through what memory is reached. TENSOR is the async proxy too, in shared memory."""

    GENERIC = "generic"
    ASYNC = "async"
    TENSOR = "tensor"


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """`clock` is the warp's when it did this or set it going; `token` is the bit of an asynchronous
    operation, `operation` its number, both None of what is done when the instruction is. `lane` is who did
    it, MANY of several lanes. `strong`: it may be morally strong to others that are, and then does not race
    with them."""

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


@dataclass(slots=True)
class Events:
    """All that are remembered; number 0 is nobody. An instruction executed again before its warp's clock
    moves is the same event."""

    all: list[Event | None] = field(default_factory=lambda: [None])
    tokens: int = 0
    _latest: dict[tuple[int, int, Access], Event] = field(default_factory=dict)

    def __getitem__(self, number: int) -> Event:
        event = self.all[number]
        assert event is not None
        return event

    def done(
        self,
        warp: int,
        clock: int,
        ins: Instruction,
        access: Access,
        *,
        lane: int = MANY,
        init: bool = False,
    ) -> Event:
        """An access through the generic proxy that is done with its instruction."""
        latest = self._latest.get((warp, ins.pc, access))
        if latest is not None and (latest.clock, latest.lane, latest.init) == (clock, lane, init):
            return latest
        event = self._add(warp, clock, ins, access, Proxy.GENERIC, None, init, None, lane)
        self._latest[warp, ins.pc, access] = event
        return event

    def begun(
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
        """An access of an asynchronous operation; `token` is that of the access, `operation` of all of its
        accesses if there are several."""
        operation = token if operation is None else operation
        return self._add(warp, clock, ins, access, proxy, token, False, operation, lane)

    def token(self) -> int:
        """A bit that is no other operation's."""
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
