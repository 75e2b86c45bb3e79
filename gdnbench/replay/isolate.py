"""Runs a kernel in a process of its own, so that its crash or hang is an outcome and the next record goes on.

One process serves all records of a kernel and is replaced after a crash, a hang or an error of the device,
which leaves a CUDA context unusable. It reads the store itself; outputs come back through a file, so that no
tensor passes through a pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.replay.exchange import get, stages_beside
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Operation

START_SECONDS = 120.0
"""A worker imports torch, then the kernel and whatever that imports; on a cold disk each takes a while."""


class _Gone(Exception):
    """The worker's end of the pipe is closed."""


class Isolated:
    """Runs `kernel` on records of the store at `path` in a worker; `timeout` is seconds a record.

    With `stages` its intermediates come back too.
    """

    def __init__(self, path: Path, kernel: str, on: str, timeout: float, stages: bool = False) -> None:
        self._path, self._kernel, self._on, self._timeout = path, kernel, on, timeout
        self._stages = stages
        self._folder = tempfile.TemporaryDirectory(prefix="gdnbench-replay-")
        self._results = Path(self._folder.name) / "outputs"
        self._worker: _Worker | None = None

    def run(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        """Raises CannotRunError if no worker can be started, BadInputError if there is no such kernel."""
        fresh = self._worker is None
        worker = self._started()
        try:
            if fresh:
                self._check_loaded(worker)
            reply = worker.ask({"record": record.number}, self._timeout)
        except TimeoutError as error:
            self._stop()
            return Failure(Outcome.HANG, f"no answer within {error.args[0]:g} s; the process was killed")
        except _Gone:
            status = worker.wait()
            self._stop()
            return Failure(Outcome.CRASH, f"the process ended by {_cause(status)}")
        if "outcome" in reply:
            outcome = Outcome(reply["outcome"])
            if outcome is Outcome.CRASH and self._on == "cuda":
                self._stop()
            return Failure(outcome, reply["reason"])
        return Execution(
            get(self._results, reply["tensors"]),
            tuple(reply["faults"]),
            tuple(reply["notes"]),
            reply["seconds"],
            get(stages_beside(self._results), reply["stages"]),
            reply["conventions"],
        )

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()

    def _started(self) -> _Worker:
        if self._worker is None:
            self._worker = _Worker(
                [self._kernel, self._on, str(self._path), str(self._results), str(int(self._stages))]
            )
            try:
                self._worker.receive(START_SECONDS)
            except (TimeoutError, _Gone):
                self._stop()
                raise CannotRunError(
                    f"the process for kernel {self._kernel} on {self._on} did not start; its stderr says why"
                ) from None
        return self._worker

    def _check_loaded(self, worker: _Worker) -> None:
        """Waits for the kernel to be imported, which may take longer than a record may."""
        problem = worker.receive(max(self._timeout, START_SECONDS))["bad_input"]
        if problem is not None:
            raise BadInputError(problem)

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


class _Worker:
    """One worker process and the two pipes to it."""

    def __init__(self, arguments: list[str]) -> None:
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._buffer = b""
        try:
            # A session of its own: Ctrl-C reaches the parent alone, which then kills what the kernel started
            # too.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gdnbench.replay.worker", str(requests), str(replies), *arguments],
                pass_fds=(requests, replies),
                stdin=subprocess.DEVNULL,
                stdout=2,  # stderr: stdout belongs to the report
                start_new_session=True,
            )
        finally:
            os.close(requests)
            os.close(replies)

    def ask(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request and wait for its reply. TimeoutError, or _Gone if the process has ended."""
        try:
            os.write(self._requests, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            raise _Gone from None
        return self.receive(timeout)

    def receive(self, timeout: float) -> dict[str, Any]:
        """The next message of the worker."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise TimeoutError(timeout)
                data = os.read(self._replies, 1 << 16)
                if not data:
                    raise _Gone
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def wait(self) -> int:
        """The exit status; the pipe is closed, so it comes soon."""
        return self._process.wait(timeout=60)

    def kill(self) -> None:
        """End the process and everything in its session, and close the pipes."""
        os.close(self._requests)
        os.close(self._replies)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _cause(status: int) -> str:
    if status < 0:
        try:
            return f"signal {-status} ({signal.Signals(-status).name})"
        except ValueError:
            return f"signal {-status}"
    return f"exit status {status}"
