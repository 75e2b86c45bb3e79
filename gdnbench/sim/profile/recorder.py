# SPDX-License-Identifier: Apache-2.0
"""Records the turns, waits and asynchronous operations of a launch's CTAs, in simulated steps."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gdnbench.sim.errors import Place
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.engine_interface import Blocked
from gdnbench.sim.profile.roles import issued_as
from gdnbench.sim.ptx.ir import Instruction

# The most slices of a trace that a browser still opens; later ones are counted and not drawn.
MAX_SLICES = 200_000


@dataclass(frozen=True, slots=True)
class Slice:
    """A warp ran from step `start` to `end`, or waited at `place` for `text`."""

    warp: int
    start: int
    end: int
    text: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class Flight:
    """An asynchronous operation, from the step of its issue to the step of its landing."""

    name: str
    start: int
    end: int


@dataclass(slots=True)
class CtaRecord:
    """The record of one CTA; implements `machine.recorder.Recorder`. `waited` has the steps waited by (warp,
    opcode of the wait)."""

    index: int
    draw: bool
    step: int = 0
    slices: list[Slice] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    ops: dict[int, Counter[str]] = field(default_factory=dict)
    waited: Counter[tuple[int, str]] = field(default_factory=Counter)
    waits: Counter[tuple[int, str]] = field(default_factory=Counter)
    executed: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    _longest: int = 0
    _waiting: dict[int, tuple[int, Blocked]] = field(default_factory=dict)
    _flying: dict[int, int] = field(default_factory=dict)

    def issued(self, warp: int, ins: Instruction) -> None:
        """Count an instruction that the warp hands to the machine: `roles` derives the warp's role from
        them."""
        self.ops.setdefault(warp, Counter())[issued_as(ins)] += 1

    def turn(self, warp: int, executed: int, blocked: Sequence[Blocked]) -> None:
        """End the warp's wait, if it had one, at the beginning of this round."""
        self._end_wait(warp)
        if executed:
            self._draw(Slice(warp, self.step, self.step + executed, "run", None))
        self.executed[warp] += executed
        self._longest = max(self._longest, executed)
        if blocked:
            self._waiting[warp] = (self.step + executed, blocked[0])
            self.waits[warp, blocked[0].instruction.op] += 1

    def round(self) -> None:
        """Advance time by the longest turn."""
        self.step += self._longest
        self._longest = 0

    def asynchronous(self, operation: AsyncOperation) -> None:
        """Draw an asynchronous operation that has landed."""
        if not operation.landed:
            self._flying[id(operation)] = self.step
            return
        start = self._flying.pop(id(operation), self.step)
        if self.draw and len(self.flights) < MAX_SLICES:
            self.flights.append(Flight(operation.name, start, self.step))

    def _end_wait(self, warp: int) -> None:
        if warp not in self._waiting:
            return
        start, blocked = self._waiting.pop(warp)
        steps = max(self.step - start, 0)
        self.waited[warp, blocked.instruction.op] += steps
        if steps:
            # The wait is over: its text would now describe the barrier's next phase.
            self._draw(Slice(warp, start, self.step, blocked.instruction.name, blocked.instruction.place))

    def _draw(self, slice_: Slice) -> None:
        if not self.draw:
            return
        if len(self.slices) < MAX_SLICES:
            self.slices.append(slice_)
        else:
            self.dropped += 1


@dataclass(slots=True)
class LaunchRecord:
    """The records of all CTAs of a launch. Only CTA `draw` keeps its timeline."""

    draw: int = 0
    ctas: dict[int, CtaRecord] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def cta(self, index: int) -> CtaRecord:
        """The record of CTA `index`, created when it begins."""
        with self.lock:
            return self.ctas.setdefault(index, CtaRecord(index, index == self.draw))
