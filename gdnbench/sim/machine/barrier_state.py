# SPDX-License-Identifier: Apache-2.0
"""The state of a CTA's named barriers, 0 to 15, and the register pool of setmaxnreg.

A barrier counts warps, not threads: a warp arrives once all its threads that have not exited have arrived
(PTX ISA, "bar, barrier"). Without a thread count the barrier waits for every warp that has not exited.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.budget import MAX_THREADS
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Wait, Warp

BARRIERS = 16
REGISTERS_STEP = 8


@dataclass(slots=True, eq=False, weakref_slot=True)
class Round:
    """One generation of a barrier, from the first arrival to the release. `threads` is None for the whole
    CTA."""

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
        """Record the arrival of lanes of a warp. The returned round is done once all its warps have
        arrived."""
        if not 0 <= index < BARRIERS:
            raise KernelFault(FaultKind.BARRIER, f"barrier {index}; there are {BARRIERS}")
        if threads is not None and (not LANES <= threads <= MAX_THREADS or threads % LANES):
            raise KernelFault(
                FaultKind.BARRIER,
                f"barrier {index} for {threads} threads, no multiple of {LANES} up to {MAX_THREADS}",
            )
        use = self.rounds.get(index)
        if use is None:
            use = self.rounds[index] = Round(threads)
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
        if present.tobytes() != warp.exists.tobytes() and (warp.exists & ~present).any():
            use.partial[warp.index] = present.copy()
            return use
        use.arrivals += 1
        use.warps.add(warp.index)
        self._settle(index, use)
        return use

    def exited(self, warp: int) -> None:
        """A warp has exited: barriers for the whole CTA no longer wait for it (PTX ISA, "exit")."""
        self.live.discard(warp)
        for index, use in list(self.rounds.items()):
            self._settle(index, use)

    def _settle(self, index: int, use: Round) -> None:
        met = self.live <= use.warps if use.threads is None else use.arrivals * LANES == use.threads
        if met:
            use.done = True
            del self.rounds[index]

    def describe(self, index: int, use: Round) -> str:
        """Text for messages: the arrivals that a wait at barrier `index` lacks."""
        if use.threads is None:
            return f"barrier {index}: warps {sorted(self.live - use.warps)} have not arrived"
        return f"barrier {index}: {use.arrivals * LANES} of {use.threads} threads have arrived"


def _threads(count: int | None) -> str:
    return "all" if count is None else str(count)


@dataclass(slots=True)
class BarrierWait(Wait):
    """A wait that stores its round."""

    use: Round = field(default_factory=lambda: Round(None))


class RegisterPool:
    """The registers that warps of a CTA returned. `per_thread` is the initial count per thread; if it is
    None, unknown, every request is granted."""

    def __init__(self, per_thread: int | None) -> None:
        self.initial = per_thread if per_thread is None else -(-per_thread // REGISTERS_STEP) * REGISTERS_STEP
        self.free = 0
        self._held: dict[int, int] = {}

    def registers_of(self, warp: int) -> int:
        """Registers per thread of `warp`."""
        assert self.initial is not None
        return self._held.get(warp, self.initial)

    def resize(self, warp: int, count: int) -> bool:
        """Change `warp` to `count` registers per thread; False if the pool has too few."""
        change = count - self.registers_of(warp)
        if change > self.free:
            return False
        self.free -= change
        self._held[warp] = count
        return True
