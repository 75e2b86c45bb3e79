# SPDX-License-Identifier: Apache-2.0
"""Kernels that end their process, or never end: each an outcome, after which the next record goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gdnbench.errors import BadInputError, Exit
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from tests.messages import wording

Faulty = Callable[[str], str]


def test_a_crash_leaves_the_other_records(store: Store, faulty: Faulty) -> None:
    """The worker is replaced, and answers for the record after the crash. What each printed is kept."""
    report = replay(store, kernel=faulty("aborts_on_decode"), records=[1, 0], grids=True)
    assert report.records[0].printed.startswith("aborts\nas C says\n")
    assert report.records[1].printed == "a kernel talks on stdout\n"
    assert [r.outcome for r in report.records] == [Outcome.CRASH, Outcome.PASS]
    ended = wording("process.ended", how="signal 6 (SIGABRT)")
    assert re.fullmatch(
        rf"{ended} \(.*faulty\.py:\d+ in aborts_on_decode: os\.abort\(\)\)", report.records[0].reason
    )
    assert report.exit_code is Exit.MISMATCH


@pytest.mark.parametrize(("kernel", "reason"), [("segfaults", "SIGSEGV"), ("exits", "exit status 7")])
def test_ways_to_die(store: Store, faulty: Faulty, kernel: str, reason: str) -> None:
    (record,) = replay(store, kernel=faulty(kernel), records=[0]).records
    assert record.outcome is Outcome.CRASH
    assert reason in record.reason


@pytest.mark.parametrize(
    ("kernel", "reason"), [("exits_politely", "SystemExit: 0"), ("raises_the_unreadable", "Unreadable")]
)
def test_odd_exceptions_are_crashes(store: Store, faulty: Faulty, kernel: str, reason: str) -> None:
    """sys.exit(0) in this process would end the command with the status of a pass."""
    (record,) = replay(store, kernel=faulty(kernel), records=[0], isolate=False).records
    assert record.outcome is Outcome.CRASH
    assert record.reason.startswith(reason)


@pytest.mark.parametrize("isolate", [True, False])
def test_a_process_that_a_kernel_forks_answers_nothing(store: Store, faulty: Faulty, isolate: bool) -> None:
    """Its reply would be taken for that of the next record."""
    report = replay(store, kernel=faulty("forks"), isolate=isolate)
    assert [r.outcome for r in report.records] == [Outcome.PASS] * 3, [r.reason for r in report.records]


def test_a_hang_is_killed(store: Store, faulty: Faulty) -> None:
    start = time.monotonic()
    (record,) = replay(store, kernel=faulty("hangs"), records=[0], timeout=1.0).records
    assert record.outcome is Outcome.HANG
    assert "1 s" in record.reason
    # The kernel sleeps for 600 s; starting a worker takes up to a minute on a busy machine.
    assert time.monotonic() - start < 120


def test_a_crash_while_the_kernel_is_imported(store: Store, tmp_path: Path) -> None:
    dies = tmp_path / "dies.py"
    dies.write_text("import os\nos.abort()\n")
    (record,) = replay(store, kernel=f"{dies}:kernel", records=[0]).records
    assert record.outcome is Outcome.CRASH
    ended = wording("process.ended", how="signal 6 (SIGABRT)")
    assert re.fullmatch(rf"{ended} \(.*dies\.py:2 in <module>: os\.abort\(\)\)", record.reason)


def test_isolation_changes_no_bit(store: Store, capfd: pytest.CaptureFixture[str], faulty: Faulty) -> None:
    report = replay(store, kernel=faulty("correct"), against="recorded", bitwise=True, grids=True)
    assert [r.outcome for r in report.records] == [Outcome.PASS] * 3, [r.reason for r in report.records]
    assert [r.printed for r in report.records] == ["a kernel talks on stdout\n"] * 3
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("a kernel talks on stdout") == 3


def test_refusals_and_faults_cross_the_pipe(store: Store, faulty: Faulty) -> None:
    (record,) = replay(store, kernel=faulty("refuses"), records=[0]).records
    assert record.outcome is Outcome.UNSUPPORTED
    (record,) = replay(store, kernel=faulty("writes_a_stale_slot"), records=[1]).records
    assert record.outcome is Outcome.MISMATCH
    assert "slots were written" in record.faults[0]


def test_a_function_that_is_not_there(store: Store, faulty: Faulty) -> None:
    with pytest.raises(
        BadInputError,
        match=wording("replay.function-missing", function="nosuch", known=re.compile(".*aborts")),
    ):
        replay(store, kernel=faulty("nosuch"))


def test_interrupt_ends_the_worker(store: Store, faulty: Faulty) -> None:
    """Ctrl-C during a hang: the parent stops with KeyboardInterrupt and nothing of it is left running."""
    script = (
        "import sys\n"
        "from gdnbench.replay.replay import replay\n"
        "from gdnbench.store.reader import Store\n"
        "from gdnbench.workers.process import WorkerProcess\n"
        "request = WorkerProcess.request\n"
        "def told(self, message, timeout):\n"
        "    print(self._process.pid, flush=True)\n"
        "    return request(self, message, timeout)\n"
        "WorkerProcess.request = told\n"
        f"replay(Store.open({str(store.path)!r}), kernel={faulty('hangs')!r}, records=[0])\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.send_signal(signal.SIGINT)
    assert parent.wait(60) != 0
    parent.stdout.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
