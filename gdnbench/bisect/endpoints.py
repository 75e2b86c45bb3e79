# SPDX-License-Identifier: Apache-2.0
"""Replays the endpoints of a bisection: their verdicts, and whether repeated runs agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from gdnbench.bisect.flakiness import RUNS, Steadiness, replay_repeatedly
from gdnbench.bisect.session import NotKeptError, Session, check_content
from gdnbench.bisect.symptom import Symptom
from gdnbench.bisect.trial import BIT_DIFFERENCE, SCHEDULES, Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.verdict_cache import Question
from gdnbench.bisect.workers import OutOfTimeError, TrialRunner
from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.report.outcome import Outcome
from gdnbench.sim import extended_baseline


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One of the two. `spread` says in one line how its runs differ; empty if they agree. `left_out` says
    which runs there was no time for; empty if all ran."""

    verdict: Verdict
    steadiness: Steadiness
    spread: str
    left_out: str = ""

    def failing_schedule(self) -> str | None:
        """The first schedule under which the endpoint is bad; None if there is none, or no schedules."""
        states = self.verdict.facts["schedules"]
        return next((one for one, state in states.items() if state == State.BAD), None)


class _Keeping:
    """Runs the trials of one worker process of an endpoint and stores their verdicts when it closes. A
    bisection that is interrupted then does not replay this process again, and one that ran out of time makes
    the other runs of it."""

    def __init__(
        self,
        session: Session,
        label: str,
        question: Question,
        process: int,
        prober: Callable[[], TrialRunner],
    ) -> None:
        self._session, self._label, self._prober = session, label, prober
        self._question = {**question, "steady": RUNS, "process": process}
        known = session.verdicts.find(self._question)
        runs = [] if known is None else known.facts["runs"]
        self._known = [(str(one["schedule"]), Verdict.from_json(one["verdict"], label)) for one in runs]
        self._made: list[tuple[str, Verdict]] = []
        self._probing: TrialRunner | None = None
        self._asking = False

    def run_trial(self, trial: Trial) -> Verdict:
        schedule = trial.schedules[0]
        known = next((one for one in self._known if one[0] == schedule), None)
        if known is not None:
            self._known.remove(known)
            self._made.append(known)
            return known[1]
        if self._probing is None:
            self._probing = self._prober()
        self._asking = True
        try:
            found = self._probing.run_trial(trial)
        except OutOfTimeError:
            self._asking = False
            raise
        check_content(self._label, self._question, found)
        self._asking = False
        self._made.append((schedule, found))
        return found

    def close(self) -> None:
        if self._probing is None:
            return
        self._probing.close()
        if not self._asking and self._made:
            made = [*self._made, *self._known]
            runs = [{"schedule": schedule, "verdict": one.to_json()} for schedule, one in made]
            self._session.verdicts.add(self._question, replace(self._made[0][1], facts={"runs": runs}))


def replay_endpoint(
    session: Session,
    label: str,
    question: Question,
    trial: Trial,
    prober: Callable[[], TrialRunner],
    until: float | None = None,
) -> Endpoint:
    """Replays an endpoint by `replay_repeatedly`, or takes its verdict from the cache. If the runs agree, the
    verdict is also stored as the answer to `question`. If there was no time for all of them by `until`, each
    run is stored, and not the verdict on all. OutOfTimeError if the first run did not end."""

    def probe() -> Verdict:
        processes = count()

        def start() -> _Keeping:
            return _Keeping(session, label, question, next(processes), prober)

        found = replay_repeatedly(trial, start, until)
        by_schedule = {run.schedule: str(run.verdict.state) for run in found.runs if run.schedule}
        ending = {"steadiness": str(found.steadiness), "spread": found.reason, "schedules": by_schedule}
        facts = {**found.verdict.facts, **ending, "left_out": found.left_out}
        verdict = replace(found.verdict, facts=facts, seconds=sum(run.verdict.seconds for run in found.runs))
        if found.left_out:
            raise NotKeptError(verdict)
        return verdict

    verdict = session.find_or_probe(
        f"{label}, {RUNS} times and {RUNS} processes", {**question, "steady": RUNS}, probe
    )
    facts = verdict.facts
    end = Endpoint(verdict, Steadiness(facts["steadiness"]), str(facts["spread"]), str(facts["left_out"]))
    if end.left_out:
        session.report(f"{label}: {end.left_out}")
    elif end.steadiness is Steadiness.STEADY and session.verdicts.find(question) is None:
        session.verdicts.add(question, verdict)
    return end


@dataclass(frozen=True, slots=True)
class CheckedEndpoints:
    """Two endpoints to bisect between: by `trial` the good one is good and the bad one bad. If `ended` is not
    empty there is nothing to bisect, and `result` says why in one word."""

    trial: Trial
    good: Verdict
    bad: Verdict
    notes: list[str] = field(default_factory=list)
    ended: str = ""
    result: str = ""
    exit_code: Exit = Exit.MISMATCH


@dataclass(frozen=True, slots=True)
class EndpointReplays:
    """How to replay one endpoint: repeatedly, and once under other schedules. `label` names it."""

    label: str
    replay_steadily: Callable[[Trial], Endpoint]
    replay_once: Callable[[Trial], Verdict]


def check_endpoints(
    trial: Trial, good: EndpointReplays, bad: EndpointReplays, report: Callable[[str], None]
) -> CheckedEndpoints:
    """Replays both endpoints. If one depends on the schedule, that is reported, and trials run under all of
    SCHEDULES, or under those to which the trial is limited. With a symptom they run under those of them that
    tell, see `_telling_schedules`; with `race` the good endpoint's findings are known and do not count.
    CannotRunError for an endpoint that cannot be judged, BadInputError for a good one that is bad."""
    trial, known = _with_known_findings(trial, good, report)
    at_bad, at_good = bad.replay_steadily(trial), good.replay_steadily(trial)
    for name, one, end in (("bad", bad, at_bad), ("good", good, at_good)):
        if end.steadiness is Steadiness.FLAKY:
            said = f"the {name} endpoint {one.label} is flaky: {end.spread}"
            return CheckedEndpoints(trial, at_good.verdict, at_bad.verdict, known, said, "flaky")
    found = CheckedEndpoints(trial, at_good.verdict, at_bad.verdict)
    for one, end in ((bad, at_bad), (good, at_good)):
        if end.steadiness is Steadiness.BY_SCHEDULE:
            found.notes.append(f"{one.label} depends on the schedule: {end.spread}")
            report(found.notes[-1])
    if found.notes:
        schedules = trial.schedules if trial.only_schedules else SCHEDULES
        if trial.symptom is not None:
            schedules, notes = _telling_schedules(schedules, (good.label, at_good), (bad.label, at_bad))
            found.notes.extend(notes)
            for note in notes:
                report(note)
        trial = replace(trial, schedules=schedules)
        found = replace(found, trial=trial, bad=bad.replay_once(trial), good=good.replay_once(trial))
    found = replace(found, notes=[*known, *found.notes])
    if found.bad.state is State.GOOD and found.good.state is State.BAD:
        raise BadInputError(
            f"the good endpoint {good.label} is bad, {found.good.kind}, and the bad endpoint {bad.label}"
            " passes; exchange --good and --bad"
        )
    if found.bad.state is State.GOOD:
        raise BadInputError(f"nothing to bisect: the bad endpoint {bad.label} passes; give one that fails")
    for name, one, verdict in (("bad", bad, found.bad), ("good", good, found.good)):
        if verdict.state is State.SKIP:
            raise CannotRunError(
                f"the {name} endpoint {one.label} neither passes nor fails: {verdict.kind}, {verdict.reason}"
            )
    if found.good.state is State.BAD:
        raise BadInputError(
            f"the good endpoint {good.label} is bad too: {found.good.kind}, {found.good.reason}; give an"
            " older one"
        )
    return found


def _telling_schedules(
    schedules: tuple[str, ...], good: tuple[str, Endpoint], bad: tuple[str, Endpoint]
) -> tuple[tuple[str, ...], list[str]]:
    """Those of `schedules` under which the good endpoint lacks the symptom and both endpoints can be judged,
    or all of them if there is none. Notes name those that it drops. Endpoints come with their labels."""
    left, notes = schedules, list[str]()
    for which, (label, end), state in (
        ("good", good, State.BAD),
        ("good", good, State.SKIP),
        ("bad", bad, State.SKIP),
    ):
        out = [one for one in left if end.verdict.facts["schedules"].get(one) == state]
        if out and len(out) < len(left):
            left = tuple(one for one in left if one not in out)
            failing, rest = ", ".join(out), ", ".join(left)
            end_label = f"{which} endpoint {label}"
            said = f"the {end_label} cannot be judged under {failing}: what follows is under {rest}"
            if state is State.BAD:
                said = f"the {end_label} fails under {failing} too: what follows is under {rest}"
            notes.append(said)
    return left, notes


def _with_known_findings(
    trial: Trial, good: EndpointReplays, report: Callable[[str], None]
) -> tuple[Trial, list[str]]:
    """With the symptom `race`: the trial that knows the findings of the good endpoint, and a note that says
    how many there are."""
    if trial.symptom is not Symptom.RACE:
        return trial, []
    found = Counter[str]()
    for schedule in trial.schedules if trial.only_schedules else SCHEDULES:
        found |= Counter(good.replay_once(replace(trial, schedules=(schedule,))).facts.get("findings", {}))
    if not found:
        return trial, []
    one = found.total() == 1
    note = (
        f"{found.total()} finding{'' if one else 's'} of the good endpoint {good.label}"
        f" {'is' if one else 'are'} known and {'does' if one else 'do'} not count"
    )
    report(note)
    return replace(trial, known=extended_baseline(trial.known, found)), [note]


def failure_family(kind: str) -> str:
    """Wrong values are one kind of failure, whether a schedule shows them or all do."""
    return str(Outcome.MISMATCH) if kind == BIT_DIFFERENCE else kind
