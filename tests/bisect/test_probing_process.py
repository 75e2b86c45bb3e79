# SPDX-License-Identifier: Apache-2.0
"""What a process that probes says, and what its parent makes of that or of its silence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect import trial as trials
from gdnbench.bisect import worker, workers
from gdnbench.bisect.stage import probe
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.workers import ProbeWorker, TrialWorker, raise_error_in, reply_or_error
from gdnbench.errors import BadInputError, CannotRunError, GdnbenchError, StoreError
from gdnbench.workers import process
from gdnbench.workers.process import WorkerGone
from tests.messages import wording

TOLD = {"told": "a record"}
PASSES = {"verdict": Verdict(State.GOOD, "pass").to_json()}
LIMIT = 7.0
Answer = dict[str, Any] | type[Exception]


class Scripted:
    """A worker of which is known what it says: messages, or errors of the pipe."""

    def __init__(self, says: Sequence[Answer]) -> None:
        self.says: list[Answer] = [{"ready": True}, *says]
        self.limits: list[float] = []

    def request(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        return self.receive(timeout)

    def receive(self, timeout: float) -> dict[str, Any]:
        self.limits.append(timeout)
        said = self.says.pop(0)
        if isinstance(said, type):
            raise said
        return said

    def exit_status(self) -> int:
        return -11

    def python_stacks(self, *, hangs: bool = False) -> str:
        return ""

    def kill(self) -> None: ...


@pytest.fixture(params=["trial", "probe"])
def ask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asks a process that says what is given; the limits of its answers are in `limits`."""

    def asking(*says: Answer) -> Verdict:
        scripted = Scripted(says)
        monkeypatch.setattr(workers, "WorkerProcess", lambda *args, **place: scripted)
        if request.param == "trial":
            found = TrialWorker(timeout=LIMIT).run_trial(Trial("a.zarr", "torch"))
        else:
            found = ProbeWorker(timeout=LIMIT).run_probe(
                "gdnbench.bisect.stage.probe:inspect_kernel", kernel="torch", on="cpu"
            )
        assert scripted.limits[1:] == [LIMIT] * len(says)  # each message has all of the time
        return found

    return asking


def test_every_message_starts_the_clock_again(ask: Any) -> None:
    assert ask(*[TOLD] * 200, PASSES).state is State.GOOD


def test_an_import_that_does_not_end_is_no_hang_of_the_kernel(ask: Any) -> None:
    assert (ask(TimeoutError).state, ask(WorkerGone).state) == (State.SKIP, State.SKIP)
    hung, died = ask(TOLD, TimeoutError), ask(TOLD, WorkerGone)
    assert (hung.state, hung.kind) == (State.BAD, "hang")
    assert (died.state, died.kind) == (State.BAD, "crash")
    assert "SIGSEGV" in died.reason


def test_an_error_of_gdnbench_is_no_verdict(ask: Any) -> None:
    with pytest.raises(CannotRunError, match="gdnbench itself"):
        ask(TOLD, {"internal": "gdnbench itself failed"})


@pytest.mark.parametrize("error", [BadInputError("a"), StoreError("b"), CannotRunError("c")])
def test_errors_are_the_same_on_both_sides(error: GdnbenchError) -> None:
    def work() -> dict[str, Any]:
        raise error

    with pytest.raises(type(error), match=str(error)):
        raise_error_in(reply_or_error(work))


def test_a_full_disk_or_a_false_assumption_says_nothing_of_a_kernel(capsys: Any) -> None:
    for error in (OSError(28, "No space left on device"), AssertionError("one tensor")):

        def work(error: Exception = error) -> dict[str, Any]:
            raise error

        with pytest.raises(CannotRunError, match=wording("bisect.probe-failed")) as caught:
            raise_error_in(reply_or_error(work))
        assert "\n" not in str(caught.value)
        assert type(error).__name__ in str(caught.value)
        assert "Traceback" in capsys.readouterr().err


def test_a_trial_tells_of_each_record(decode: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    trial = Trial(str(decode), "torch", records=(0, 0, 0))
    answer = worker.reply_to(told.append, {"trial": trial.to_json()})
    assert answer["verdict"]["state"] == "good"
    assert len(told) == 1 + 3
    monkeypatch.setattr(trials, "verdict_of", lambda *args: 1 / 0)
    assert "ZeroDivisionError" in worker.reply_to(told.append, {"trial": trial.to_json()})["internal"]


@pytest.mark.parametrize("raises", ["KeyboardInterrupt", "type('Stop', (BaseException,), {})"])
def test_whatever_a_kernel_raises_in_a_worker_is_its_crash(
    decode: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: str
) -> None:
    """Ctrl-C does not reach a worker, which has a session of its own."""
    file = tmp_path / "raising.py"
    file.write_text(f"def kernel(**call):\n    raise {raises}\n")
    trial = Trial(str(decode), f"{file}:kernel", records=(0,))
    request = {"trial": trial.to_json()}
    with pytest.raises(BaseException, match=r"^$"):
        worker.reply_to(lambda message: None, request)
    monkeypatch.setattr(process, "_serves_requests", True)
    answer = worker.reply_to(lambda message: None, request)
    assert (answer["verdict"]["state"], answer["verdict"]["kind"]) == ("bad", "crash")
    assert answer["verdict"]["reason"].partition(f" ({file}:2 in kernel: raise ")[1]


def test_a_probe_is_told_to_begin_when_its_kernel_is_there(decode: Path) -> None:
    told: list[Any] = []
    arguments = {"store": str(decode), "kernel": "torch", "on": "cpu", "record": 0}
    answer = worker.reply_to(
        told.append, {"probe": f"{probe.__name__}:inspect_kernel", "arguments": arguments}
    )
    assert answer["verdict"]["state"] == "good"
    assert told == [{"told": "imported"}]


def test_a_probe_of_a_record_that_is_another_by_now(decode: Path) -> None:
    given: dict[str, Any] = {"store": str(decode), "kernel": "torch", "on": "cpu", "record": 0}
    given |= {"k": None, "tol": None, "schedules": ["late"]}
    kept = trials.trial_question(Trial(str(decode), "torch"))["content"]
    assert probe.chained(**given, content=kept).facts["content"] == kept
    with pytest.raises(StoreError, match=wording("bisect.records-changed")):
        probe.chained(**given, content="another")
