# SPDX-License-Identifier: Apache-2.0
"""Trials: verdicts of replays, in this process and in one of their own, and whether an end is steady."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect import trial as trials
from gdnbench.bisect.flakiness import RUNS, Steadiness, replay_repeatedly
from gdnbench.bisect.trial import Trial, run_trial, trial_question
from gdnbench.bisect.verdict import State
from gdnbench.bisect.workers import Place, TrialWorker
from gdnbench.errors import BadInputError
from gdnbench.judge import record as judge
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.messages import wording

KERNELS = """
import inspect, os, random, signal
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent


def answer(call):
    names = inspect.signature(torch_recurrent).parameters
    return torch_recurrent(**{name: call[name] for name in names if name in call})


def right(**call):
    return answer(call)


def wrong(**call):
    found = answer(call)
    found["o"] = found["o"] * 1.5
    return found


def flaky(**call):
    found = answer(call)
    found["o"] = found["o"] * random.uniform(1.5, 2)
    return found


def by_process(**call):
    found = answer(call)
    found["o"] = found["o"] * (1.5 + os.getpid() % 97 * 0.01)
    return found


def dies(**call):
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(**call):
    signal.pause()


def lacks(**call):
    raise ImportError("no such package: pip install it")
"""


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    path = tmp_path / "decode.zarr"
    with StoreWriter(path, kind="synth", durable=False) as writer:
        calls = [
            synthesise("gdn_decode", batch=2, heads=(1, 2), head_dim=(16, 16), seed=seed) for seed in (1, 2)
        ]
        writer.write("0", [draft("gdn_decode", call, index=index) for index, call in enumerate(calls)])
    (tmp_path / "kernels.py").write_text(KERNELS)
    return Trial(str(path), f"{tmp_path / 'kernels.py'}:right")


def of(trial: Trial, function: str) -> Trial:
    return replace(trial, kernel=trial.kernel.replace("right", function))


def test_a_kernel_that_leaves_the_folder_is_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decode: Path
) -> None:
    """Its file is named from the folder that the process is in, and so is the next record's."""
    (tmp_path / "leaves.py").write_text(
        f"{KERNELS}\n\ndef leaves(**call):\n    os.chdir('/')\n    return answer(call)\n"
    )
    monkeypatch.chdir(tmp_path)
    found = [run_trial(Trial(str(decode), "leaves.py:leaves")).state for _ in range(2)]
    assert found == [State.GOOD, State.GOOD]
    assert Path.cwd() == tmp_path


def test_verdicts_of_replays(trial: Trial) -> None:
    good, bad = trials.run_trial(trial), trials.run_trial(of(trial, "wrong"))
    assert (good.state, good.kind) == (State.GOOD, "pass")
    assert (bad.state, bad.kind) == (State.BAD, "numeric mismatch")
    assert "o" in bad.reason
    assert good.digest != bad.digest
    assert trials.run_trial(trial).digest == good.digest
    skipped = trials.run_trial(of(trial, "lacks"))
    assert (skipped.state, skipped.kind) == (State.SKIP, "missing device or package")
    with pytest.raises(BadInputError, match=wording("replay.function-missing", function="nosuch")):
        trials.run_trial(of(trial, "nosuch"))


@pytest.mark.slow  # processes that import torch
def test_a_process_that_ends_is_a_verdict_and_the_next_trial_runs(trial: Trial) -> None:
    with closing(TrialWorker(timeout=5)) as prober:
        died = prober.run_trial(of(trial, "dies"))
        assert (died.state, died.kind) == (State.BAD, "crash")
        assert "SIGSEGV" in died.reason
        assert prober.run_trial(trial).state is State.GOOD
        hung = prober.run_trial(of(trial, "hangs"))
        assert (hung.state, hung.kind) == (State.BAD, "hang")
        with pytest.raises(BadInputError, match=wording("replay.function-missing", function="nosuch")):
            prober.run_trial(of(trial, "nosuch"))


@pytest.mark.slow
def test_a_trial_runs_in_another_folder_and_environment(trial: Trial, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "placed.py").write_text(
        KERNELS + "def kernel(**call):\n    found = answer(call)\n"
        "    found['o'] = found['o'] * float(os.environ['FACTOR'])\n    return found\n"
    )
    there = replace(trial, kernel="placed:kernel")
    for factor, state in (("1", State.GOOD), ("2", State.BAD)):
        place = Place(sys.executable, str(folder), {"FACTOR": factor})
        with closing(TrialWorker(place)) as prober:
            assert prober.run_trial(there).state is state


def test_what_a_verdict_depends_on(trial: Trial, tmp_path: Path) -> None:
    asked = trial_question(trial)
    assert trial_question(trial) == asked
    moved = tmp_path / "moved.zarr"
    Path(trial.store).rename(moved)
    there = replace(trial, store=str(moved))
    assert trial_question(there) == asked
    for other in (replace(there, records=(0,)), replace(there, k=3.0), replace(there, on="cuda")):
        assert trial_question(other) != asked
    code = Path(trial.kernel.partition(":")[0])
    code.write_text(code.read_text() + "\n# changed\n")
    assert trial_question(there) != asked


def test_a_record_that_is_replayed_again_has_the_exact_results_of_before(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, run = list[str](), judge.run_kernel

    def counted(operation: Any, kernel: str, call: Any) -> Any:
        made.append(kernel)
        return run(operation, kernel, call)

    monkeypatch.setattr(judge, "run_kernel", counted)
    monkeypatch.setattr(trials, "_last_judge", None)
    one = replace(of(trial, "wrong"), records=(0,))
    first, again = run_trial(one), run_trial(one)
    assert (first.state, again.reason, made) == (State.BAD, first.reason, ["reference", "torch"])
    assert run_trial(replace(one, kernel=of(trial, "right").kernel)).state is State.GOOD
    assert made == ["reference", "torch"]  # of the record, whichever kernel
    run_trial(replace(one, k=3.0))
    run_trial(replace(one, records=(1,)))
    assert made == ["reference", "torch"] * 3


def test_ends_that_are_steady_and_ends_that_are_not(trial: Trial, beside: Any) -> None:
    here = beside("here").Here
    for function, steadiness in (
        ("right", Steadiness.STEADY),
        ("wrong", Steadiness.STEADY),
        ("flaky", Steadiness.FLAKY),
    ):
        found = replay_repeatedly(of(trial, function), here)
        assert found.steadiness is steadiness, function
        assert [run.process for run in found.runs] == [*[0] * RUNS, *range(1, RUNS)]
        assert bool(found.reason) == (steadiness is not Steadiness.STEADY)
    assert re.search(wording("bisect.results-differ"), found.reason)
    assert re.search(wording("bisect.rms-varies", tensor="o"), found.reason)


@pytest.mark.slow
def test_an_end_that_depends_on_its_process_is_not_steady(trial: Trial) -> None:
    found = replay_repeatedly(of(trial, "by_process"), TrialWorker)
    assert found.steadiness is Steadiness.FLAKY
    assert len({run.process for run in found.runs}) == RUNS
    assert len({run.verdict.digest for run in found.runs if run.process == 0}) == 1
    assert re.search(wording("bisect.rms-varies", tensor="o"), found.reason)
