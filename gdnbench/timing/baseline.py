# SPDX-License-Identifier: Apache-2.0
"""A timing beside an earlier one of the same record, mode and machine: what became slower than noise.

The two ran in different processes, at different times, on other addresses, so nothing cancels between them:
the interval is of two independent series, and beyond it lies a margin for what a single run cannot see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gdnbench.errors import BadInputError
from gdnbench.timing.conditions import CLOCK_STEP
from gdnbench.timing.result import KernelTiming, Machine, RecordTiming
from gdnbench.timing.statistics import (
    CONFIDENCE,
    MIN_PLACEMENTS,
    Interval,
    Series,
    Verdict,
    clock_margin,
    unpaired_interval,
    verdict,
)
from gdnbench.timing.types import COARSEST, RESOLUTION

UNKNOWN_CLOCKS = 0.05
"""Margin where nobody could read the clocks, CPUs among them: x86 cores step by 100 MHz, which is 5 % at
2 GHz, and a process may run a step lower than an earlier one throughout."""

UNSEEN_PLACEMENTS = 0.08
"""Margin of a run on fewer than `MIN_PLACEMENTS` placements: identical kernels timed 0.94 to 1.08 apart from
the placement of their buffers alone."""


MOST_DISTURBED = 0.25
"""Part of a run's blocks that may be disturbed: what the middle half leaves out on each side. Kernels of one
run are disturbed alike, so a run judges them still; nothing says that two runs were."""


@dataclass(frozen=True, slots=True)
class Change:
    """One kernel then and now. The ratio is the time now over the time then.

    margin: how far beyond 1 the whole interval must lie for a verdict, as a part of 1. within: how far from
    1 the interval reaches. Of an unknown verdict `reason` says why.
    """

    kernel: str
    before: float | None  # median seconds a launch
    after: float | None
    interval: Interval | None
    verdict: Verdict
    margin: float = 0.0
    within: float | None = None
    reason: str = ""

    @property
    def regression(self) -> bool:
        return self.verdict is Verdict.SLOWER


@dataclass(frozen=True, slots=True)
class AgainstBaseline:
    """What became of a record's kernels since the baseline. `notes`: what else is not as it was."""

    label: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def regression(self) -> bool:
        return any(change.regression for change in self.changes)


def against(now: RecordTiming, baseline: RecordTiming) -> AgainstBaseline:
    """Every kernel of `now` beside the one of its name in `baseline`.

    BadInputError, in one line, where times cannot be compared: another record, operation, mode, clock or
    device.
    """
    for what, ours, theirs in (
        ("record", now.key, baseline.key),
        ("operation", now.op, baseline.op),
        ("cache", now.mode.cache, baseline.mode.cache),
        ("form", now.mode.form, baseline.mode.form),
        ("clock", now.clock or "not named", baseline.clock or "not named"),
        ("kind of device", now.machine.kind, baseline.machine.kind),
        ("device", now.machine.device, baseline.machine.device),
    ):
        if ours != theirs:
            raise BadInputError(
                f"record {now.label}: {what} is {ours}, the baseline's is {theirs}: "
                "compare with a baseline of the same record, mode and machine"
            )
    changes = tuple(_change(now, kernel, baseline) for kernel in now.kernels)
    return AgainstBaseline(now.label, changes, tuple(_differences(now.machine, baseline.machine)))


def _change(now: RecordTiming, kernel: KernelTiming, baseline: RecordTiming) -> Change:
    earlier = baseline.kernel(kernel.name)
    before = None if earlier is None or earlier.summary is None else earlier.summary.median
    after = None if kernel.summary is None else kernel.summary.median
    if earlier is None or before is None or after is None:
        reason = (
            f"not timed now: {kernel.outcome}"
            if after is None
            else "not in the baseline"
            if earlier is None
            else f"not timed in the baseline: {earlier.outcome}"
        )
        return Change(kernel.name, before, after, None, Verdict.UNKNOWN, reason=reason)
    interval = unpaired_interval(_series(baseline, earlier), _series(now, kernel), CONFIDENCE)
    reason = "too few blocks for an interval" if interval is None else ""
    for when, timing in (("now", now), ("then", baseline)):
        count, blocks = max(timing.disturbed.values(), default=0), len(timing.blocks)
        if count > MOST_DISTURBED * blocks:
            reason = f"{count} of {blocks} blocks {when} were disturbed"
    if interval is None or reason:
        return Change(kernel.name, before, after, interval, Verdict.UNKNOWN, reason=reason)
    margin = _margin(now, baseline)
    resolution = RESOLUTION.get(now.clock, COARSEST)
    margin += clock_margin(resolution, before * earlier.launches, after * kernel.launches)
    return Change(kernel.name, before, after, interval, verdict(interval, margin), margin, interval.within)


def _series(timing: RecordTiming, kernel: KernelTiming) -> Series:
    return Series(
        [math.log(seconds) for seconds in kernel.samples],
        [block.placement for block in timing.blocks],
        [block.run for block in timing.blocks],
    )


def _margin(now: RecordTiming, baseline: RecordTiming) -> float:
    """What neither run can see of the other, in logarithms.

    Clocks: a kernel's time follows its clock at most one to one, so as far as the clocks seen in both lie
    apart, and a step that looks between rounds may have missed.
    """
    margin = 0.0
    if min(now.placements, baseline.placements) < MIN_PLACEMENTS:
        margin += UNSEEN_PLACEMENTS
    ends = []
    for timing in (now, baseline):
        seen = timing.conditions
        if seen is None or seen.lowest.clock is None or seen.highest.clock is None:
            return margin + UNKNOWN_CLOCKS
        ends += [seen.lowest.clock, seen.highest.clock]
    return margin + math.log(max(ends) / min(ends)) + CLOCK_STEP / min(ends)


def _differences(now: Machine, before: Machine) -> Iterator[str]:
    """What may explain a change. A host's name is not in a time: it is said and not refused."""
    for what in ("host", "driver", "cuda", "python", "os"):
        ours, theirs = getattr(now, what), getattr(before, what)
        if ours != theirs:
            yield f"{what}: {theirs or 'none'} then, {ours or 'none'} now"
    for name in sorted({*now.packages, *before.packages}):
        ours, theirs = now.packages.get(name, "none"), before.packages.get(name, "none")
        if ours != theirs:
            yield f"{name}: {theirs} then, {ours} now"
