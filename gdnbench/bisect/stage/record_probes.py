# SPDX-License-Identifier: Apache-2.0
"""Probes of one record on the stage axis, each answered from the stored verdicts if it can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gdnbench.bisect import cache_key, endpoints
from gdnbench.bisect.flakiness import RepeatedRun, Steadiness, describe_spread
from gdnbench.bisect.record.links import Links
from gdnbench.bisect.session import Session
from gdnbench.bisect.symptom import Symptom
from gdnbench.bisect.trial import BIT_DIFFERENCE, Trial, trial_question
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.bisect.workers import ProbeWorker, TrialWorker
from gdnbench.replay.simulated import SIM
from gdnbench.store.recover import open_store

PROBES = "gdnbench.bisect.stage.probe:"
CARRIED = "gdnbench.bisect.stage.rollout:carried"


def fails_by_numbers(verdict: Verdict) -> bool:
    """Whether a stage or output fails, or the kernel ended before it left any; not only its faults, or bits
    that depend on the schedule."""
    tensors = verdict.facts.get("tensors")
    return tensors is None or any(not entry["passed"] for entry in tensors)


@dataclass(frozen=True, slots=True)
class RecordProbes:
    """Probes the record `trial.records[0]`, which `label` names. `question` is what the questions of all its
    verdicts have."""

    session: Session
    worker: ProbeWorker
    trial: Trial
    question: Mapping[str, Any]
    label: str

    @property
    def record(self) -> int:
        return (self.trial.records or (0,))[0]

    def judge_whole(self) -> Verdict:
        """Whether the record fails, in its stages and outputs: the verdict under the first schedule that
        makes numbers wrong, else under the first that is bad. Bad too if all pass and leave other bits."""
        runs: list[Verdict] = []
        for schedule in self.trial.schedules if self.trial.on == SIM else self.trial.schedules[:1]:
            runs.append(self._judge_under(schedule))
            if runs[-1].state is State.SKIP or (runs[-1].state is State.BAD and fails_by_numbers(runs[-1])):
                return runs[-1]
        found = next((run for run in runs if run.state is State.BAD), runs[0])
        if found.state is State.GOOD and len({run.digest for run in runs}) > 1:
            reason = f"it leaves other bits under another schedule than under {self.trial.schedules[0]}"
            return replace(found, state=State.BAD, kind=BIT_DIFFERENCE, reason=reason)
        return found

    def _judge_under(self, schedule: str) -> Verdict:
        under = f" under {schedule}" if self.trial.on == SIM else ""
        return self._probe(f"its own stages{under}", "chained", (schedule,))

    def judge_step(self, step: str, dtypes: Mapping[str, str], schedules: Sequence[str]) -> Verdict:
        """The verdict on a step of the kernel that takes exact stages of these dtypes."""
        label = f"step {step} of exact stages"
        return self._probe(label, "alone", schedules, step=step, dtypes=dtypes)

    def judge_with_exact(self, dtypes: Mapping[str, str], schedules: Sequence[str]) -> Verdict:
        """The verdict on the outputs with these stages exact, in these dtypes."""
        label = f"outputs with exact {', '.join(dtypes)}"
        return self._probe(label, "grafted", schedules, exact=[*dtypes], dtypes=dtypes)

    def steadiness(self, own: Verdict) -> tuple[Steadiness, str]:
        """Whether the record's verdict and bits change from run to run, and how, in one line.

        On the simulator a run is an exact function of the kernel, its host code and the schedule. So the
        process that has compiled the kernel repeats the run once and runs the record under other schedules.
        """
        if self.trial.on != SIM:
            one = replace(self.trial, schedules=self.trial.schedules[:1])
            if one.tol is not None:
                one = replace(one, k=None)  # of stages, which a trial holds to the tolerance as well
            question = trial_question(one)
            end = endpoints.replay_endpoint(self.session, self.label, question, one, TrialWorker)
            return end.steadiness, end.spread
        first = str(own.facts.get("schedule"))
        runs = [RepeatedRun(0, first, own)]
        for schedule in dict.fromkeys((first, *self.trial.schedules)):
            one = replace(self.trial, schedules=(schedule,), symptom=Symptom.NUMBERS, only_schedules=True)
            ask = partial(
                self.worker.run_probe, PROBES + "replayed", kernel=one.kernel, on=one.on, trial=one.to_json()
            )
            question = {"probe": "stage replayed", **trial_question(one)}
            verdict = self.session.find_or_probe(f"{self.label}, again under {schedule}", question, ask)
            runs.append(RepeatedRun(0, schedule, verdict))
        left = [run.verdict.digest or run.verdict.kind for run in runs]
        if left[0] != left[1]:
            return Steadiness.FLAKY, describe_spread(runs[:2])
        if len(set(left)) > 1:
            return Steadiness.BY_SCHEDULE, describe_spread(runs[1:])
        return Steadiness.STEADY, ""

    def judge_chain(self, calls: Sequence[int], links: Links, exact: Mapping[str, str]) -> Verdict:
        """The verdict on calls on the kernel's own states. `exact`: stages that are exact in each call, and
        their dtypes."""
        trial = self.trial
        with open_store(trial.store) as store:
            records = cache_key.digest_records([store.records[one] for one in calls])
        given: dict[str, Any] = {"on": trial.on, "k": trial.k, "tol": trial.tol}
        given |= {"schedules": list(trial.schedules), "exact": dict(exact)}
        with_exact = "".join(f", exact {name}" for name in exact)
        return self.session.find_or_probe(
            f"{self.label}, {len(calls)} calls on their own states{with_exact}",
            {"probe": "stage carried", **self.question, **given, CONTENT: records},
            lambda: self.worker.run_probe(
                CARRIED,
                store=trial.store,
                kernel=trial.kernel,
                calls=list(calls),
                links=links.to_json(calls),
                content=records,
                **given,
            ),
        )

    def _probe(self, label: str, probe: str, schedules: Sequence[str], **more: Any) -> Verdict:
        trial = self.trial
        tol = None if trial.tol is None else list(trial.tol)
        given = {"on": trial.on, "k": trial.k, "tol": tol, "schedules": list(schedules), **more}
        return self.session.find_or_probe(
            f"{self.label}, {label}",
            {"probe": f"stage {probe}", **self.question, **given},
            lambda: self.worker.run_probe(
                PROBES + probe,
                store=trial.store,
                kernel=trial.kernel,
                record=self.record,
                content=self.question[CONTENT],
                **given,
            ),
        )
