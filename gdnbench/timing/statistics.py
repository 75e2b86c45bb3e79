# SPDX-License-Identifier: Apache-2.0
"""Medians, the interval of a ratio of times, and what it says.

Two kernels are compared by the logarithm of their times' ratio in each block, where what the block has in
common (drift, the placement, the clocks) cancels. Blocks are not independent of one another: those on one
placement share what it does to one kernel and not to the other, and neighbours share what the machine was
doing. So blocks are grouped, each group's middle half is averaged, and the interval is Student's over groups:
once with a placement as the group, once with a stretch of consecutive runs. The wider one counts.

A run takes every order of the kernels equally often and is never torn, so in a group a kernel's place in the
order, and any steady drift inside blocks, cancel too. The middle half loses nothing to ties of a coarse
clock, and less than a quarter of disturbed samples on a side cannot carry it away; Student's over groups then
asks only that groups are alike in distribution, and is wide where they are not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from gdnbench.timing.types import COARSEST

CONFIDENCE = 0.99
"""Of an interval: a table has dozens."""

MIN_PLACEMENTS = 6
"""Fewer make no interval over placements: Student's factor at 99 % is 4.0 for 6 groups, 5.8 for 4, 64 for 2.
Such an interval holds for the placements that were used, and says so in `by`."""

STRETCHES = 10
"""Into so many the runs are cut for the interval over time. More runs make longer stretches, so noise that
lasts a given time is inside one in the end; at 10 Student's factor at 99 % is 3.25 against 2.58 of infinitely
many."""

MIN_GROUPS = 4
"""Fewer give no interval."""


DISTINCT = 4.0
"""So many times the variance that noise alone gives the middles of placements is an effect of theirs: noise
of 4 runs on each of 6 placements exceeds it in 1 of 80 series, by Fisher's F(5, 18)."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Of samples: median and quartiles, in their unit."""

    count: int
    median: float
    lower: float  # quartile
    upper: float  # quartile


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a ratio of two kernels' times lies, with `confidence`."""

    ratio: float
    low: float
    high: float
    confidence: float
    groups: int  # independent groups of blocks that it rests on
    by: str  # what a group is: "placement", or "stretch" of time

    @property
    def width(self) -> float:
        """As a part of the lower end."""
        return self.high / self.low - 1

    @property
    def within(self) -> float:
        """How far from 1 it reaches, as a part of 1: |log ratio| at its farther end."""
        return max(-math.log(self.low), math.log(self.high))


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """Where the median of a kernel's times lies, in seconds, with `confidence`; the rest as in `Interval`."""

    low: float
    high: float
    confidence: float
    groups: int
    by: str


class Verdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    UNKNOWN = "unknown"  # too few blocks to say anything


def summary(samples: Sequence[float]) -> Summary:
    """Quartiles as NumPy's default: linear between order statistics. ValueError for no samples."""
    if not samples:
        raise ValueError("a summary of no samples")
    ordered = sorted(samples)
    return Summary(len(ordered), *(_quantile(ordered, part) for part in (0.5, 0.25, 0.75)))


def _quantile(ordered: Sequence[float], part: float) -> float:
    place = part * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    # So that equal samples have just that quantile, whatever the rounding.
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def middle(values: Sequence[float]) -> float:
    """Mean of what is left of `values` without the lowest and the highest quarter of them, rounded down."""
    ordered, cut = sorted(values), len(values) // 4
    kept = ordered[cut : len(ordered) - cut]
    return math.fsum(kept) / len(kept)


Centre = Callable[[Sequence[float]], float]
"""Of a group's values: what the interval is of, `middle` or the median."""


@cache
def student(part: float, freedom: int) -> float:
    """The quantile `part`, over a half, of Student's t with `freedom` degrees of freedom.

    By bisection of the distribution's finite trigonometric sum for whole degrees of freedom, Abramowitz and
    Stegun 26.7.3 and 26.7.4.
    """
    if not (0.5 < part < 1 and freedom >= 1):
        raise ValueError(f"quantile {part} with {freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while _inside(high, freedom) < 2 * part - 1:
        low, high = high, 2 * high
    while (between := (low + high) / 2) not in (low, high):  # until no float lies between
        if _inside(between, freedom) < 2 * part - 1:
            low = between
        else:
            high = between
    return high


def _inside(t: float, freedom: int) -> float:
    """The probability of [-t, t]."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = total = 0.0 if freedom == 1 else cosine if odd else 1.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


@dataclass(frozen=True, slots=True)
class Series:
    """A logarithm of each block, in the order of time, with the blocks' placements and runs."""

    logs: Sequence[float]
    placements: Sequence[int]
    runs: Sequence[int]

    def over_time(self, centre: Centre = middle) -> list[float]:
        """The centre of each stretch of consecutive runs, of `STRETCHES` at most."""
        sequence = {run: index for index, run in enumerate(dict.fromkeys(self.runs))}
        stretches = min(STRETCHES, len(sequence))
        stretch = [sequence[run] * stretches // len(sequence) for run in self.runs]
        return _groups(self.logs, stretch, centre)

    def over_placements(self, centre: Centre = middle) -> list[float]:
        """The centre of each placement's blocks."""
        return _groups(self.logs, self.placements, centre)


def apart_by_placement(series: Series) -> tuple[float, float] | None:
    """The least and the greatest ratio of a placement, where they differ by more than noise, which is what
    runs on one placement differ by: more blocks then make the interval over placements no narrower. None
    where they do not, and where some placement has one run only."""
    by_run: dict[int, dict[int, list[float]]] = {}
    for value, placement, run in zip(series.logs, series.placements, series.runs, strict=True):
        by_run.setdefault(placement, {}).setdefault(run, []).append(value)
    middles = [[middle(values) for values in runs.values()] for runs in by_run.values()]
    if len(middles) < 2 or min(map(len, middles)) < 2:
        return None
    means, errors = zip(*map(_mean_error, middles), strict=True)
    noise = math.fsum(errors) / len(errors)
    _, error = _mean_error(means)
    if error * len(means) <= DISTINCT * noise:
        return None
    return math.exp(min(means)), math.exp(max(means))


def ratio_interval(series: Series, confidence: float) -> Interval | None:
    """The interval of the ratio whose logarithm each block measured, of whole runs only. None for too few
    blocks: of `MIN_GROUPS` runs at least."""
    found = _interval(series, confidence, middle)
    if found is None:
        return None
    centre, half, groups, by = found
    return Interval(
        math.exp(centre), math.exp(centre - half), math.exp(centre + half), confidence, groups, by
    )


def time_interval(series: Series, confidence: float, margin: float) -> TimeInterval | None:
    """The interval of the median of a kernel's times, whose logarithms `series` has: as for a ratio, over the
    medians of groups. Of fewer than `MIN_GROUPS` runs each block counts as a run: they need not be whole,
    since nothing is compared. `margin`, in logarithms, is what the clock may be wrong by. None for fewer
    blocks than groups."""
    if len(set(series.runs)) < MIN_GROUPS:
        series = Series(series.logs, series.placements, range(len(series.logs)))
    found = _interval(series, confidence, statistics.median)
    if found is None:
        return None
    centre, half, groups, by = found
    half += margin
    return TimeInterval(math.exp(centre - half), math.exp(centre + half), confidence, groups, by)


def _interval(series: Series, confidence: float, of_group: Centre) -> tuple[float, float, int, str] | None:
    """Centre and half the width of the wider interval, over stretches and over placements; the number of
    groups of the latter, if there are enough for it, and what a group is."""
    over_time = series.over_time(of_group)
    if len(over_time) < MIN_GROUPS:
        return None
    centre, half = _student(over_time, confidence)
    over_placements = series.over_placements(of_group)
    if len(over_placements) < MIN_PLACEMENTS:
        return centre, half, len(over_time), "stretch"
    centre, beside = _student(over_placements, confidence)
    return centre, max(half, beside), len(over_placements), "placement"


def unpaired_interval(before: Series, after: Series, confidence: float) -> Interval | None:
    """The interval of after's median time over before's, of blocks measured at different times.

    Nothing cancels here: what placements do to a kernel is in the spread of the groups, and widens it. By
    Welch's unequal variances, over groups as in `ratio_interval`, the wider one again. None for too few.
    """
    found = _welch(before.over_time(), after.over_time(), confidence)
    if found is None:
        return None
    centre, half = found
    by, groups = "stretch", min(len(before.over_time()), len(after.over_time()))
    placed = before.over_placements(), after.over_placements()
    fewest = min(map(len, placed))
    beside = _welch(*placed, confidence) if fewest >= MIN_PLACEMENTS else None
    if beside is not None:
        centre, by, groups, half = beside[0], "placement", fewest, max(half, beside[1])
    return Interval(
        math.exp(centre), math.exp(centre - half), math.exp(centre + half), confidence, groups, by
    )


def _welch(before: Sequence[float], after: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Difference of the means and half the width of its interval, with Welch and Satterthwaite's degrees of
    freedom, rounded down."""
    if min(len(before), len(after)) < MIN_GROUPS:
        return None
    (first, first_error), (second, second_error) = _mean_error(before), _mean_error(after)
    error = first_error + second_error
    if not error:
        return second - first, 0.0
    freedom = error**2 / (first_error**2 / (len(before) - 1) + second_error**2 / (len(after) - 1))
    return second - first, student(0.5 + confidence / 2, math.floor(freedom)) * math.sqrt(error)


def _groups(logs: Sequence[float], keys: Sequence[Hashable], centre: Centre) -> list[float]:
    grouped: dict[Hashable, list[float]] = {}
    for value, key in zip(logs, keys, strict=True):
        grouped.setdefault(key, []).append(value)
    return [centre(values) for values in grouped.values()]


def _student(groups: Sequence[float], confidence: float) -> tuple[float, float]:
    """Mean, and half the width of its interval."""
    mean, error = _mean_error(groups)
    return mean, student(0.5 + confidence / 2, len(groups) - 1) * math.sqrt(error)


def _mean_error(groups: Sequence[float]) -> tuple[float, float]:
    """Mean, and the square of its standard error."""
    mean = math.fsum(groups) / len(groups)
    squares = math.fsum((value - mean) ** 2 for value in groups)
    return mean, squares / (len(groups) - 1) / len(groups)


def clock_margin(resolution: float, first: float, other: float) -> float:
    """How far a clock alone can move the logarithm of a ratio of two rounds, of `first` and `other` seconds.

    A duration is the difference of two readings, each less than one `resolution` (seconds) late, so it is
    less than one resolution wrong: a part resolution / duration of each round. If readings keep their
    phase, no number of rounds averages it out.
    """
    return resolution / first + resolution / other


def beyond(interval: Interval) -> float:
    """How far from 1 the nearer end of an interval is that excludes 1, in logarithms; else 0."""
    return max(0.0, math.log(interval.low), -math.log(interval.high))


def verdict(interval: Interval | None, margin: float) -> Verdict:
    """Whether the whole interval lies more than `margin`, in logarithms, beyond 1."""
    if interval is None:
        return Verdict.UNKNOWN
    if math.log(interval.high) < -margin:
        return Verdict.FASTER
    if math.log(interval.low) > margin:
        return Verdict.SLOWER
    return Verdict.NO_DIFFERENCE


@dataclass(frozen=True, slots=True)
class Rule:
    """When a comparison has enough, and what it is judged with.

    It stops on the width of the intervals and never on where they lie: stopping once a difference shows would
    find one in any noise. Even so a lucky narrow interval stops it early; the wider of two intervals, narrow
    after two passes in a row, keeps that in bounds, as tests/timing/test_statistics.py shows by simulation.
    """

    precision: float = 0.01  # width of every interval that is narrow enough, as a part of the ratio
    confidence: float = CONFIDENCE  # of each interval
    passes: int = 2  # over all placements, at least; see comparison.runs_of_pass
    blocks: int = 2000  # at most
    seconds: float = 30.0  # at most, warming up included, and but for the block in progress
    warmup: int = 1  # blocks on every placement that do not count
    resolution: float = COARSEST  # seconds, of the clock: see seam.RESOLUTION
    repeat: bool = True  # the first kernel is timed against itself too, and sets the noise margin
    discards: int = 20  # after so many disturbed blocks in a row this machine is taken to be never quiet
    keep_disturbed: bool = False  # which ends the comparison, or, if True, keeps such blocks from then on

    def __post_init__(self) -> None:
        for name in ("precision", "passes", "blocks", "seconds", "discards"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be over 0")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence}: it must be in [0.5, 1)")
        for name in ("resolution", "warmup"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must not be under 0")
