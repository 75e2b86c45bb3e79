# SPDX-License-Identifier: Apache-2.0
"""`--on-mismatch`: what is judged beside a program that runs, and what is kept of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gdnbench.capture.options import CaptureOptions
from gdnbench.errors import BadInputError
from gdnbench.mismatch import run as running
from gdnbench.mismatch.candidates import Candidates
from gdnbench.mismatch.run import mismatch_summary, run_judged
from gdnbench.mismatch.worker import Judging
from gdnbench.replay.replay import Replayer
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.summary import SegmentSummary, write_summary
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft_inputs, synthesise
from tests.messages import wording

PROGRAM = """
import torch
from gdnbench.capture import record
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

@record("gdn_decode")
def step(q, k, v, g, beta, state, state_indices, o):
    found = torch_recurrent(q=q, k=k, v=v, g=g, beta=beta, state=state, state_indices=state_indices)
    o.copy_(found["o"])
    if calls in WRONG:
        o[1] += 0.01
    if calls == FAILS:
        raise RuntimeError("no")

WRONG, FAILS = {wrong}
make = torch.Generator().manual_seed(0)
def random(*shape):
    return torch.randn(*shape, generator=make)
def unit(x):
    return x / x.norm(dim=-1, keepdim=True)
state = random(4, 2, 16, 16)
indices = torch.tensor([[2], [0]], dtype=torch.int32)
o = torch.zeros(2, 1, 2, 16)
for calls in range(6):
    step(
        q=unit(random(2, 1, 1, 16)), k=unit(random(2, 1, 1, 16)), v=random(2, 1, 2, 16),
        g=-random(2, 1, 2).abs(), beta=random(2, 1, 2).sigmoid(), state=state, state_indices=indices, o=o,
    )
print("done")
"""


def run(
    folder: Path, wrong: set[int], *options: str, fails: int | None = None, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(PROGRAM.replace("{wrong}", f"{tuple(wrong)}, {fails}"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GDNBENCH_")}
    command = [sys.executable, "-m", "gdnbench", "capture", str(folder / "run.zarr"), "--on-mismatch", "2"]
    return subprocess.run(
        [*command, *options, "--", sys.executable, str(script)],
        env={**environment, "OMP_NUM_THREADS": "1", **({"PYTHONPATH": str(path)} if path else {})},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_only_calls_that_differ_are_kept(tmp_path: Path) -> None:
    ran = run(tmp_path, {1, 4})
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    assert re.search(wording("mismatch.calls-judged", calls=6, result="2 differ and are in"), ran.stderr)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["program.py", "run.zarr"]
    with Store.open(tmp_path / "run.zarr") as store:
        assert store.problems == ()
        assert [one.info.step for one in store.records] == [1, 4]
        for one in store.records:
            name, _, over = one.info.dispatch["trigger"].partition(" ")
            # 0.01 beside an error of fp32 rounding, some 1e-7 of values around 1.
            assert name == "mismatch:o"
            assert float(over.removesuffix("x")) > 1000
            assert set(one.before) >= {"q", "k", "v", "g", "beta", "state", "state_indices"}
            assert set(one.after) == {"o", "state"}
    assert verify(tmp_path / "run.zarr").damages == ()


@pytest.mark.slow  # processes that import torch
def test_nothing_is_kept_of_a_program_that_is_right(tmp_path: Path) -> None:
    ran = run(tmp_path, set(), "--every", "2")
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    assert re.search(wording("mismatch.calls-judged", calls=3, result="none differs"), ran.stderr)
    assert [entry.name for entry in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.slow
def test_a_call_that_raises_is_kept(tmp_path: Path) -> None:
    ran = run(tmp_path, set(), fails=2)
    assert ran.returncode == 1
    (found,) = Store.open(tmp_path / "run.zarr").records
    assert (found.info.step, found.info.status) == (2, "unfinished")
    assert found.info.dispatch["trigger"] == "raised"
    assert re.search(
        wording("mismatch.calls-judged", calls=2, result="none differs; 1 raised and is in"), ran.stderr
    )


@pytest.mark.parametrize(
    ("store", "k", "options", "said"),
    [
        ("s3://bucket/run.zarr", 2.0, {}, wording("mismatch.folder-wanted")),
        ("run.zarr", -1.0, {}, wording("mismatch.factor-wrong")),
        ("run.zarr", float("nan"), {}, wording("mismatch.factor-wrong")),
        ("run.zarr", 2.0, {"on_nonfinite": True}, wording("mismatch.options-refused")),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_runs(
    store: str, k: float, options: dict[str, bool], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=said):
        run_judged(store, ["false"], CaptureOptions(**options), k)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_judged_is_said() -> None:
    tally = {
        "judged": 3,
        "kept": 1,
        "raised": 0,
        "not_judged": 2,
        "refused": 4,
        "first_refused": "refused: no",
    }
    assert mismatch_summary(tally, "run.zarr") == [
        "3 calls were judged; 1 differs and is in run.zarr",
        "2 calls were not judged, for want of time; give a larger --every",
        "4 calls cannot be judged; the first: refused: no",
    ]


def test_segments_of_which_all_made_room_are_counted(tmp_path: Path) -> None:
    """A process of which every call was dropped before its turn, and one of which nothing is known yet."""
    candidates = tmp_path / "candidates"
    for name, ended in (
        ("1-1-aaaaaaaa", SegmentSummary(closed=True, records=4, dropped_oldest=4)),
        ("2-2-bbbbbbbb", None),
    ):
        with StoreWriter(candidates, kind="capture", segment=name, process={"pid": 1}, provenance={}):
            if ended is not None:
                write_summary(candidates, name, ended)
    judge = Candidates(candidates, tmp_path / "run.zarr", 2.0)
    assert judge.poll() == 0
    assert judge.close().not_judged == 4


class SlowJudge:
    """A judge that is still judging when a signal arrives."""

    def __init__(self, number: int) -> None:
        self.number, self.killed = number, False

    def receive(self, timeout: float) -> dict[str, object]:
        os.kill(os.getpid(), self.number)
        time.sleep(60)
        raise AssertionError("the signal was lost")

    def kill(self) -> None:
        os.kill(os.getpid(), self.number)  # a second one does not interrupt the cleaning up
        self.killed = True


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize("ended", [0, 7])
def test_a_signal_ends_the_judging_and_leaves_nothing(
    name: str,
    ended: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    judge = SlowJudge(signal.Signals[name])
    if signal.getsignal(judge.number) is signal.SIG_IGN:  # under nohup
        request.addfinalizer(lambda: signal.signal(judge.number, signal.SIG_IGN))
        signal.signal(judge.number, signal.SIG_DFL)
    monkeypatch.setattr(running, "_start_judge", lambda *_: judge)
    monkeypatch.setattr(running, "run_captured", lambda *_, **__: ended)
    handlers = [signal.getsignal(one) for one in signal.valid_signals()]
    status = run_judged(tmp_path / "run.zarr", ["true"], CaptureOptions(), 2.0)
    assert status == (ended or 128 + judge.number)
    assert re.search(wording("mismatch.judge-failed", error=f"{name} ended it"), capsys.readouterr().err)
    assert judge.killed
    assert list(tmp_path.iterdir()) == []
    assert handlers == [signal.getsignal(one) for one in signal.valid_signals()]


def test_a_store_whose_name_leaves_no_room_for_the_waiting_calls_is_refused(tmp_path: Path) -> None:
    said = wording("mismatch.folder-refused", folder=str(tmp_path), reason="File name too long")
    with pytest.raises(BadInputError, match=said):
        run_judged(tmp_path / ("x" * 250), ["true"], CaptureOptions(), 2.0)
    assert list(tmp_path.iterdir()) == []


def one_candidate(folder: Path) -> Path:
    """A store of waiting calls: one, of gdn_decode, in the segment made."""
    call = synthesise("gdn_decode", batch=1, heads=(1, 1), seed=0)
    with StoreWriter(folder / "candidates", kind="capture", segment="made") as writer:
        writer.write("000000", [draft_inputs("gdn_decode", call, "call", 0)])
        write_summary(folder / "candidates", "made", SegmentSummary(closed=True, records=1))
    return folder / "candidates"


def test_a_call_for_which_torch_has_no_memory_does_not_end_the_judging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay(_: Replayer, record: StoredRecord) -> RecordResult:
        raise RuntimeError("can't allocate memory:\nyou tried to allocate 1e15 bytes")

    monkeypatch.setattr(Replayer, "replay", replay)
    judge = Candidates(one_candidate(tmp_path), tmp_path / "run.zarr", 2.0)
    assert judge.poll() == 1
    assert judge.poll() == 0
    tally = judge.close()
    assert (tally.judged, tally.refused, tally.not_judged) == (0, 1, 0)
    assert tally.first_refused == (
        "crash: RuntimeError: can't allocate memory: you tried to allocate 1e15 bytes"
    )


def test_a_call_that_is_dropped_while_it_is_replayed_counts_as_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = one_candidate(tmp_path)

    def replay(_: Replayer, record: StoredRecord) -> RecordResult:
        shutil.rmtree(candidates / "segments" / "made" / "000000")
        return RecordResult.from_record(record, Outcome.REFUSED, "a tensor is missing")

    monkeypatch.setattr(Replayer, "replay", replay)
    judge = Candidates(candidates, tmp_path / "run.zarr", 2.0)
    assert judge.poll() == 0
    tally = judge.close()
    assert (tally.judged, tally.refused, tally.not_judged) == (0, 0, 1)


def test_an_error_of_the_judge_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poll(_: Candidates) -> int:
        raise ValueError("no\nsuch thing")

    monkeypatch.setattr(Candidates, "poll", poll)
    threads = torch.get_num_threads()
    try:
        judging = Judging(tmp_path / "candidates", tmp_path / "run.zarr", 2.0)
        assert judging.finish({}) == {"error": "ValueError: no such thing"}
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_a_judge_that_is_killed_and_one_whose_disk_is_full(tmp_path: Path) -> None:
    """The program's result stays, and what became of the judge is a line."""
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))"
    for name, first, said in (
        ("killed", killed, wording("mismatch.judge-failed", error="the process ended by signal 9 (SIGKILL)")),
        ("full", full, wording("file.unwritable", reason="[Errno 27] File too large")),
    ):
        folder = tmp_path / name
        site = folder / "site"
        site.mkdir(parents=True)
        (site / "sitecustomize.py").write_text(
            f"import sys\nif 'gdnbench.mismatch.worker' in sys.orig_argv:\n    {first}\n"
        )
        ran = run(folder, {1}, path=site)
        assert (ran.returncode, ran.stdout) == (3, "done\n"), ran.stderr
        assert re.search(said, ran.stderr), ran.stderr
        assert "Traceback" not in ran.stderr
        assert not list(folder.glob(".run.zarr.unjudged-*"))
