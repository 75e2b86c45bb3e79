# SPDX-License-Identifier: Apache-2.0
"""Records over the workers of a scheduler that somebody else started."""

from __future__ import annotations

import gc
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gdnbench.distributed import replay as spreading
from gdnbench.distributed import worker
from gdnbench.distributed.replay import replay_distributed
from gdnbench.errors import BadInputError, CannotRunError, StoreError
from gdnbench.replay.replay import replay
from gdnbench.report.report import ReplayReport
from gdnbench.store.reader import Store
from gdnbench.workers import dask_dispatch, dask_pool
from gdnbench.workers.dask_pool import GPU, WorkerPool
from tests.messages import wording
from tests.subset import quick

Plain = Callable[[ReplayReport], list[dict[str, Any]]]


def start_gpu_worker(dask: Callable[..., object], scheduler: str, folder: Path, pool: WorkerPool) -> None:
    """Starts a worker that declares a GPU, in `folder`, and waits until `pool` counts it."""
    options = ("--nthreads", "1", "--no-dashboard", "--local-directory", folder, "--resources", "GPU=1")
    dask("worker", scheduler, *options, "--host", "127.0.0.1")
    deadline = time.monotonic() + 120
    while not pool.count_slots():
        assert time.monotonic() < deadline, "the worker did not register"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def workers(dask: Callable[..., object], scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The scheduler, which now has a worker, started in another folder, that says it has a GPU."""
    with dask_pool.open_pool(None, scheduler, "cpu") as pool:
        start_gpu_worker(dask, scheduler, tmp_path_factory.mktemp("worker"), pool)
    return scheduler


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_dispatch, "START_SECONDS", 1.0)
    monkeypatch.setattr(dask_pool, "CONNECT_SECONDS", 1.0)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Clients that were closed: one without a connection waits 20 s for that, then prints a traceback."""
    gc.collect()  # what earlier tests left is theirs
    found: list[object] = []
    monkeypatch.setattr("distributed.Client.close", lambda client, *given: found.append(client))
    return found


def test_nobody_answers(store: Store, impatient: None) -> None:
    with pytest.raises(
        CannotRunError, match=wording("workers.scheduler-silent", scheduler="tcp://127.0.0.1:1")
    ):
        replay_distributed(store.path, scheduler="tcp://127.0.0.1:1")


@pytest.mark.parametrize("address", quick(["pigeon://coop", "nonsense", "", "tcp://[::1"], 3))
def test_no_address(store: Store, address: str, closed: list[object]) -> None:
    with pytest.raises(BadInputError, match=re.escape(f"--scheduler {address}: ")):
        replay_distributed(store.path, scheduler=address)
    gc.collect()
    assert not closed


@pytest.mark.slow
def test_another_server_answers(store: Store, impatient: None, closed: list[object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as caller:
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        Thread(target=answer, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(CannotRunError, match=wording("workers.scheduler-silent", scheduler=address)):
            replay_distributed(store.path, scheduler=address)
    gc.collect()
    assert not closed


def test_no_worker_comes(store: Store, empty_scheduler: str, impatient: None) -> None:
    with pytest.raises(CannotRunError, match=wording("workers.missing", seconds=1)):
        replay_distributed(store.path, scheduler=empty_scheduler)


def test_a_worker_with_a_gpu_comes_late(
    empty_scheduler: str, dask: Callable[..., object], tmp_path: Path
) -> None:
    """A pool is opened before the worker registers; its tasks go to the worker that declares a GPU."""
    with dask_pool.open_pool(None, empty_scheduler, "cuda") as pool:
        assert pool.count_slots() == 0
        start_gpu_worker(dask, empty_scheduler, tmp_path, pool)
        assert pool.resources == {GPU: 1.0}


def test_the_same_report(
    store: Store, workers: str, plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is named from where this process is, which is not where the worker is."""
    monkeypatch.chdir(store.path.parent)
    name = Path(store.path.name)
    report = replay_distributed(name, scheduler=workers, save=tmp_path / "run.zarr", grids=True)
    assert plain(report) == plain(replay(store, grids=True))
    assert report.store == str(name)
    with Store.open(tmp_path / "run.zarr") as run:
        assert len(run.records) == len(store.records)


@pytest.mark.slow  # test_here.py has the same of workers that it starts
def test_a_worker_that_is_killed(
    store: Store, workers: str, dies_once: tuple[str, Path], plain: Plain
) -> None:
    kernel, mark = dies_once
    report = replay_distributed(store.path, scheduler=workers, kernel=kernel, op="gdn_decode", isolate=False)
    assert mark.exists()
    assert plain(report) == plain(replay(store, kernel=kernel, op="gdn_decode", isolate=False))


def test_a_gpu_is_a_resource(workers: str) -> None:
    with dask_pool.open_pool(None, workers, "cuda") as found:
        assert found.count_slots() == 1
        assert found.resources == {GPU: 1.0}
        assert found.submit(os.getpid).result() != os.getpid()


@pytest.mark.slow  # starts workers
def test_another_version(store: Store, workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has this one; the coordinator says that it is another."""
    monkeypatch.setattr(spreading, "code_version", lambda: "gdnbench 0.0 with torch 9")
    with pytest.raises(
        CannotRunError,
        match=wording(
            "distributed.versions-differ",
            found=re.compile("gdnbench .*"),
            expected="gdnbench 0.0 with torch 9",
        ),
    ):
        replay_distributed(store.path, scheduler=workers)


def test_another_store_at_the_same_path(
    store: Store, another: Store, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record 0 of each is another; where they are equal in number and kind, too."""
    monkeypatch.setattr(spreading, "open_store", lambda path: Store.open(another.path))
    for number in (0, 1):
        with pytest.raises(StoreError, match=wording("distributed.record-differs", number=number)):
            replay_distributed(store.path, scheduler=workers, records=[number])


def test_a_store_that_workers_do_not_see(
    store: Store, workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spreading, "open_store", lambda path: Store.open(store.path))
    with pytest.raises(
        StoreError, match=wording("store.missing", path=re.compile(r"worker .*elsewhere\.zarr"))
    ):
        replay_distributed(tmp_path / "elsewhere.zarr", scheduler=workers)


@pytest.mark.slow  # starts workers; a store that they do not see is below
def test_a_folder_that_workers_do_not_have(
    store: Store, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is looked for in it: fine. A store or a kernel is: said."""
    monkeypatch.setattr(spreading, "getcwd", lambda: "/no/such/folder")
    replay_distributed(store.path, scheduler=workers, records=[0])
    with pytest.raises(BadInputError, match=wording("distributed.folder-missing", folder="/no/such/folder")):
        replay_distributed(store.path, scheduler=workers, records=[0], kernel="mine:kernel")


@pytest.mark.slow
def test_nothing_stays_open_at_the_end(store: Store, workers: str) -> None:
    """In the worker, which goes on when the job is done."""
    replay_distributed(store.path, scheduler=workers, records=[0])
    with dask_pool.open_pool(None, workers, "cpu") as found:
        assert found.submit(is_idle).result()


def is_idle() -> bool:
    with worker._ONE_AT_A_TIME:
        return worker._session is None
