# SPDX-License-Identifier: Apache-2.0
"""Looking at an endpoint and shrinking a record within a time limit, by a clock of the tests."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect import endpoints, flakiness
from gdnbench.bisect import trial as trials
from gdnbench.bisect.flakiness import RUNS, Steadiness, replay_repeatedly
from gdnbench.bisect.input.shrink import Options, Shrunk, shrink
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import SCHEDULES, Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.workers import OutOfTimeError, TrialRunner, TrialWorker
from gdnbench.ops import operation
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.messages import wording

GOOD, BAD = Verdict(State.GOOD, "pass"), Verdict(State.BAD, "numeric mismatch", "o: far off")
SIMULATED = Trial("s.zarr", "theirs.py:prefill", "sim")


@dataclass
class Workers:
    """Starts workers whose first trial takes `cold` seconds of a clock of its own and each later one `warm`;
    `answer` is their verdict. None answers after `deadline`."""

    cold: float
    warm: float
    answer: Callable[[Trial], Verdict]
    deadline: float | None = None
    now: float = 0.0
    started: int = 0
    asked: list[Trial] = field(default_factory=list)

    def __call__(self) -> _Worker:
        self.started += 1
        return _Worker(self)

    def monotonic(self) -> float:
        return self.now


class _Worker:
    def __init__(self, workers: Workers) -> None:
        self._workers, self._used = workers, False

    def run_trial(self, trial: Trial) -> Verdict:
        workers = self._workers
        workers.now += workers.warm if self._used else workers.cold
        self._used = True
        if workers.deadline is not None and workers.now > workers.deadline:
            workers.now = workers.deadline
            raise OutOfTimeError
        workers.asked.append(trial)
        return workers.answer(trial)

    def close(self) -> None:
        pass


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Workers], Workers]:
    def run_by_clock_of(workers: Workers) -> Workers:
        for module in ("flakiness", "input.shrink", "input.probing"):
            monkeypatch.setattr(f"gdnbench.bisect.{module}.time", workers)
        return workers

    return run_by_clock_of


@pytest.mark.parametrize(
    ("until", "schedules"),
    [
        (None, ["late"] * 5 + ["early", "random:0"]),
        (1000.0, ["late"] * 5 + ["early", "random:0"]),
        (30.0, ["late"] * RUNS),  # 10 + 2 + 2 s; another process would take 10 s and end at 24 s ...
        (23.0, ["late"] * RUNS),  # ... so it is not started here
        (5.0, ["late"]),
    ],
)
def test_runs_end_where_the_next_would_take_too_long(
    clocked: Any, until: float | None, schedules: list[str]
) -> None:
    workers = clocked(Workers(10, 2, lambda trial: BAD))
    found = replay_repeatedly(SIMULATED, workers, until)
    if until == 30.0:
        schedules = [*schedules, "late"]
    assert [run.schedule for run in found.runs] == schedules
    assert found.steadiness is Steadiness.STEADY
    assert bool(found.left_out) == (len(schedules) < 7)
    if until is not None and until > 10:
        assert workers.now <= until
    if found.left_out:
        count, processes = len(schedules), 2 if until == 30.0 else 1
        said = wording("bisect.look-cut", times=count, processes=processes, under=" under late")
        assert re.match(said, found.left_out)


def test_with_a_time_limit_a_record_that_passes_is_tried_under_other_schedules_first(clocked: Any) -> None:
    workers = clocked(Workers(10, 2, lambda trial: BAD if trial.schedules == ("early",) else GOOD))
    found = replay_repeatedly(SIMULATED, workers, 20.0)
    assert [run.schedule for run in found.runs] == [*SCHEDULES, "late", "late"]
    assert (found.steadiness, found.verdict.state) == (Steadiness.BY_SCHEDULE, State.BAD)
    cpu = replay_repeatedly(replace(SIMULATED, on="cpu"), clocked(Workers(1, 1, lambda trial: GOOD)), 2.5)
    assert [run.schedule for run in cpu.runs] == ["", ""]


def test_an_endpoint_that_was_cut_short_goes_on_with_the_runs_that_it_lacks(
    clocked: Any, tmp_path: Path
) -> None:
    question = {"kernel": "theirs"}

    def look(until: float | None) -> tuple[endpoints.Endpoint, int]:
        session = Session.begin(tmp_path, "input", {}, lambda line: None)
        workers = clocked(Workers(10, 2, lambda trial: BAD))
        end = endpoints.replay_endpoint(session, "the record", question, SIMULATED, workers, until)
        return end, len(workers.asked)

    end, asked = look(5.0)
    assert (asked, bool(end.left_out)) == (1, True)
    assert end.failing_schedule() == "late"
    end, asked = look(None)
    assert (asked, end.left_out) == (6, "")
    assert look(None)[1] == 0
    with pytest.raises(OutOfTimeError):
        flakiness.replay_repeatedly(SIMULATED, clocked(Workers(10, 2, lambda trial: BAD, deadline=9)), 3.0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A call whose keys are alike, on which an inverse of three rounds fails."""
    call = synthesise(
        "gdn_prefill",
        seqlens=(70, 100, 64, 5), heads=(2, 8), head_dim=(16, 16), key_correlation=1.0, beta=(1, 1), seed=5,
    )  # fmt: skip
    with StoreWriter(tmp_path / "alike.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_prefill", call)])
    return tmp_path / "alike.zarr"


def shrink_three_rounds(
    store: Path,
    workers: Callable[[], TrialRunner],
    options: Options,
    keep: Callable[[Shrunk], None] = lambda found: None,
    on: str = "cpu",
) -> Shrunk:
    kernel = f"{Path(__file__).with_name('three_rounds.py')}:prefill"
    trial = Trial(str(store), kernel, on, records=(0,))
    session = Session.begin(store.parent / "state", "input", {}, lambda line: None)
    with Store.open(store) as opened:
        return shrink(opened.records[0], trial, options, session, keep, workers)


def extent(found: Shrunk) -> dict[str, int]:
    assert found.shrinker is not None
    shrinking = operation("gdn_prefill").shrinking
    assert shrinking is not None
    return shrinking.extent(found.shrinker.best.call)


@pytest.mark.slow
def test_the_inverse_of_three_rounds_has_its_input_shrunk_within_the_budget(
    clocked: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial takes what one of vLLM's kernels takes on the simulator. All that is learned of the record is
    used: where it is worst, its verdict, and the last process, which has compiled the kernel."""
    monkeypatch.setattr(trials, "toolchain", lambda on: {})
    workers = clocked(Workers(6, 3, trials.run_trial, deadline=48))
    found = shrink_three_rounds(store, workers, Options(budget=50))
    assert workers.now <= 50
    looked = [trial for trial in workers.asked if trial.store == str(store)]
    assert len(looked) == RUNS  # 6 + 3 + 3 s; a second process would end after 18 s, which is over 50 / 3
    assert workers.started == 1
    note, other = found.notes
    assert re.match(wording("bisect.look-cut", times=RUNS, processes=1), note)
    assert re.fullmatch(wording("bisect.smallest-not-alone"), other)
    smaller = [trial for trial in workers.asked if trial.store != str(store)]
    assert len(smaller) == (48 - 12) // 3
    assert extent(found)["token"] <= 32  # two blocks of the inverse, of 239 tokens
    assert {extent(found)[one] for one in ("sequence", "chunk", "key head", "value head")} == {1}


class Remembering:
    """A process in which every call fails after one of more than 2 tokens, as where a kernel keeps a buffer
    from call to call."""

    def __init__(self) -> None:
        self._spoilt = False

    def run_trial(self, trial: Trial) -> Verdict:
        with Store.open(trial.store) as store:
            self._spoilt |= store.records[0].before["q"].meta.shape[0] > 2
        return BAD if self._spoilt else GOOD

    def close(self) -> None:
        pass


def test_a_record_that_fails_after_others_alone_is_not_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "toolchain", lambda on: {})
    call = synthesise("gdn_prefill", seqlens=(4,), heads=(1, 1), head_dim=(8, 8), seed=5)
    with StoreWriter(tmp_path / "small.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_prefill", call)])
    found = shrink_three_rounds(tmp_path / "small.zarr", Remembering, Options())
    assert (extent(found)["token"], found.complete) == (3, True)
    assert re.fullmatch(wording("bisect.smallest-after-others"), found.notes[-1])


def test_a_record_that_fails_under_one_schedule_is_shrunk_under_it(
    clocked: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No candidate is replayed under the others, as if one schedule were not enough of a reproduction."""
    monkeypatch.setattr(trials, "toolchain", lambda on: {})
    workers = clocked(Workers(1, 1, lambda trial: BAD if trial.schedules == ("early",) else GOOD))
    found = shrink_three_rounds(store, workers, Options(budget=30), on="sim")
    assert re.search("shrunk under early", found.notes[0])
    smaller = [trial for trial in workers.asked if trial.store != str(store)]
    assert {trial.schedules for trial in smaller} == {("early",)}
    assert extent(found)["token"] == 0


def test_a_worker_that_runs_at_the_deadline_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = Workers(0, 0, lambda trial: BAD), list[float]()

    class Silent:
        def receive(self, timeout: float) -> dict[str, Any]:
            return {}

        def request(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
            asked.append(timeout)
            clock.now += timeout
            raise TimeoutError

        def python_stacks(self, *, hangs: bool = False) -> str:
            return ""

        def kill(self) -> None: ...

    monkeypatch.setattr("gdnbench.bisect.workers.time", clock)
    monkeypatch.setattr("gdnbench.bisect.workers.WorkerProcess", lambda *args, **place: Silent())
    assert TrialWorker(timeout=5, deadline=12).run_trial(SIMULATED).kind == trials.IMPORT_FAILURE
    worker = TrialWorker(timeout=600, deadline=12)
    for _ in range(2):
        with pytest.raises(OutOfTimeError):
            worker.run_trial(SIMULATED)
    assert asked == [5, 7]


def test_a_budget_for_less_than_one_replay_is_said(clocked: Any, store: Path) -> None:
    workers = clocked(Workers(20, 3, trials.run_trial, deadline=10))
    found = shrink_three_rounds(store, workers, Options(budget=10))
    assert (found.shrinker, found.first.state) == (None, State.SKIP)
    assert re.search(wording("bisect.budget-too-short", budget="10"), found.reason)


@pytest.mark.slow
def test_a_budget_that_ends_after_the_first_replay_keeps_the_record_itself(clocked: Any, store: Path) -> None:
    workers, kept = clocked(Workers(20, 3, trials.run_trial, deadline=22)), list[Shrunk]()
    found = shrink_three_rounds(store, workers, Options(budget=23), kept.append)
    assert kept == [found]
    assert extent(found)["token"] == 239
    assert not found.complete
