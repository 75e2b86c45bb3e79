"""Asynchronous effects: when the work that a kernel has set going lands.

The PTX ISA says what must have happened after a wait, not when it happens. Three schedules stand for the
freedom in between:

    early         an operation lands at once, as if the copy engine took no time
    late          it lands when somebody waits for it and nothing else in the CTA can run; only then are its
                  sources read
    random:SEED   anything in between, decided by the seed and the CTA's number

Between issue and landing the destination holds poison, so that a reader that did not wait computes NaN. A
correct kernel gives equal bits under all schedules.

Operations of one `stream` land in the order of issue (the tensor core's pipeline); a stream of None orders
nothing. A kernel that polls without blocking still gets on: an operation lands after `PATIENCE` turns of
the scheduler.
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
    """One of the three orders; `seed` is that of `random`."""

    kind: str
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """`early`, `late` or `random:SEED`."""
        if text in ("early", "late"):
            return cls(text)
        kind, _, seed = text.partition(":")
        if kind == "random" and seed.isdecimal():
            return cls(kind, int(seed))
        raise InputError(f"schedule {text!r}: early, late or random:SEED, such as random:7")

    def source(self, index: int) -> random.Random:
        """The random numbers of the CTA with this index."""
        return random.Random(f"{self.seed}:{index}")


LATE = Schedule("late")


@dataclass(slots=True, eq=False)
class AsyncOperation:
    """Work in flight. `read` takes the sources into `land`'s reach, `land` makes the effect visible; both
    are called once, `read` first. `signals` are the mbarriers that `land` arrives at or completes bytes
    of."""

    name: str
    land: Callable[[], None]
    read: Callable[[], None] | None = None
    stream: Hashable = None
    signals: tuple[int, ...] = ()
    reads: tuple[Footprint, ...] = ()
    writes: tuple[Footprint, ...] = ()
    was_read: bool = False
    landed: bool = False
    issued: int = 0  # the scheduler's turn


class QueueChecker(Protocol):
    """Follows the operations of one CTA, each before it lands."""

    def on_submit(self, operation: AsyncOperation) -> None:
        """The instruction that began last has set `operation` going."""
        ...

    def before_landing(self, operation: AsyncOperation) -> None:
        """`operation` is about to land."""
        ...


class AsyncQueue:
    """The operations in flight of one CTA. `observer`, if set, sees each operation as it is issued and as
    it lands; so does `checker`, before it lands."""

    def __init__(self, schedule: Schedule, index: int) -> None:
        self.schedule = schedule
        self.random = schedule.source(index)
        self.turn = 0
        self.landed = 0
        self.observer: Callable[[AsyncOperation], None] | None = None
        self.checker: QueueChecker | None = None
        self._pending: dict[AsyncOperation, None] = {}
        self._streams: dict[Hashable, dict[AsyncOperation, None]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def submit(self, operation: AsyncOperation, poison: Callable[[], None] | None = None) -> None:
        """Set `operation` going; `poison` spoils its destination until it lands."""
        operation.issued = self.turn
        self._pending[operation] = None
        if operation.stream is not None:
            self._streams.setdefault(operation.stream, {})[operation] = None
        if self.observer is not None:
            self.observer(operation)
        if self.checker is not None:
            self.checker.on_submit(operation)
        if self.schedule.kind == "early" or (self.schedule.kind == "random" and self.random.random() < 0.25):
            self.complete(operation)
        elif poison is not None:
            poison()

    def finish_read(self, operation: AsyncOperation) -> None:
        """Have the sources of `operation` read: its shared memory may be reused after."""
        if not operation.was_read:
            operation.was_read = True
            if operation.read is not None:
                operation.read()

    def complete(self, operation: AsyncOperation) -> None:
        """Land `operation`, after what precedes it in its stream."""
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
        """Land the oldest operation that signals the mbarrier at `address`; false if none is in flight."""
        for operation in self._pending:
            if address in operation.signals:
                self.complete(operation)
                return True
        return False

    def advance_any(self) -> bool:
        """Land one operation, the oldest or a random one; false if none is in flight."""
        if not self._pending:
            return False
        pending = list(self._pending)
        self.complete(self.random.choice(pending) if self.schedule.kind == "random" else pending[0])
        return True

    def tick(self) -> None:
        """A turn of the scheduler has passed: land what is overdue, and under `random` sometimes something
        more."""
        self.turn += 1
        while self._pending:
            oldest = next(iter(self._pending))
            if self.turn - oldest.issued < PATIENCE:
                break
            self.complete(oldest)
        if self.schedule.kind == "random" and self._pending and self.random.random() < 0.5:
            self.advance_any()

    def drain(self) -> None:
        """Land everything: the CTA has exited."""
        while self.advance_any():
            pass
