"""Named barriers 0 to 15 and the pool of registers that warps pass on with setmaxnreg.

A barrier counts warps, not threads: a warp arrives once all its threads that have not exited did (PTX ISA,
"bar, barrier"). Without a thread count it waits for every warp of the CTA that has not exited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.budget import MAX_THREADS
from gdnbench.sim.machine.engine_interface import LANES, Argument, Handler, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.operands import constant, one, uniform
from gdnbench.sim.ptx.ir import Instruction

if TYPE_CHECKING:
    from gdnbench.sim.machine.cta import Cta

BARRIERS = 16
REGISTERS_STEP = 8
REGISTERS_MIN = 24
REGISTERS_MAX = 256


@dataclass(slots=True, eq=False, weakref_slot=True)
class Round:
    """One use of a barrier, from the first arrival to the release. `threads` is None for all of the CTA."""

    threads: int | None
    arrivals: int = 0
    warps: set[int] = field(default_factory=set)
    partial: dict[int, Lanes] = field(default_factory=dict)
    votes: int = 0
    voters: int = 0
    done: bool = False


class NamedBarriers:
    """The barriers of one CTA."""

    def __init__(self, warps: int) -> None:
        self.live = set(range(warps))
        self.rounds: dict[int, Round] = {}

    def arrive(self, index: int, threads: int | None, warp: Warp, lanes: Lanes, votes: int = 0) -> Round:
        """Lanes of a warp arrive; the round is done once everybody it waits for has."""
        if not 0 <= index < BARRIERS:
            raise KernelFault(FaultKind.BARRIER, f"barrier {index}; there are {BARRIERS}")
        if threads is not None and (not LANES <= threads <= MAX_THREADS or threads % LANES):
            raise KernelFault(
                FaultKind.BARRIER,
                f"barrier {index} for {threads} threads, no multiple of {LANES} up to {MAX_THREADS}",
            )
        use = self.rounds.setdefault(index, Round(threads))
        if use.threads != threads:
            raise KernelFault(
                FaultKind.BARRIER,
                f"barrier {index} for {_threads(threads)} threads, "
                f"where others wait for {_threads(use.threads)}",
            )
        use.votes += votes
        use.voters += int(np.count_nonzero(lanes))
        earlier = use.partial.pop(warp.index, None)
        present = lanes if earlier is None else lanes | earlier
        if (warp.exists & ~present).any():
            use.partial[warp.index] = present.copy()
            return use
        use.arrivals += 1
        use.warps.add(warp.index)
        self._settle(index, use)
        return use

    def exited(self, warp: int) -> None:
        """A warp has exited: barriers for all of the CTA no longer wait for it (PTX ISA, "exit")."""
        self.live.discard(warp)
        for index, use in list(self.rounds.items()):
            self._settle(index, use)

    def _settle(self, index: int, use: Round) -> None:
        met = self.live <= use.warps if use.threads is None else use.arrivals * LANES == use.threads
        if met:
            use.done = True
            del self.rounds[index]

    def describe(self, index: int, use: Round) -> str:
        """What a wait at barrier `index` waits for."""
        if use.threads is None:
            return f"barrier {index}: warps {sorted(self.live - use.warps)} have not arrived"
        return f"barrier {index}: {use.arrivals * LANES} of {use.threads} threads have arrived"


def _threads(count: int | None) -> str:
    return "all" if count is None else str(count)


@dataclass(slots=True)
class BarrierWait(Wait):
    """A wait that remembers the round it waits for."""

    use: Round = field(default_factory=lambda: Round(None))


def _barrier(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results | Wait:
    """sync, arrive and red in all spellings."""
    reduces = ins.op.endswith("red")
    arrives = ins.op.endswith("arrive")
    if isinstance(previous, BarrierWait):
        return _reduced(ins, previous.use) if reduces else ()
    index = uniform(sources[0], lanes, "the barrier's number") & 0xFFFF_FFFF
    numbers = sources[1:-1] if reduces else sources[1:]
    threads = uniform(numbers[0], lanes, "the barrier's thread count") & 0xFFFF_FFFF if numbers else None
    if arrives and threads is None:
        raise KernelFault(FaultKind.BARRIER, f"{ins.name} without a thread count")
    votes = int((one(sources[-1])[lanes] & np.uint64(1)).sum()) if reduces else 0
    use = cta.barriers.arrive(index, threads, warp, lanes, votes)
    if arrives:
        return ()
    if use.done:
        return _reduced(ins, use) if reduces else ()
    return BarrierWait(lambda: use.done, lambda: cta.barriers.describe(index, use), use=use)


def _reduced(ins: Instruction, use: Round) -> Results:
    """The result of bar.red over the threads that took part."""
    if ins.has("popc"):
        return (constant(use.votes),)
    return (constant(use.votes == use.voters if ins.has("and") else use.votes > 0),)


class RegisterPool:
    """The registers that warps of a CTA gave back. `per_thread` is what each thread starts with, None if
    unknown: then any request is granted."""

    def __init__(self, per_thread: int | None) -> None:
        self.initial = per_thread if per_thread is None else -(-per_thread // REGISTERS_STEP) * REGISTERS_STEP
        self.free = 0
        self._held: dict[int, int] = {}

    def held(self, warp: int) -> int:
        """Registers of each thread of `warp`."""
        assert self.initial is not None
        return self._held.get(warp, self.initial)

    def take(self, warp: int, count: int) -> bool:
        """Move `warp` to `count` registers a thread; false if the pool has too few."""
        change = count - self.held(warp)
        if change > self.free:
            return False
        self.free -= change
        self._held[warp] = count
        return True


def _setmaxnreg(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results | Wait:
    """PTX ISA, "setmaxnreg": dec gives registers to the CTA's pool, inc waits until the pool has enough."""
    count = uniform(sources[0], lanes, "the register count")
    if not REGISTERS_MIN <= count <= REGISTERS_MAX or count % REGISTERS_STEP:
        raise KernelFault(
            FaultKind.BUDGET,
            f"{ins.name} {count}: no multiple of {REGISTERS_STEP} from {REGISTERS_MIN} to {REGISTERS_MAX}",
        )
    pool = cta.pool
    if pool.initial is None:
        return ()
    held = pool.held(warp.index)
    if (ins.op.endswith("dec") and count > held) or (ins.op.endswith("inc") and count < held):
        raise KernelFault(
            FaultKind.BUDGET, f"{ins.name} {count} in a warp that has {held} registers a thread"
        )
    if pool.take(warp.index, count):
        return ()
    return Wait(
        lambda: count - pool.held(warp.index) <= pool.free,
        lambda: f"{count} registers a thread: it has {pool.held(warp.index)}, the pool {pool.free}",
    )


HANDLERS: dict[str, Handler] = {
    **{
        f"{base}.{action}": _barrier
        for base in ("bar", "bar.cta", "barrier", "barrier.cta")
        for action in ("sync", "arrive", "red")
    },
    "setmaxnreg.inc": _setmaxnreg,
    "setmaxnreg.dec": _setmaxnreg,
}
