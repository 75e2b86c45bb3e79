# SPDX-License-Identifier: Apache-2.0
"""Detects flaky endpoints: runs the same trial several times in one process and in several processes.

A flaky endpoint, whose verdict or bits change between runs, would make the bisection meaningless. On the
simulator a kernel may also depend on the schedule, that is, on when asynchronous effects land. Such a kernel
is faulty but can be bisected: a trial that runs under all schedules has one verdict. If a trial has a
symptom, schedules agree if the symptom shows under all or none of them, whatever the bits.

A bisection with a time limit replays its endpoint repeatedly for a part of the limit only, LOOK_SHARE.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from enum import StrEnum

from gdnbench.bisect.trial import SCHEDULES, Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.workers import OutOfTimeError, TrialRunner
from gdnbench.replay.simulated import SIM

RUNS = 3
LOOK_SHARE = 1 / 3
"""Part of a time limit that the repeated runs of endpoints may take."""


class Steadiness(StrEnum):
    STEADY = "steady"
    FLAKY = "flaky"
    BY_SCHEDULE = "depends on the schedule"


@dataclass(frozen=True, slots=True)
class RepeatedRun:
    """One run. `process` counts from 0; the first process makes RUNS runs."""

    process: int
    schedule: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class RepeatedRuns:
    """All runs of an endpoint. `reason` says in one line how they differ; empty for STEADY. `left_out` says
    which runs there was no time for and what is not known without them; empty if all ran."""

    steadiness: Steadiness
    verdict: Verdict
    runs: tuple[RepeatedRun, ...]
    reason: str = ""
    left_out: str = ""


def replay_repeatedly(
    trial: Trial, prober: Callable[[], TrialRunner], until: float | None = None
) -> RepeatedRuns:
    """Runs `trial` RUNS times in a first process and once in each of RUNS - 1 more, which `prober` starts. On
    the simulator, if these agree, the last process also runs it once under each other schedule: of
    SCHEDULES too, unless the trial is limited to its own.

    `until`, on the monotonic clock: after the first run, none begins that is expected to end later. If the
    first run passes, the other schedules then come before the repeats. OutOfTimeError if the first run did
    not end.
    """
    first, runs, left_out = trial.schedules[0], list[RepeatedRun](), ""
    cold = warm = 0.0  # seconds of the last run that was the first of its process, and of the last other one
    with ExitStack() as stack:
        probing, process = stack.enter_context(closing(prober())), 0
        for at, schedule in _plan(trial, until is not None, runs):
            if schedule != first and _differ([run for run in runs if run.schedule == first]):
                continue
            begin = time.monotonic()
            if runs and until is not None and begin + (cold if at != process else warm) > until:
                left_out = _describe_left_out(trial, runs)
                break
            if started := at != process:
                stack.close()
                probing, process = stack.enter_context(closing(prober())), at
            try:
                runs.append(_run(trial, schedule, process, probing))
            except OutOfTimeError:
                if not runs:
                    raise
                left_out = _describe_left_out(trial, runs)
                break
            warm = time.monotonic() - begin
            if started or len(runs) == 1:
                cold = warm
    same = [run for run in runs if run.schedule in ("", first)]
    if _differ(same):
        return RepeatedRuns(Steadiness.FLAKY, runs[0].verdict, tuple(runs), describe_spread(runs), left_out)
    states = {run.verdict.state for run in runs}
    if _differ(runs) if trial.symptom is None else len(states) > 1:
        bad = next((run.verdict for run in runs if run.verdict.state is State.BAD), runs[0].verdict)
        spread = describe_spread(runs)
        return RepeatedRuns(Steadiness.BY_SCHEDULE, bad, tuple(runs), spread, left_out)
    return RepeatedRuns(Steadiness.STEADY, runs[0].verdict, tuple(runs), left_out=left_out)


def _plan(trial: Trial, limited: bool, runs: list[RepeatedRun]) -> Iterator[tuple[int, str]]:
    """Process and schedule of one run after the other; `runs` are those that were made so far."""
    first, others = trial.schedules[0], list[str]()
    if trial.on == SIM:
        more = () if trial.only_schedules else SCHEDULES
        others = [one for one in dict.fromkeys((*trial.schedules, *more)) if one != first]
    repeats = [(0, first)] * (RUNS - 1) + [(process, first) for process in range(1, RUNS)]
    yield 0, first
    if limited and runs[0].verdict.state is State.GOOD:
        yield from ((0, other) for other in others)
        yield from repeats
    else:
        yield from repeats
        yield from ((RUNS - 1, other) for other in others)


def _describe_left_out(trial: Trial, runs: list[RepeatedRun]) -> str:
    """Which runs were made, and what is not known without the others, in one line."""
    first = [run for run in runs if run.schedule in ("", trial.schedules[0])]
    schedules = [run.schedule for run in runs if run.schedule]
    under = f" under {', '.join(dict.fromkeys(schedules))}" if schedules else ""
    times, places = len(first), len({run.process for run in first})
    unknown = "flaky or depends on the schedule" if trial.on == SIM else "flaky"
    return (
        f"replayed {times} of {2 * RUNS - 1} times, in {places} of {RUNS} processes{under}, for lack of time:"
        f" whether it is {unknown} is not fully known"
    )


def _run(trial: Trial, schedule: str, process: int, probing: TrialRunner) -> RepeatedRun:
    verdict = probing.run_trial(replace(trial, schedules=(schedule,)))
    return RepeatedRun(process, schedule if trial.on == SIM else "", verdict)


def _differ(runs: list[RepeatedRun]) -> bool:
    return len({(run.verdict.state, run.verdict.kind, run.verdict.digest) for run in runs}) > 1


def describe_spread(runs: list[RepeatedRun]) -> str:
    """How the runs differ, in one line: how often each verdict, how many different results, and the range of
    the errors."""
    kinds: dict[str, int] = {}
    for run in runs:
        kinds[run.verdict.kind] = kinds.get(run.verdict.kind, 0) + 1
    parts = [", ".join(f"{kind} {count} of {len(runs)}" for kind, count in kinds.items())]
    digests = {run.verdict.digest for run in runs if run.verdict.digest}
    if len(digests) > 1:
        parts.append(f"{len(digests)} different results")
    errors: dict[str, list[float]] = {}
    for run in runs:
        for name, error in run.verdict.facts.get("errors", {}).items():
            errors.setdefault(name, []).append(error)
    parts += [
        f"RMS error of {name} {min(found):.3g} to {max(found):.3g}"
        for name, found in errors.items()
        if min(found) < max(found)
    ]
    schedules = {run.schedule: run.verdict.kind for run in runs if run.schedule}
    if len(set(schedules.values())) > 1:
        parts.append(", ".join(f"{kind} under {schedule}" for schedule, kind in schedules.items()))
    return "; ".join(parts)
