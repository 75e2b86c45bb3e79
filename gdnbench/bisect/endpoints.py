"""Looks at an end of a bisection: its verdict, and whether it is steady enough to go by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from gdnbench.bisect.flakiness import RUNS, Steadiness, steady
from gdnbench.bisect.session import Session, check_content
from gdnbench.bisect.trial import BIT_DIFFERENCE, SCHEDULES, Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.verdict_cache import Question
from gdnbench.bisect.workers import TrialRunner
from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.report.outcome import Outcome


@dataclass(frozen=True, slots=True)
class End:
    """`spread`: one line, empty where it is steady."""

    verdict: Verdict
    steadiness: Steadiness
    spread: str


class _Keeping:
    """A process of an end, whose runs are known when it ends: one that is interrupted is not replayed from
    the first process on."""

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
        known = session.ledger.find(self._question)
        self._known = [] if known is None else [Verdict.from_json(one, label) for one in known.facts["runs"]]
        self._made: list[Verdict] = []
        self._probing: TrialRunner | None = None
        self._asking = False

    def run_trial(self, trial: Trial) -> Verdict:
        if len(self._made) < len(self._known):
            self._made.append(self._known[len(self._made)])
            return self._made[-1]
        if self._probing is None:
            self._probing = self._prober()
        self._asking = True
        found = self._probing.run_trial(trial)
        check_content(self._label, self._question, found)
        self._asking = False
        self._made.append(found)
        return found

    def close(self) -> None:
        if self._probing is None:
            return
        self._probing.close()
        if not self._asking and self._made:
            runs = {"runs": [one.to_json() for one in self._made]}
            self._session.ledger.add(self._question, replace(self._made[0], facts=runs))


def look(
    session: Session, label: str, question: Question, trial: Trial, prober: Callable[[], TrialRunner]
) -> End:
    """Replays an end as `steady` does, or knows it from before. The verdict of a steady end is known as that
    of `question`, too."""

    def probe() -> Verdict:
        processes = count()
        found = steady(trial, lambda: _Keeping(session, label, question, next(processes), prober))
        facts = {**found.verdict.facts, "steadiness": str(found.steadiness), "spread": found.reason}
        return replace(found.verdict, facts=facts, seconds=sum(run.verdict.seconds for run in found.runs))

    verdict = session.ask(f"{label}, {RUNS} times and {RUNS} processes", {**question, "steady": RUNS}, probe)
    end = End(verdict, Steadiness(verdict.facts["steadiness"]), str(verdict.facts["spread"]))
    if end.steadiness is Steadiness.STEADY and session.ledger.find(question) is None:
        session.ledger.add(question, verdict)
    return end


@dataclass(frozen=True, slots=True)
class Settled:
    """Two ends to go by: the good one is good, the bad one bad, by `trial`. Or, if `ended`, there is nothing
    to bisect: `result` in a word."""

    trial: Trial
    good: Verdict
    bad: Verdict
    notes: list[str] = field(default_factory=list)
    ended: str = ""
    result: str = ""
    exit_code: Exit = Exit.MISMATCH


@dataclass(frozen=True, slots=True)
class Asking:
    """How one end is asked: steadily, and once by a trial of other schedules. `label`: what it is called."""

    label: str
    look: Callable[[Trial], End]
    ask: Callable[[Trial], Verdict]


def settle(trial: Trial, good: Asking, bad: Asking, told: Callable[[str], None]) -> Settled:
    """Looks at both ends. One that depends on the schedule is said to, and then all of SCHEDULES are tried.
    CannotRunError for an end that says nothing, BadInputError for a good end that is bad."""
    at_bad, at_good = bad.look(trial), good.look(trial)
    for name, one, end in (("bad", bad, at_bad), ("good", good, at_good)):
        if end.steadiness is Steadiness.FLAKY:
            said = f"the {name} end {one.label} is flaky: {end.spread}"
            return Settled(trial, at_good.verdict, at_bad.verdict, [], said, "flaky")
    found = Settled(trial, at_good.verdict, at_bad.verdict)
    for one, end in ((bad, at_bad), (good, at_good)):
        if end.steadiness is Steadiness.BY_SCHEDULE:
            found.notes.append(f"{one.label} depends on the schedule: {end.spread}")
            told(found.notes[-1])
    if found.notes:
        trial = replace(trial, schedules=SCHEDULES)
        found = replace(found, trial=trial, bad=bad.ask(trial), good=good.ask(trial))
    if found.bad.state is State.GOOD and found.good.state is State.BAD:
        raise BadInputError(
            f"the good end {good.label} is bad, {found.good.kind}, and the bad end {bad.label} passes;"
            " exchange --good and --bad"
        )
    if found.bad.state is State.GOOD:
        raise BadInputError(f"nothing to bisect: the bad end {bad.label} passes; give one that fails")
    for name, one, verdict in (("bad", bad, found.bad), ("good", good, found.good)):
        if verdict.state is State.SKIP:
            raise CannotRunError(
                f"the {name} end {one.label} cannot be told: {verdict.kind}, {verdict.reason}"
            )
    if found.good.state is State.BAD:
        raise BadInputError(
            f"the good end {good.label} is bad too: {found.good.kind}, {found.good.reason}; give an older one"
        )
    return found


def family(kind: str) -> str:
    """Wrong values are one kind of failure, whether a schedule shows them or all do."""
    return str(Outcome.MISMATCH) if kind == BIT_DIFFERENCE else kind
