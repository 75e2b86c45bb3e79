# SPDX-License-Identifier: Apache-2.0
"""Seeds and caches of the tests; and what tests of bisection use: git repositories with commits at fixed
times, wheels, and a worker process that runs in the test's own."""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest

from tests.seeds import VARIABLE as SEED_VARIABLE
from tests.seeds import drawn

# Compiled kernels are kept between runs, beside the sources, and never in the user's own cache.
os.environ.setdefault("GDNBENCH_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".cache" / "gdnbench"))

# Torch in one thread: the threads of several test processes wait for each other at every small operation,
# which then takes 3 to 7 times as long on 2 cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts its background jobs with SIGINT ignored, and children inherit that: tests that interrupt a
# child would wait for it in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)


BEGUN = pytest.StashKey[float]()
"""When the first test could begin, in seconds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "draw new seeds, or those of run N; without it a run repeats the last one's"
    parser.addoption("--fresh-seeds", metavar="N", nargs="?", const="", default=None, help=help)
    help = "skip the tests that have not begun when so many seconds are over"
    parser.addoption("--within", metavar="SECONDS", type=float, default=None, help=help)


def pytest_configure(config: pytest.Config) -> None:
    number = config.getoption("--fresh-seeds")
    if number is not None and not hasattr(config, "workerinput"):
        os.environ[SEED_VARIABLE] = number or str(secrets.randbits(32))
    hypothesis.settings.register_profile("repeat", derandomize=True, database=None)
    if SEED_VARIABLE not in os.environ:
        hypothesis.settings.load_profile("repeat")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks slow all but each n-th set of parameters of a test with the marker `every(n)`."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("every")
        if marker is not None and item.get_closest_marker("slow") is None:
            test, _, _ = item.nodeid.partition("[")
            if seen[test] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of collected tests live to the end: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()
    session.stash[BEGUN] = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures: what a test draws of torch does not depend on the tests before it."""
    seconds = item.config.getoption("--within")
    if seconds is not None and time.monotonic() - item.session.stash[BEGUN] > seconds:
        pytest.skip(f"the {seconds:g} s of --within are over")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(drawn("torch"))


@pytest.fixture(scope="session", autouse=True)
def warm_workers() -> Iterator[None]:
    """Workers are forked from a process that has imported torch (tests/warm_workers.py)."""
    from gdnbench.workers import process
    from tests import warm_workers

    with mock.patch.object(process, "start_process", warm_workers.start):
        yield
    warm_workers.end()


@pytest.fixture(scope="session", autouse=True)
def entry_points_of_each_path() -> Iterator[None]:
    """A capture reads the entry points of all installed packages: in tests once for each `sys.path`."""
    read = importlib.metadata.entry_points

    @cache
    def on_path(path: tuple[str, ...], **selected: str) -> Any:
        return read(**selected)

    with mock.patch.object(
        importlib.metadata, "entry_points", lambda **selected: on_path(tuple(sys.path), **selected)
    ):
        yield


@pytest.fixture
def cold_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker is a process of `python -m`, as users' workers are."""
    from gdnbench.workers import process
    from tests import warm_workers

    monkeypatch.setattr(process, "start_process", warm_workers.COLD)


def pytest_report_header() -> str | None:
    number = os.environ.get(SEED_VARIABLE)
    return f"seeds: --fresh-seeds={number}" if number else None


@dataclass
class History:
    """A repository whose commits are made one a minute."""

    path: Path
    minutes: int = 0

    def git(self, *arguments: str) -> str:
        self.minutes += 1
        when = f"2026-03-01T{self.minutes // 60:02}:{self.minutes % 60:02}:00+00:00"
        environment = {
            **os.environ,
            "GIT_AUTHOR_DATE": when,
            "GIT_COMMITTER_DATE": when,
            "GIT_CONFIG_GLOBAL": os.devnull,
        }
        command = ["git", "-c", "user.name=A. Uthor", "-c", "user.email=a@example.org", *arguments]
        return subprocess.run(
            command, cwd=self.path, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, subject: str, files: Mapping[str, str | None]) -> str:
        """Writes files, or removes those that are None, and returns the commit's hash."""
        for name, text in files.items():
            file = self.path / name
            if text is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "HEAD")

    def merge(self, branch: str, subject: str) -> str:
        self.git("merge", "--quiet", "--no-ff", "--message", subject, branch)
        return self.git("rev-parse", "HEAD")


def begin(path: Path) -> History:
    path.mkdir()
    made = History(path)
    made.git("init", "--quiet", "--initial-branch=main")
    return made


@pytest.fixture
def history(tmp_path: Path) -> History:
    return begin(tmp_path / "repository")


@pytest.fixture
def another(tmp_path: Path) -> Callable[[str], History]:
    return lambda name: begin(tmp_path / name)


@dataclass
class Wheels:
    """A folder of wheels of one module each."""

    path: Path

    def __call__(self, name: str, version: str, text: str, requires: Sequence[str] = ()) -> None:
        about = f"{name}-{version}.dist-info"
        needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
        with zipfile.ZipFile(self.path / f"{name}-{version}-py3-none-any.whl", "w") as file:
            file.writestr(f"{name}/__init__.py", text)
            head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            file.writestr(f"{about}/METADATA", head + needs)
            tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            file.writestr(f"{about}/WHEEL", tags)
            file.writestr(f"{about}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path) -> Wheels:
    (tmp_path / "wheels").mkdir()
    return Wheels(tmp_path / "wheels")


class InThisProcess:
    """Stands in for `gdnbench.workers.process.WorkerProcess` where nothing ends the process. A reply that
    took longer than the timeout is dropped."""

    def __init__(self, module: str, arguments: list[str], *, folder: str | None = None, **place: Any) -> None:
        assert folder is None, "modules of another folder are another process' own"
        self._replies: list[dict[str, Any]] = [{"ready": True}]
        self._late = False
        served = importlib.import_module(module)
        with mock.patch.object(served, "serve_requests") as serve:
            served.main(["0", "0", *arguments])
        start = serve.call_args.args[2]
        self._answer = start(self._replies.append)

    def request(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        begin = time.monotonic()
        self._replies.append(self._answer(json.loads(json.dumps(message))))
        self._late = time.monotonic() - begin > timeout
        return self.receive(timeout)

    def receive(self, timeout: float) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(json.dumps(self._replies.pop(0)))
        if self._late and not self._replies:
            raise TimeoutError(timeout)
        return reply

    def kill(self) -> None:
        pass


@pytest.fixture
def replays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays of `gdnbench bisect` run in this process: one that imports torch takes seconds to start. Probes
    keep their process."""
    from gdnbench.bisect import workers

    process = workers.WorkerProcess
    monkeypatch.setattr(workers, "WorkerProcess", InThisProcess)
    monkeypatch.setattr(workers.ProbeWorker, "start_process", lambda self: process(workers.MODULE, []))


@pytest.fixture
def probes_here(replays_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes run in this process, too."""
    from gdnbench.bisect.workers import ProbeWorker, TrialWorker

    monkeypatch.setattr(ProbeWorker, "start_process", TrialWorker.start_process)
