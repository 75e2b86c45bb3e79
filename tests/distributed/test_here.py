# SPDX-License-Identifier: Apache-2.0
"""Records over processes of this machine: the report of a serial replay, whatever becomes of the workers."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdnbench.distributed.replay import replay_distributed
from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import ReplayReport
from gdnbench.store.reader import Store
from gdnbench.workers import dask_dispatch, dask_pool
from gdnbench.workers.dask_pool import WorkerPool, open_pool
from tests.messages import wording

Faulty = Callable[[str], str]
Plain = Callable[[ReplayReport], list[dict[str, Any]]]


@pytest.mark.slow  # test_scheduler.py has the same of a scheduler
def test_the_same_report(store: Store, two: WorkerPool, faulty: Faulty, plain: Plain) -> None:
    """A kernel that fails, against another, in an order of the user's."""
    options: dict[str, Any] = {"kernel": faulty("gets_a_tail_wrong"), "against": "torch", "grids": True}
    options |= {"records": [3, 0, 5, 1], "k_by_tensor": {"o": 1.0}, "isolate": False}
    done: list[tuple[int, int, int]] = []
    spread = replay_distributed(
        store.path, within=two, progress=lambda *told: done.append((*told[:2], told[2].number)), **options
    )
    serial = replay(store, **options)
    assert plain(spread) == plain(serial)
    assert (spread.header, spread.exit_code) == (serial.header, serial.exit_code)
    assert serial.records[1].outcome is Outcome.MISMATCH, "the tail of a prefill"
    assert done == [(1, 4, 3), (2, 4, 0), (3, 4, 5), (4, 4, 1)]


@pytest.mark.parametrize(
    ("said", "threads"), [(None, 1), ("3", 3), ("0", 1), ("4,2", 1), ("\N{SUPERSCRIPT TWO}", 1)]
)
def test_threads_of_a_worker(said: str | None, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch takes no number below 1, and a list is for nested parallel regions, of which there are none."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert dask_pool._torch_threads() == threads


@pytest.mark.slow  # starts workers twice
def test_two_stores_one_after_the_other(store: Store, another: Store, two: WorkerPool, plain: Plain) -> None:
    for each in (store, another, store):
        assert plain(replay_distributed(each.path, within=two)) == plain(replay(each))


def test_the_run_that_is_saved_is_the_serial_one(store: Store, two: WorkerPool, tmp_path: Path) -> None:
    replay_distributed(store.path, within=two, save=tmp_path / "spread.zarr")
    replay(store, save=tmp_path / "serial.zarr")
    with Store.open(tmp_path / "spread.zarr") as spread, Store.open(tmp_path / "serial.zarr") as serial:
        assert len(spread.records) == len(serial.records) == 6
        for one, other in zip(spread.records, serial.records, strict=True):
            for run in (one.info.run, other.info.run):
                assert run is not None
                run["result"]["seconds"] = 0
            assert one.info == other.info
            assert {n: (h.meta, h.digest) for n, h in one.after.items()} == {
                n: (h.meta, h.digest) for n, h in other.after.items()
            }
            assert one.after
            assert one.before.keys() == other.before.keys()
        (segment,) = spread.segments
        assert {about["host"] for about in segment.provenance["workers"]} == {os.uname().nodename}


@pytest.mark.slow
def test_a_worker_that_is_killed(
    store: Store,
    two: WorkerPool,
    dies_once: tuple[str, Path],
    plain: Plain,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The kernel runs in the worker itself, which it kills once; what that worker had is done by others."""
    kernel, mark = dies_once
    report = replay_distributed(store.path, within=two, kernel=kernel, op="gdn_decode", isolate=False)
    assert mark.exists()
    said = capfd.readouterr().err
    assert "workers died; " in said
    assert "tried again" in said
    assert report.exit_code is Exit.PASS
    # The mark is there: this process lives.
    assert plain(report) == plain(replay(store, kernel=kernel, op="gdn_decode", isolate=False))


@pytest.mark.slow
def test_a_record_that_kills_every_worker(store: Store, two: WorkerPool, faulty: Faulty) -> None:
    """It is a crash; one that was on the same worker by chance is judged."""
    kernel = faulty("aborts_on_decode")
    report = replay_distributed(store.path, within=two, kernel=kernel, records=[1, 0], isolate=False)
    assert [one.outcome for one in report.records] == [Outcome.CRASH, Outcome.PASS]
    assert re.fullmatch(
        wording("distributed.worker-died", attempts=3, attempts_again=3), report.records[0].reason
    )
    assert report.exit_code is Exit.MISMATCH


@pytest.mark.slow  # starts workers
def test_a_crash_in_a_process_of_its_own_costs_no_worker(
    store: Store, two: WorkerPool, faulty: Faulty, capfd: pytest.CaptureFixture[str]
) -> None:
    report = replay_distributed(store.path, within=two, kernel=faulty("aborts_on_decode"), records=[0, 1])
    assert [one.outcome for one in report.records] == [Outcome.PASS, Outcome.CRASH]
    assert re.match(wording("process.ended", how="signal 6 (SIGABRT)"), report.records[1].reason)
    assert not re.search(wording("distributed.workers-died"), capfd.readouterr().err)


def test_few_records_are_handed_out_at_once(
    store: Store, two: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one answer ahead a slot and outputs to keep: two workers never have more than the two after the
    first that is not written, and it."""
    monkeypatch.setattr(dask_dispatch, "AHEAD", 1)
    counts: Counter[str] = Counter()
    most = 0
    submit = two.client.submit

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal most
        counts["out"] += 1
        most = max(most, counts["out"] - counts["done"])
        return submit(*arguments, **options)

    monkeypatch.setattr(two.client, "submit", counted)
    replay_distributed(
        store.path,
        within=two,
        save=tmp_path / "run.zarr",
        progress=lambda *_: counts.update(done=1),
    )
    assert counts == {"out": 6, "done": 6}
    assert 1 < most <= 3


def test_what_a_worker_refuses_ends_the_replay(store: Store, two: WorkerPool, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=wording("store.missing")):
        replay_distributed(store.path, within=two, kernel="nowhere.py:kernel", save=tmp_path / "run.zarr")
    assert not (tmp_path / "run.zarr").exists(), "nothing was replayed"


@pytest.mark.parametrize("name", ["time", "trace"])
def test_what_is_done_in_one_process(store: Store, name: str) -> None:
    with pytest.raises(BadInputError, match=wording("distributed.one-process", option=f"--{name}")):
        replay_distributed(store.path, workers=2, **{name: object()})  # type: ignore[arg-type]


@pytest.mark.parametrize(("workers", "scheduler"), [(2, "tcp://127.0.0.1:1"), (-1, None)])
def test_workers_that_there_cannot_be(workers: int, scheduler: str | None) -> None:
    with pytest.raises(BadInputError, match="--workers"), open_pool(workers, scheduler, "cpu"):
        pass


def test_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(CannotRunError, match=wording("workers.gpu-missing")), open_pool(None, None, "cuda"):
        pass


@pytest.mark.slow
def test_each_worker_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many workers as GPUs, though nothing here uses one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5")
    with open_pool(None, None, "cuda") as found:
        assert set(found.call_on_each(os.getenv, "CUDA_VISIBLE_DEVICES")) == {"2", "GPU-5"}


@pytest.mark.slow
def test_simulators_share_the_cores(two: WorkerPool) -> None:
    ours = os.sched_getaffinity(0)
    two.client.wait_for_workers(2, timeout=100)  # one that a test before this killed may be on its way still
    one, other = two.call_on_each(os.sched_getaffinity, 0)
    assert one | other == ours
    assert not one & other or len(ours) == 1
