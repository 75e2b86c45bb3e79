# SPDX-License-Identifier: Apache-2.0
"""Forked workers (tests/warm_workers.py) are what started ones are: surroundings, endings and refusals."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdnbench.errors import CannotRunError
from gdnbench.timing.json_values import to_plain
from gdnbench.timing.options import TimingOptions
from gdnbench.workers.pickled_call import call_in_process
from gdnbench.workers.process import WorkerProcess
from tests import warm_workers


def surroundings(progress: Any) -> dict[str, Any]:
    """What a worker can tell of its own process; the numbers of its pipes are its own."""
    program, module = sys.orig_argv[0], sys.orig_argv[1:4]
    return {
        "program": (Path(program).resolve(), module, Path(sys.argv[0]).resolve(), len(sys.argv)),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "leads": os.getsid(0) == os.getpid(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "handlers": [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE)],
        "safe path": (sys.flags.safe_path, "" in sys.path),
    }


def ends(status: int, progress: Any) -> None:
    os._exit(status)


def aborts(progress: Any) -> None:
    os.abort()


linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")


@pytest.fixture
def importing_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers, forked from a process of this test's own, can import this file."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr(warm_workers, "_forker", None)
    yield
    warm_workers.end()


@linux
@pytest.mark.usefixtures("importing_tests")
def test_a_forked_worker_has_the_surroundings_of_a_started_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "77")
    forked = call_in_process(surroundings, what="the process")
    request.getfixturevalue("cold_workers")
    assert forked == call_in_process(surroundings, what="the process")
    assert forked["environment"]["COLUMNS"] == "77"


@pytest.mark.slow
@pytest.mark.usefixtures("importing_tests")
def test_its_exit_status_is_told() -> None:
    for function, arguments, how in ((ends, (7,), "exit status 7"), (aborts, (), r"signal 6 \(SIGABRT\)")):
        with pytest.raises(CannotRunError, match=f"the process ended by {how}"):
            call_in_process(function, *arguments, what="the process")


@linux
def test_one_that_runs_has_no_status_and_is_killed() -> None:
    worker = WorkerProcess("gdnbench.workers.pickled_call", [])
    assert worker.receive(60) == {"ready": True}
    assert isinstance(worker._process, warm_workers.Forked)
    assert worker._process.poll() is None
    worker.kill()
    assert worker._process.poll() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(worker._process.pid, 0)


@pytest.mark.parametrize("other", ["a variable", "a folder", "an interpreter", "a module", "an environment"])
def test_what_differs_from_the_forking_process_is_started(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(warm_workers, "COLD", lambda *given: started.append(given))
    given: list[Any] = [sys.executable, warm_workers.MODULES[0], (0, 0), [], None, None, 2]
    if other == "a variable":
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
    else:
        place, value = {
            "a folder": (4, str(tmp_path)),
            "an interpreter": (0, "python"),
            "a module": (1, "json.tool"),
            "an environment": (5, {**os.environ, "OMP_NUM_THREADS": "2"}),
        }[other]
        given[place] = value
    warm_workers.start(*given)
    assert started == [tuple(given)]


@pytest.mark.slow  # each imports torch
@pytest.mark.parametrize("module", warm_workers.MODULES)
@pytest.mark.usefixtures("cold_workers")
def test_each_module_starts_as_a_program(module: str, tmp_path: Path) -> None:
    """The quick tests of these modules fork them."""
    store = str(Path(__file__).parents[1] / "captures" / "swa_fp8_ds_mla.zarr.zip")
    arguments = {
        "gdnbench.replay.worker": [
            "torch",
            "cpu",
            store,
            str(tmp_path / "results"),
            "0",
            "0",
            "null",
            "0",
            "",
        ],
        "gdnbench.timing.worker": [
            store,
            "cpu",
            str(tmp_path / "mark"),
            json.dumps(to_plain(TimingOptions())),
        ],
        "gdnbench.mismatch.worker": [str(tmp_path), str(tmp_path / "store"), "2.0"],
    }
    assert callable(importlib.import_module(module).main)
    worker = WorkerProcess(module, arguments.get(module, []))
    try:
        assert worker.receive(120) == {"ready": True}
    finally:
        worker.kill()
