# SPDX-License-Identifier: Apache-2.0
"""The predicted time of a trial, which `bisect commit --time` compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gdnbench.bisect.verdict import PREDICTED, State, Verdict
from gdnbench.errors import CannotRunError
from gdnbench.report.report import RecordResult
from gdnbench.units import seconds_text

NO_TIME = "no predicted time"
"""The kind of a trial whose kernel is right and has no predicted time."""
TIME = "predicted"
"""In a verdict's facts: the `TrialTime`."""


@dataclass(frozen=True, slots=True)
class TrialTime:
    """The predicted seconds of a kernel on all records of a trial, one after another, and the range that they
    move in. `bound` is what bounds the longest launch of the longest record."""

    machine: str
    seconds: float
    low: float
    high: float
    bound: str

    def __str__(self) -> str:
        spread = f"{seconds_text(self.low)} .. {seconds_text(self.high)}"
        return f"{seconds_text(self.seconds)} ({spread}) on {self.machine}, bound by {self.bound}"

    @classmethod
    def of_verdict(cls, verdict: Verdict) -> TrialTime | None:
        """The time that the verdict is; None if it is none."""
        return None if verdict.kind != PREDICTED else cls(**verdict.facts[TIME])


def verdict_of_times(results: Sequence[RecordResult], digest: str, facts: Mapping[str, Any]) -> Verdict:
    """The verdict on records that passed: their predicted time, or SKIP if one has none. CannotRunError if
    another try may give one."""
    calls = []
    for result in results:
        (time,) = result.predicted
        if time.killed:
            raise CannotRunError(f"record {result.label} has no predicted time: {time.no_time}")
        if time.call is None:
            return Verdict(State.SKIP, NO_TIME, f"record {result.label}: {time.no_time}", digest, facts)
        calls.append(time.call)
    lows, highs = zip(*(call.range for call in calls), strict=True)
    found = TrialTime(
        calls[0].machine,
        sum(call.seconds for call in calls),
        sum(lows),
        sum(highs),
        max(calls, key=lambda call: call.seconds).longest.bound,
    )
    return Verdict(State.GOOD, PREDICTED, str(found), digest, {**facts, TIME: asdict(found)})
