# SPDX-License-Identifier: Apache-2.0
"""Kernels timed in turn, block by block, until their ratios are known well enough.

A run is a few blocks on one placement that take every order of the kernels equally often, shuffled; a pass
is a run on every placement. The machine is looked at before and after every round, and a block that something
disturbed is measured again and counted.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.timing.conditions import Extremes, disturbances
from gdnbench.timing.result import Block, End, PairTiming, Seen
from gdnbench.timing.statistics import (
    MIN_PLACEMENTS,
    STRETCHES,
    Interval,
    Rule,
    Series,
    Summary,
    TimeInterval,
    apart_by_placement,
    beyond,
    clock_margin,
    ratio_interval,
    summary,
    time_interval,
    verdict,
)
from gdnbench.timing.types import Subject, Watch

MIN_RUN = 4
"""Blocks of a run at least: the middle half of 4 already leaves out the lowest and the highest."""

LOOKS = 2
"""Passes in a row after which the intervals must be narrow: at one look they may be so by luck, and stopping
there would keep it."""

SEED = 6
"""Of the sequence of orders: any; the same one makes the same blocks."""

WARM_UP = 0.25
"""Part of the seconds that warming up may take."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds waited after a disturbed block, doubled for each next one in a row: heat takes seconds to go."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a comparison is, after each pass."""

    blocks: int  # kept
    discarded: int
    seconds: float  # since the first block
    width: float | None  # of the widest interval so far; None: none yet


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found. `samples` by kernel, and in it by block, in seconds a launch.

    `repeat` is the first kernel against itself, and `repeat_samples` its second time in each block; None and
    empty where the rule does not ask for it.
    """

    names: tuple[str, ...]
    launches: tuple[int, ...]
    samples: tuple[tuple[float, ...], ...]
    summaries: tuple[Summary, ...]  # empty where no block was kept
    intervals: tuple[TimeInterval | None, ...]  # of each kernel's median; None: too few blocks
    blocks: tuple[Block, ...]
    pairs: tuple[PairTiming, ...]  # each other kernel against the first
    repeat: PairTiming | None
    repeat_samples: tuple[float, ...]
    placements: int
    end: End
    seconds: float
    discarded: Mapping[str, int]  # blocks, by what disturbed them
    disturbed: Mapping[str, int]  # of the kept blocks, where the rule keeps them all the same
    conditions: Seen
    notes: tuple[str, ...]  # what to keep in mind, a line each


class RoundError(RuntimeError):
    """A round of `kernel` raised; `__cause__` is what it raised."""

    def __init__(self, kernel: str, error: Exception) -> None:
        super().__init__(f"{kernel}: {error}")
        self.kernel = kernel


class DisturbedError(CannotRunError):
    """Too many blocks in a row were disturbed; `partial` is what was measured before."""

    def __init__(self, message: str, partial: Comparison) -> None:
        super().__init__(message)
        self.partial = partial


def compare(
    subjects: Sequence[Subject],
    rule: Rule,
    watch: Watch,
    progress: Callable[[Progress], None] | None = None,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Comparison:
    """Times `subjects` by `rule`; the first is what the others are compared with.

    Ctrl-C returns what was measured until then, with `end` INTERRUPTED: the caller stops there too. Raises
    RoundError where a kernel raises, DisturbedError, and BadInputError for subjects of unequal placements.
    `now` and `sleep` are in seconds. `watch` stays open.
    """
    counts = {subject.placements for subject in subjects}
    if len(counts) != 1 or min(counts) < 1:
        raise BadInputError(f"kernels to compare must share their placements; theirs are {sorted(counts)}")
    loop = _Loop(subjects, rule, watch, progress, now, sleep)
    try:
        loop.warm_up()
        end = loop.measure()
    except KeyboardInterrupt:
        end = End.INTERRUPTED
    return loop.result(end)


def orders(count: int) -> list[tuple[int, ...]]:
    """Orders of `count` kernels in which each comes at each place, and after each other one, equally often.

    Williams' design: `count` orders, twice as many for an odd count; for 2 and 3 kernels all there are. With
    each order its reverse is there, so that a steady drift cancels in every pair.
    """
    zigzag = [(place + 1) // 2 if place % 2 else -place // 2 for place in range(count)]
    found = [tuple((kernel + shift) % count for kernel in zigzag) for shift in range(count)]
    if count % 2:
        found += [tuple(reversed(order)) for order in found]
    return list(dict.fromkeys(found))


def plan(kernels: int, placements: int) -> Iterator[Block]:
    """Blocks without an end: passes of runs on every placement.

    Each run has the same orders in a sequence of its own: in one that comes back, whatever returns every so
    many rounds (a timer, another process) meets one kernel more often than another, run after run, and no
    interval over runs could tell that from a difference.
    """
    once = orders(kernels)
    in_run = once * -(-MIN_RUN // len(once))
    sequence = random.Random(SEED)
    for run in itertools.count():
        sequence.shuffle(in_run)
        for order in in_run:
            yield Block(run % placements, run, order)


def runs_of_pass(placements: int) -> int:
    """Runs between two looks at the intervals: all placements once, or as often as makes `STRETCHES` runs
    where there are too few placements for an interval over them. Looking after each run of few would stop at
    a narrow interval of too few runs: 8 % instead of 4 % false verdicts in simulation."""
    if placements >= MIN_PLACEMENTS:
        return placements
    return -(-STRETCHES // placements) * placements


class _Loop:
    """The blocks of one comparison. Kernel `len(subjects)` is the first one again."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        rule: Rule,
        watch: Watch,
        progress: Callable[[Progress], None] | None,
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._subjects = subjects
        self._timed = [*subjects, subjects[0]] if rule.repeat else list(subjects)
        self._rule = rule
        self._watch = watch
        self._progress = progress
        self._now = now
        self._sleep = sleep
        self._placements = subjects[0].placements
        self._pass = runs_of_pass(self._placements)
        self._blocks: list[Block] = []
        self._samples: list[list[float]] = [[] for _ in self._timed]
        self._whole = 0  # blocks of whole runs
        self._discarded: Counter[str] = Counter()
        self._disturbed: Counter[str] = Counter()  # of blocks that were kept
        self._lost = 0
        self._never_quiet = False
        self._extremes = Extremes()
        self._started = now()
        self._end = self._started + rule.seconds

    def warm_up(self) -> None:
        """For `WARM_UP` of the seconds at most: rounds so long are the same when they are the first."""
        for placement in range(self._placements):
            for _ in range(self._rule.warmup):
                for subject in self._timed:
                    if self._now() - self._started >= WARM_UP * self._rule.seconds:
                        return
                    self._round(subject, placement)

    def measure(self) -> End:
        self._started, narrow = self._now(), 0
        for block, following in itertools.pairwise(plan(len(self._timed), self._placements)):
            if len(self._blocks) >= self._rule.blocks:
                return End.BLOCKS
            if self._now() >= self._end and self._blocks:
                return End.SECONDS
            self._undisturbed(block)
            if following.run == block.run:
                continue
            self._whole = len(self._blocks)
            passes, part = divmod(following.run, self._pass)
            if part:
                continue
            width = self._width()
            if self._progress is not None:
                self._progress(Progress(self._whole, self._lost, self._now() - self._started, width))
            narrow = narrow + 1 if width is not None and width <= self._rule.precision else 0
            if passes >= self._rule.passes and narrow >= LOOKS:
                return End.PRECISE
        raise AssertionError("a plan has no end")

    def result(self, end: End) -> Comparison:
        count = len(self._subjects)
        samples = tuple(tuple(found[: len(self._blocks)]) for found in self._samples)
        repeat = self._pair(len(self._timed) - 1, 0.0) if self._rule.repeat else None
        noise = 0.0 if repeat is None or repeat.interval is None else beyond(repeat.interval)
        return Comparison(
            names=tuple(subject.name for subject in self._subjects),
            launches=tuple(subject.launches for subject in self._subjects),
            samples=samples[:count],
            summaries=tuple(summary(found) for found in samples[:count]) if self._blocks else (),
            intervals=tuple(map(self._time_interval, range(count))),
            blocks=tuple(self._blocks),
            pairs=tuple(self._pair(other, noise) for other in range(1, count)),
            repeat=repeat,
            repeat_samples=samples[count] if self._rule.repeat else (),
            placements=self._placements,
            end=end,
            seconds=self._now() - self._started,
            discarded=dict(self._discarded),
            disturbed=dict(self._disturbed),
            conditions=self._extremes.summarise(self._watch.source),
            notes=tuple(self._notes(end)),
        )

    def _notes(self, end: End) -> Iterator[str]:
        if self._watch.source.startswith("unknown: "):
            why = self._watch.source.removeprefix("unknown: ")
            yield f"clocks, throttling and other processes are unknown: {why}"
        if self._placements < MIN_PLACEMENTS:
            yield (
                f"intervals hold for the {self._placements} placements that were used, not for any: "
                f"{MIN_PLACEMENTS} are needed for that"
            )
        width = self._width()
        if end is not End.PRECISE and self._blocks and (width is None or width > self._rule.precision):
            got = "too few blocks for an interval" if width is None else f"{width:.2%} wide"
            yield f"ended by {end} before intervals were {self._rule.precision:.2%} wide: {got}"
            for other in self._compared():
                interval, apart = self._interval(other), apart_by_placement(self._series(other))
                if interval is None or interval.width <= self._rule.precision or apart is None:
                    continue
                yield (
                    f"{self._timed[other].name} takes {apart[0]:.3f} to {apart[1]:.3f} of the time of"
                    f" {self._timed[0].name} from placement to placement, which more blocks do not change"
                )

    def _undisturbed(self, block: Block) -> None:
        """Measures `block` until nothing disturbs it or, where the rule keeps disturbed blocks, this machine
        is taken to be never quiet or the time is up."""
        for attempt in itertools.count():
            looks = [self._watch.now()]
            times = [0.0] * len(self._timed)
            for kernel in block.order:
                times[kernel] = self._round(self._timed[kernel], block.placement)
                looks.append(self._watch.now())
            reasons = disturbances(looks)
            given_up = bool(reasons) and (attempt + 1 >= self._rule.discards or self._now() >= self._end)
            self._never_quiet |= given_up and self._rule.keep_disturbed
            kept = not reasons or self._never_quiet
            self._lost += not kept
            (self._disturbed if kept else self._discarded).update(reasons)
            self._extremes.add(looks, kept)
            if kept:
                for found, seconds in zip(self._samples, times, strict=True):
                    found.append(seconds)
                self._blocks.append(block)  # last: what Ctrl-C leaves of a block before it does not count
                return
            self._sleep(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
            if given_up:
                raise DisturbedError(
                    f"{attempt + 1} blocks in a row were disturbed: {'; '.join(reasons)}; "
                    "wait until nothing disturbs this machine, or time elsewhere",
                    self.result(End.DISTURBED),
                )

    def _round(self, subject: Subject, placement: int) -> float:
        try:
            seconds = subject.round(placement)
        except Exception as error:
            raise RoundError(subject.name, error) from error
        if not (math.isfinite(seconds) and seconds > 0):
            raise CannotRunError(
                f"a round of {subject.name} took {seconds} s by its clock, which is too coarse for it: "
                "more launches a round"
            )
        return seconds

    def _width(self) -> float | None:
        """Of the widest interval of a pair, or of the repeat where there is one kernel; None without."""
        intervals = [self._interval(other) for other in self._compared()]
        if not intervals:
            return 0.0
        widths = [interval.width for interval in intervals if interval is not None]
        return max(widths) if len(widths) == len(intervals) else None

    def _compared(self) -> range:
        """Whose intervals are to be narrow: all but the first, or the repeat where there is one kernel."""
        return range(1, len(self._timed) if len(self._subjects) == 1 else len(self._subjects))

    def _interval(self, other: int) -> Interval | None:
        return ratio_interval(self._series(other), self._rule.confidence)

    def _time_interval(self, kernel: int) -> TimeInterval | None:
        """Of the kernel's own median. A torn run counts, as it does in the median."""
        samples = self._samples[kernel][: len(self._blocks)]
        if not samples:
            return None
        round_seconds = summary(samples).median * self._timed[kernel].launches
        logs = [math.log(seconds) for seconds in samples]
        series = Series(logs, [one.placement for one in self._blocks], [one.run for one in self._blocks])
        return time_interval(series, self._rule.confidence, self._rule.resolution / round_seconds)

    def _series(self, other: int) -> Series:
        """Of the ratios to the first kernel, of whole runs."""
        blocks = self._blocks[: self._whole]
        pairs = zip(self._samples[0][: self._whole], self._samples[other][: self._whole], strict=True)
        return Series(
            [math.log(timed / first) for first, timed in pairs],
            [block.placement for block in blocks],
            [block.run for block in blocks],
        )

    def _pair(self, other: int, noise: float) -> PairTiming:
        first, second = self._subjects[0], self._timed[other]
        interval = self._interval(other)
        margin = noise
        if interval is not None:
            rounds = [
                summary(self._samples[index]).median * self._timed[index].launches for index in (0, other)
            ]
            margin += clock_margin(self._rule.resolution, *rounds)
        within = None if interval is None else interval.within
        return PairTiming(first.name, second.name, interval, verdict(interval, margin), margin, within)
