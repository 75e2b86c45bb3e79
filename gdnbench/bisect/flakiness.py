"""Whether an end can be bisected: the same trial, again and again, in one process and in several.

An end whose verdict or bits change by themselves would lead anywhere. On the simulator a kernel may depend on
when asynchronous effects land, which is a fault of its own that can be bisected all the same: a trial of all
schedules has one verdict.
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
class Run:
    """One of the runs. `process` counts from 0; the first has RUNS of them."""

    process: int
    schedule: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Steady:
    """What the runs of an end came to. `reason`: one line, with the spread, of an end that is not steady."""

    steadiness: Steadiness
    verdict: Verdict
    runs: tuple[Run, ...]
    reason: str = ""


def steady(trial: Trial, prober: Callable[[], TrialRunner]) -> Steady:
    """RUNS runs in one process, and one in each of others, which with it are RUNS. On the simulator, where it
    is steady so far, the last of them goes on with one under each other schedule."""
    first, others = trial.schedules[0], []
    if trial.on == SIM:
        others = [one for one in dict.fromkeys((*trial.schedules, *SCHEDULES)) if one != first]
    runs: list[Run] = []
    flaky = False
    for process in range(RUNS):
        with closing(prober()) as probing:
            for schedule in [first] * (1 if process else RUNS):
                runs.append(_run(trial, schedule, process, probing))
            flaky = _differ(runs)
            if process == RUNS - 1 and not flaky:
                runs += [_run(trial, schedule, process, probing) for schedule in others]
    if flaky:
        return Steady(Steadiness.FLAKY, runs[0].verdict, tuple(runs), spread(runs))
    if _differ(runs):
        bad = next((run.verdict for run in runs if run.verdict.state is State.BAD), runs[0].verdict)
        return Steady(Steadiness.BY_SCHEDULE, bad, tuple(runs), spread(runs))
    return Steady(Steadiness.STEADY, runs[0].verdict, tuple(runs))


def _run(trial: Trial, schedule: str, process: int, probing: TrialRunner) -> Run:
    verdict = probing.run_trial(replace(trial, schedules=(schedule,)))
    return Run(process, schedule if trial.on == SIM else "", verdict)


def _differ(runs: list[Run]) -> bool:
    return len({(run.verdict.state, run.verdict.kind, run.verdict.digest) for run in runs}) > 1


def spread(runs: list[Run]) -> str:
    """What differs between runs, in one line: verdicts with their numbers, bits, and errors from least to
    most."""
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
