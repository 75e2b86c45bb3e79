# SPDX-License-Identifier: Apache-2.0
"""Steps of one loop in short segments with capture on and off in turn; used by bench_capture.py.

What a machine does beside (clocks, other programs, a cache that grows) drifts over seconds, and by more than
capture costs. So a segment with capture is compared with the two without it that it lies between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Protocol

OFF, EVERY_CALL, EVERY_16 = "off", "every call", "every 16"
TURNS = (OFF, EVERY_16, OFF, EVERY_16, OFF, EVERY_CALL)
STEPS = {OFF: 16, EVERY_16: 16, EVERY_CALL: 4}
"""Of a segment: of every 16th step, one is recorded, the segment's first."""
STABLE = 0.1
"""Relative range of the last three segments without capture at which warming up ends."""


class Mode(Protocol):
    def enter(self) -> None:
        """Begin to capture."""

    def leave(self) -> int:
        """Cease to; records since `enter`, all of which are in the journal."""


@dataclass(frozen=True, slots=True)
class Segment:
    mode: str
    steps: tuple[float, ...]  # seconds
    cpu_seconds: float  # of this process, until all was in the journal
    records: int

    @property
    def seconds(self) -> float:
        """Of a step, on average."""
        return sum(self.steps) / len(self.steps)


class Segments:
    """`step_done` is called behind each step of the loop; `mode` says how the next one is to be run."""

    def __init__(
        self,
        modes: Mapping[str, Mode],
        *,
        seconds: float,
        warm_seconds: float,
        say: Callable[[str], None],
        turns: Sequence[str] = TURNS,
        steps: Mapping[str, int] = STEPS,
    ) -> None:
        self._modes = modes
        self._turns = turns  # of every second of which capture is off
        self._steps_of = steps
        self._seconds = seconds
        self._say = say
        self._warm_until = time.perf_counter() + warm_seconds
        self._until: float | None = None  # None: warming up
        self._turn = -1
        self._steps: list[float] = []
        self._leading_in = True  # a step between segments, not timed: what came before has an end
        self._last = self._cpu_begun = 0.0
        self._warm: list[float] = []
        self.measured: list[Segment] = []
        self.mode = OFF

    def step_done(self) -> bool:
        """Whether that was the last step."""
        now = time.perf_counter()
        if self._leading_in:
            self._begin_next()
            return False
        self._steps.append(now - self._last)
        if len(self._steps) == self._steps_of[self.mode]:
            self._end()
            return self._until is not None and time.perf_counter() > self._until and self._turn == 0
        self._last = time.perf_counter()
        return False

    def _begin_next(self) -> None:
        self._turn = (self._turn + 1) % len(self._turns)
        self.mode = self._turns[self._turn]
        self._leading_in = False
        self._steps = []
        self._modes[self.mode].enter()
        self._cpu_begun = time.process_time()
        self._last = time.perf_counter()

    def _end(self) -> None:
        records = self._modes[self.mode].leave()
        segment = Segment(self.mode, tuple(self._steps), time.process_time() - self._cpu_begun, records)
        self.mode, self._leading_in = OFF, True
        if self._until is not None:
            self.measured.append(segment)
            if self._turn == 0:
                self._tell()
            return
        if segment.mode == OFF:
            self._warm.append(segment.seconds)
        if self._turn == len(self._turns) - 1:  # every mode has been warmed up
            last = self._warm[-3:]
            stable = max(last) <= min(last) * (1 + STABLE)
            if stable or time.perf_counter() > self._warm_until:
                state = "stable" if stable else "not stable"
                self._say(f"warmed up, {state}: {', '.join(f'{one * 1e3:.2f}' for one in last)} ms a step")
                self._until = time.perf_counter() + self._seconds

    def _tell(self) -> None:
        found = ratios(self.measured, EVERY_16)
        if found:
            half = f"{median(found) - 1:+.1%}"
            self._say(
                f"{len(self.measured)} segments, {self.measured[-1].seconds * 1e3:.2f} ms a step: {half}"
            )


def ratios(segments: list[Segment], mode: str) -> list[float]:
    """Of each segment of `mode` to the mean of its neighbours without capture."""
    return [
        one.seconds * 2 / (before.seconds + after.seconds)
        for before, one, after in zip(segments, segments[1:], segments[2:], strict=False)
        if one.mode == mode
    ]


def interval(values: list[float], level: float = 0.95) -> tuple[float, float]:
    """Around the median of what the values were drawn from, with at least this probability, whatever their
    distribution: between the k-th smallest and the k-th largest, of which too few are on one side with
    probability 2 * sum(comb(n, i), i < k) / 2**n. The widest one where there are not enough values."""
    ordered, count = sorted(values), len(values)
    outside, k = 0, 0
    while k < count // 2 and 2 * (outside + comb(count, k)) <= (1 - level) * 2**count:
        outside += comb(count, k)
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[-k]
