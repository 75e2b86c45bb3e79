# SPDX-License-Identifier: Apache-2.0
"""The axis `commit` by predicted times. In histories whose slow commit is known, what a revision takes stands
in a file; in trials a kernel is simulated."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect import trial as trials
from gdnbench.bisect.predicted import NO_TIME, TrialTime, verdict_of_times
from gdnbench.bisect.trial import Trial, run_trial
from gdnbench.bisect.verdict import PREDICTED, State
from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.sim.predict import PredictedTime
from tests.cli.moving_kernel import COMMUNICATING, KERNEL, WRONG
from tests.messages import wording
from tests.sim.predict.tools import toolkit

Bisect = Callable[..., Any]


@pytest.fixture
def slower(bisecting: Any, monkeypatch: pytest.MonkeyPatch) -> Bisect:
    """Bisects by predicted times."""
    monkeypatch.setattr(trials, "tool_versions", list)
    trial = Trial(str(bisecting.store), "pack.kernel:kernel", "sim", predict="h200")
    return lambda good, bad: bisecting(good, bad, trial)


def test_the_commit_nearer_to_the_bad_time_is_named(slower: Bisect, bisecting: Any, history: Any) -> None:
    """The geometric mean of 1 and 2.4 us is 1.55 us: only commit 3 crosses it, and the wrong one says
    nothing. It is 1.82 times slower of 2.4, so others are so by 1.1 before and 1.2 after."""
    words = ["takes:1", "takes:1.1", "wrong", "takes:1.1", "takes:2", "takes:2.4"]
    made = bisecting.commits(history, *words)
    answer = slower(made[0], made[-1])
    assert answer.exit_code is Exit.MISMATCH
    assert answer.found["commit"]["hash"] == made[4]
    assert (answer.found["before"]["seconds"], answer.found["after"]["seconds"]) == (1.1e-6, 2e-6)
    assert answer.found["threshold"] == pytest.approx(1.549e-6, rel=1e-3)
    found = wording(
        "bisect.first-slow-commit",
        commit=made[4][:10],
        subject="4 takes:2",
        before="1.1 us",
        after="2 us",
        machine="h200",
        ratio=", 1.82 times",
        bound="HBM",
    )
    assert re.fullmatch(found, answer.lines[-1])
    assert answer.found["notes"] == [
        f"note: later commits make it 1.2 times slower: bisect again with --good {made[4][:10]}",
        f"note: earlier commits make it 1.1 times slower: bisect again with --bad {made[3][:10]}",
    ]
    states = {step["hash"]: step["state"] for step in answer.found["steps"]}
    assert (states[made[0]], states[made[-1]]) == ("fast", "slow")
    assert (states[made[4]], states[made[3]]) == ("slow", "fast")
    if made[2] in states:
        assert states[made[2]] == "skip"
    for made_step, line in zip(answer.found["steps"], answer.lines, strict=False):
        assert line.startswith(f"{made_step['hash'][:10]}  {made_step['state']}  ")


@pytest.mark.slow
def test_commits_without_a_time_before_the_slow_one_are_candidates(
    slower: Bisect, bisecting: Any, history: Any
) -> None:
    made = bisecting.commits(history, "takes:1", "wrong", "takes:2")
    answer = slower(made[0], made[-1])
    assert answer.found["result"] == "candidates"
    assert [one["hash"] for one in answer.found["candidates"]] == made[1:]
    names = f"{made[1][:10]}, {made[2][:10]}"
    assert re.fullmatch(wording("bisect.slow-candidates", count=2, names=names), answer.lines[-1])
    assert any("mismatch" in line for line in answer.lines)


@pytest.mark.parametrize(
    ("good", "bad", "error", "message"),
    [
        pytest.param("takes:2", "takes:1", BadInputError, "bisect.bad-faster", marks=pytest.mark.slow),
        ("takes:1", "takes:1.009", BadInputError, "bisect.times-alike"),
        pytest.param(  # alike by a second process
            *("takes:1,1.5", "takes:1.4,1.6", BadInputError, "bisect.times-alike"), marks=pytest.mark.slow
        ),
        ("wrong", "takes:1", CannotRunError, "bisect.endpoint-timeless"),
    ],
)
def test_endpoints_that_say_nothing_are_refused(
    slower: Bisect,
    bisecting: Any,
    history: Any,
    good: str,
    bad: str,
    error: type[Exception],
    message: str,
) -> None:
    made = bisecting.commits(history, good, bad)
    with pytest.raises(error, match=message_of(message)):
        slower(*made)


def message_of(code: str) -> str:
    return {
        "bisect.bad-faster": wording("bisect.bad-faster"),
        "bisect.times-alike": wording("bisect.times-alike", least="1%"),
        "bisect.endpoint-timeless": wording("bisect.endpoint-timeless", end="good"),
    }[code]


@pytest.mark.slow
def test_a_kernel_that_was_slow_before_the_histories_part(
    slower: Bisect, bisecting: Any, history: Any
) -> None:
    (base,) = bisecting.commits(history, "takes:2")
    history.git("checkout", "--quiet", "-b", "release")
    bisecting.commits(history, "takes:1")
    history.git("checkout", "--quiet", "main")
    bisecting.commits(history, "takes:2", "takes:2.1")
    answer = slower("release", "main")
    assert (answer.exit_code, answer.found["result"]) == (Exit.MISMATCH, "older")
    assert answer.found["merge_base"] == base
    said = wording("bisect.slow-before", base=re.compile(f"{base[:10]} .*"))
    assert re.fullmatch(said, answer.lines[-1])


def test_a_bad_endpoint_before_the_good_one_costs_no_prediction(
    slower: Bisect, bisecting: Any, history: Any, replays: Any
) -> None:
    made = bisecting.commits(history, "takes:2", "takes:1")
    later = re.compile(wording("bisect.later-endpoint"))
    with pytest.raises(BadInputError, match=wording("bisect.bad-before-good", exchanged=later)):
        slower(made[1], made[0])
    assert replays.asked == []


def test_a_time_model_for_each_revision_is_refused(slower: Bisect, bisecting: Any, history: Any) -> None:
    history.commit("Begin", {"gdnbench/__init__.py": ""})
    made = bisecting.commits(history, "takes:1", "takes:2")
    with pytest.raises(BadInputError, match=wording("bisect.own-model")):
        slower(*made)


@pytest.mark.parametrize(
    ("text", "kind"), [(KERNEL, PREDICTED), (WRONG, Outcome.MISMATCH), (COMMUNICATING, NO_TIME)]
)
def test_a_trial_is_a_time(
    decode: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kind: str
) -> None:
    toolkit(monkeypatch)
    (tmp_path / "kernel.py").write_text(text)
    trial = Trial(str(decode), f"{tmp_path / 'kernel.py'}:kernel", "sim", predict="h200")
    verdict = run_trial(Trial.from_json(trial.to_json()))
    assert verdict.kind == kind
    assert verdict.state is (State.GOOD if kind == PREDICTED else State.SKIP)
    time = TrialTime.of_verdict(verdict)
    assert (time is not None) == (kind == PREDICTED)
    if time is not None:
        assert 0 < time.low < time.seconds < time.high


def test_a_killed_prediction_is_tried_again() -> None:
    result = RecordResult(0, "key", "gdn_decode", "layer", 0, 0, Outcome.PASS)
    why = "the time of move: the process that predicts it was killed"
    killed = PredictedTime("kernel", None, why)
    with pytest.raises(CannotRunError, match=why):
        verdict_of_times([dataclasses.replace(result, predicted=(killed,))], "", {})
