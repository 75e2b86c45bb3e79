# SPDX-License-Identifier: Apache-2.0
"""Workers and their parents: however one of them ends, the other knows, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gdnbench.workers.process import WorkerGone, WorkerProcess, describe_exit
from tests.messages import wording

BODY = """
import os, sys, time
from gdnbench.workers.parent_watch import kill_with_parent

requests, replies = int(sys.argv[1]), int(sys.argv[2])
kill_with_parent(requests)
os.write(replies, b'{"ready": true}\\n')
os.read(requests, 100)
"""

LEAVES = "if os.fork(): os._exit(7)\ntime.sleep(600)"
ENDS = {
    "forks_and_exits": LEAVES,
    "answers_and_exits": "os.write(replies, b'{\"answer\": 1}\\n')\n" + LEAVES,
    # Once the thread that outlives the parent is at its poll: of a pipe closed before that it makes an end.
    "closes_all": "time.sleep(2)\nos.closerange(3, 256)\ntime.sleep(600)",
    "babbles": "os.write(replies, b'a kernel that found the pipe\\n')\ntime.sleep(600)",
    "lists": "os.write(replies, b'[1]\\n')\ntime.sleep(600)",
    "forks_and_hangs": "os.fork()\ntime.sleep(600)",
}
"""What a worker does once it is asked."""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, code in ENDS.items():
        (tmp_path / f"{name}.py").write_text(BODY + code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return tmp_path


@pytest.fixture
def started(modules: Path) -> Iterator[list[WorkerProcess]]:
    workers: list[WorkerProcess] = []
    yield workers
    for worker in workers:
        worker.kill()


def ready(name: str, started: list[WorkerProcess]) -> WorkerProcess:
    started.append(WorkerProcess(name, []))
    assert started[-1].receive(60) == {"ready": True}
    return started[-1]


def group(leader: int) -> list[int]:
    """Processes of a session, by field 6 of /proc/PID/stat, proc(5); zombies are gone."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def test_a_worker_that_leaves_a_child_behind_is_gone_at_once(started: list[WorkerProcess]) -> None:
    """The child holds the pipe open: only the worker's own end says that nothing more will come."""
    worker = ready("forks_and_exits", started)
    begin = time.monotonic()
    with pytest.raises(WorkerGone):
        worker.request({}, 300)
    assert time.monotonic() - begin < 30  # a glance a second, on a machine however busy
    assert worker.exit_status() == 7
    assert describe_exit(worker.exit_status()) == "exit status 7"


def test_last_words_are_heard(started: list[WorkerProcess]) -> None:
    assert ready("answers_and_exits", started).request({}, 300) == {"answer": 1}


def test_a_worker_that_closes_its_pipe_and_stays(
    started: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gdnbench.workers.process.EXIT_SECONDS", 0.3)
    worker = ready("closes_all", started)
    with pytest.raises(WorkerGone):
        worker.request({}, 300)
    begin = time.monotonic()
    assert worker.exit_status() is None
    assert time.monotonic() - begin >= 0.3
    assert re.fullmatch(wording("process.pipe-broken"), describe_exit(None))


@pytest.mark.parametrize("name", ["babbles", "lists"])
def test_what_is_no_answer_is_not_taken_for_one(name: str, started: list[WorkerProcess]) -> None:
    with pytest.raises(WorkerGone):
        ready(name, started).request({}, 300)


def test_silence_is_a_timeout(started: list[WorkerProcess]) -> None:
    with pytest.raises(TimeoutError):
        ready("forks_and_hangs", started).request({}, 1.5)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_parent(ending: signal.Signals, modules: Path) -> None:
    """A worker that hangs reads no requests, and its fork never did."""
    script = (
        "from gdnbench.workers.process import WorkerProcess\n"
        "worker = WorkerProcess('forks_and_hangs', [])\n"
        "worker.receive(60)\n"
        "print(worker._process.pid, flush=True)\n"
        "worker.request({}, 600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    leader = int(parent.stdout.readline())
    wait_for(lambda: len(group(leader)) == 2)
    parent.send_signal(ending)
    assert parent.wait(60) != 0
    parent.stdout.close()
    wait_for(lambda: not group(leader))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
