# SPDX-License-Identifier: Apache-2.0
"""What times the launches of a round. `gdnbench.timing.cuda_clocks` has those for GPUs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from gdnbench.errors import CannotRunError
from gdnbench_kernels.contract import Launch

LONG = 1000
"""Times a clock's resolution that a timed span is at least: it is then off by 0.1 % at most, a tenth of the
1 % that comparisons are stopped at."""
MOST_PASSES = 10_000
"""After which a round that is still too short for the clock is an error."""


class Recorded(Protocol):
    """Launches of a round, ready to be timed again and again."""

    def seconds(self) -> float:
        """Of all launches, each once, in order. Raises what a launch raises."""


class Clock(Protocol):
    @property
    def method(self) -> str:
        """For people: what was timed with what."""

    @property
    def least(self) -> float:
        """Seconds that are long against the clock's resolution."""

    @property
    def goal(self) -> float:
        """Seconds of a cold round that more launches make no better, by `once`."""

    def record(self, launches: Sequence[Launch]) -> Recorded:
        """Prepares launches, all of which ran before; nothing of it is timed."""

    def once(self, launch: Launch) -> float:
        """Seconds until one launch is done, by the host's clock: roughly."""


class PerfCounter:
    """The host's clock around launches that are done when they return."""

    goal = 0.02

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.least = LONG * resolution(now)

    @property
    def method(self) -> str:
        return f"perf_counter, rounds of at least {self.least * 1e6:.3g} us"

    def record(self, launches: Sequence[Launch]) -> Recorded:
        return CountedRound(tuple(launches), self._now)

    def once(self, launch: Launch) -> float:
        return CountedRound((launch,), self._now).seconds()


class CountedRound:
    """Launches between two readings of the host's clock."""

    def __init__(self, launches: tuple[Launch, ...], now: Callable[[], float]) -> None:
        self._launches = launches
        self._now = now

    def seconds(self) -> float:
        now = self._now
        with no_collection():
            begin = now()
            for launch in self._launches:
                launch()
            end = now()
        return end - begin


def round_seconds(recorded: Recorded, ready: Callable[[], object], least: float) -> float:
    """Of a round: the mean of as many as take `least` seconds together, `ready` before each and outside the
    time. CannotRunError where MOST_PASSES do not."""
    total = 0.0
    for passes in range(1, MOST_PASSES + 1):
        ready()
        total += recorded.seconds()
        if total >= least:
            return total / passes
    raise CannotRunError(
        f"{MOST_PASSES} rounds took {total:.3g} s, too short for the clock; time a larger record"
    )


def resolution(now: Callable[[], float], samples: int = 50) -> float:
    """Seconds of a clock's smallest step that was seen, calls included."""
    steps = []
    for _ in range(samples):
        begin = end = now()
        while end == begin:
            end = now()
        steps.append(end - begin)
    return min(steps)


@contextmanager
def no_collection() -> Iterator[None]:
    """While Python collects no garbage: that would be timed, wherever it happens to fall."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
