# SPDX-License-Identifier: Apache-2.0
"""Asynchronous operations of a CTA, and the schedules that decide when they land.

The PTX ISA says what must have happened after a wait, not when it happens. Three schedules cover the range:

    early         an operation lands at once, as if the copy engine took no time
    late          it lands when a warp waits for it and nothing else in the CTA can run; it reads its sources
                  only then
    random:SEED   in between, decided by the seed and the CTA's number

Between issue and landing the destination contains poison, so a reader that did not wait computes NaN. A
correct kernel gives equal bits under all schedules.

Operations of one `stream` land in the order of issue (the tensor core's pipeline); a stream of None has no
order. A kernel that polls without blocking still progresses: an operation lands after `PATIENCE` turns of the
scheduler.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from gdnbench.sim.errors import InputError
from gdnbench.sim.machine.footprint import Footprint

PATIENCE = 64


@dataclass(frozen=True, slots=True)
class Schedule:
    """One of the three schedules; `seed` belongs to `random`."""

    kind: str
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Parse `early`, `late` or `random:SEED`."""
        if text in ("early", "late"):
            return cls(text)
        kind, _, seed = text.partition(":")
        if kind == "random" and seed.isdecimal():
            return cls(kind, int(seed))
        raise InputError(f"schedule {text!r}: early, late or random:SEED, such as random:7")

    def source(self, index: int) -> random.Random:
        """The random number generator of the CTA with this index."""
        return random.Random(f"{self.seed}:{index}")


LATE = Schedule("late")


@dataclass(slots=True, eq=False)
class AsyncOperation:
    """An operation in flight. `read` reads the sources, `land` makes the effect visible; each is called once,
    `read` first. `signals` are the mbarriers at which `land` arrives or completes bytes."""

    name: str
    land: Callable[[], None]
    read: Callable[[], None] | None = None
    stream: Hashable = None
    signals: tuple[int, ...] = ()
    reads: tuple[Footprint, ...] = ()
    writes: tuple[Footprint, ...] = ()
    was_read: bool = False
    landed: bool = False
    issued: int = 0  # turn of the scheduler


class QueueChecker(Protocol):
    """Observes the operations of one CTA, each before it lands."""

    def on_submit(self, operation: AsyncOperation) -> None:
        """The instruction that began last has issued `operation`."""
        return

    def before_landing(self, operation: AsyncOperation) -> None:
        """`operation` is about to land."""
        return


class AsyncQueue:
    """The operations in flight of one CTA. `observer`, if set, sees each operation when it is issued and when
    it lands; `checker` sees it before it lands."""

    def __init__(self, schedule: Schedule, index: int) -> None:
        self.schedule = schedule
        self.random = schedule.source(index)
        self.turn = 0
        self.landed = 0
        self.observer: Callable[[AsyncOperation], None] | None = None
        self.checker: QueueChecker | None = None
        self._pending: dict[AsyncOperation, None] = {}
        self._streams: dict[Hashable, dict[AsyncOperation, None]] = {}
        self._signalling: dict[int, dict[AsyncOperation, None]] = {}  # by mbarrier, in the order of issue

    def __len__(self) -> int:
        return len(self._pending)

    def submit(self, operation: AsyncOperation, poison: Callable[[], None] | None = None) -> None:
        """Put `operation` in flight; `poison` fills its destination with poison until it lands."""
        operation.issued = self.turn
        self._pending[operation] = None
        if operation.stream is not None:
            self._streams.setdefault(operation.stream, {})[operation] = None
        for address in operation.signals:
            self._signalling.setdefault(address, {})[operation] = None
        if self.observer is not None:
            self.observer(operation)
        if self.checker is not None:
            self.checker.on_submit(operation)
        if self.schedule.kind == "early" or (self.schedule.kind == "random" and self.random.random() < 0.25):
            self.complete(operation)
        elif poison is not None:
            poison()

    def finish_read(self, operation: AsyncOperation) -> None:
        """Make `operation` read its sources: the kernel may now reuse that shared memory."""
        if not operation.was_read:
            operation.was_read = True
            if operation.read is not None:
                operation.read()

    def complete(self, operation: AsyncOperation) -> None:
        """Land `operation`, after its predecessors in its stream."""
        if operation.landed:
            return
        if operation.stream is None:
            self._land(operation)
            return
        for earlier in list(self._streams[operation.stream]):
            self._land(earlier)
            if earlier is operation:
                break

    def _land(self, operation: AsyncOperation) -> None:
        del self._pending[operation]
        for address in operation.signals:
            del self._signalling[address][operation]
        if operation.stream is not None:
            stream = self._streams[operation.stream]
            del stream[operation]
            if not stream:
                del self._streams[operation.stream]
        self.finish_read(operation)
        operation.landed = True
        self.landed += 1
        if self.checker is not None:
            self.checker.before_landing(operation)
        operation.land()
        if self.observer is not None:
            self.observer(operation)

    def advance_signal(self, address: int) -> bool:
        """Land the oldest operation that signals the mbarrier at `address`; False if none is in flight."""
        signalling = self._signalling.get(address)
        if not signalling:
            return False
        self.complete(next(iter(signalling)))
        return True

    def advance_any(self) -> bool:
        """Land one operation, the oldest or a random one; False if none is in flight."""
        if not self._pending:
            return False
        pending = list(self._pending)
        self.complete(self.random.choice(pending) if self.schedule.kind == "random" else pending[0])
        return True

    def tick(self) -> None:
        """Count a turn of the scheduler: land overdue operations and, under `random`, sometimes another."""
        self.turn += 1
        while self._pending:
            oldest = next(iter(self._pending))
            if self.turn - oldest.issued < PATIENCE:
                break
            self.complete(oldest)
        if self.schedule.kind == "random" and self._pending and self.random.random() < 0.5:
            self.advance_any()

    def drain(self) -> None:
        """Land all operations: the CTA has exited."""
        while self.advance_any():
            pass
