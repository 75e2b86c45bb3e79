"""Detects flaky endpoints: runs the same trial several times in one process and in several processes.

A flaky endpoint, whose verdict or bits change between runs, would make the bisection meaningless. On the
simulator a kernel may also depend on the schedule, that is, on when asynchronous effects land. Such a kernel
is faulty but can be bisected: a trial that runs under all schedules has one verdict. If a trial has a
symptom, schedules agree if the symptom shows under all or none of them, whatever the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum

from gdnbench.bisect.trial import SCHEDULES, Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.workers import TrialRunner
from gdnbench.replay.simulated import SIM

RUNS = 3


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
    """All runs of an endpoint. `reason` says in one line how they differ; empty for STEADY."""

    steadiness: Steadiness
    verdict: Verdict
    runs: tuple[RepeatedRun, ...]
    reason: str = ""


def replay_repeatedly(trial: Trial, prober: Callable[[], TrialRunner]) -> RepeatedRuns:
    """Runs `trial` RUNS times in a first process and once in each of RUNS - 1 more, which `prober` starts. On
    the simulator, if these agree, the last process also runs it once under each other schedule: of
    SCHEDULES too, unless the trial is limited to its own."""
    first, others = trial.schedules[0], []
    if trial.on == SIM:
        more = () if trial.only_schedules else SCHEDULES
        others = [one for one in dict.fromkeys((*trial.schedules, *more)) if one != first]
    runs: list[RepeatedRun] = []
    flaky = False
    for process in range(RUNS):
        with closing(prober()) as probing:
            for schedule in [first] * (1 if process else RUNS):
                runs.append(_run(trial, schedule, process, probing))
            flaky = _differ(runs)
            if process == RUNS - 1 and not flaky:
                runs += [_run(trial, schedule, process, probing) for schedule in others]
    if flaky:
        return RepeatedRuns(Steadiness.FLAKY, runs[0].verdict, tuple(runs), describe_spread(runs))
    states = {run.verdict.state for run in runs}
    if _differ(runs) if trial.symptom is None else len(states) > 1:
        bad = next((run.verdict for run in runs if run.verdict.state is State.BAD), runs[0].verdict)
        return RepeatedRuns(Steadiness.BY_SCHEDULE, bad, tuple(runs), describe_spread(runs))
    return RepeatedRuns(Steadiness.STEADY, runs[0].verdict, tuple(runs))


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
