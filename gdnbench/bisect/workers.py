# SPDX-License-Identifier: Apache-2.0
"""Runs trials and probes in a worker process: a crash or a hang of the kernel is a verdict, and the next one
runs in a new process.

The process may be another Python with other packages. It starts in a folder whose modules come first. So the
same trial runs in many revisions and environments.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gdnbench.bisect.trial import IMPORT_FAILURE, Trial, of_ended_process
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import (
    CANNOT_RUN_ERRORS,
    EXPECTED_ERRORS,
    BadInputError,
    CannotRunError,
    GdnbenchError,
    StoreError,
)
from gdnbench.replay.failure import describe
from gdnbench.report.outcome import Outcome
from gdnbench.workers.process import Message, WorkerProcess
from gdnbench.workers.restarting import RestartingWorker, WorkerFailure

MODULE = "gdnbench.bisect.worker"
"""Other revisions of gdnbench have this module too and answer the same requests: neither its name nor the
messages may change."""
TIMEOUT = 600.0
"""Seconds until a trial counts as hung: for the import of its kernel, then for each record."""
PROGRESS = "told"
"""Key of a message ahead of the reply: the kernel is imported, or a record is replayed."""

_ERRORS: dict[str, type[GdnbenchError]] = {
    "cannot_run": CannotRunError,
    "store": StoreError,
    "bad_input": BadInputError,
    "internal": CannotRunError,
}
"""Errors that are no verdict on a kernel, by the key of the reply that carries them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker process runs: the interpreter, the folder that it starts in, and variables added to its
    environment."""

    python: str = sys.executable
    folder: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def start_worker(self, module: str) -> WorkerProcess:
        """A process of `python -m module` in this place."""
        environment = {**os.environ, **self.environment}
        return WorkerProcess(module, [], python=self.python, folder=self.folder, environment=environment)


class OutOfTimeError(Exception):
    """The time limit of the bisection has passed. A probe that was running was killed, and says nothing."""


class TrialRunner(Protocol):
    """Runs trials: a `TrialWorker` or a stand-in for one."""

    def run_trial(self, trial: Trial) -> Verdict: ...

    def close(self) -> None: ...


class _VerdictWorker:
    """A worker process that replies with verdicts, replaced after a crash, a hang or an error of the GPU.
    `deadline`, on the monotonic clock: no request is answered after it."""

    def __init__(
        self, place: Place | None = None, timeout: float = TIMEOUT, deadline: float | None = None
    ) -> None:
        self._place = place or Place()
        self._timeout = timeout
        self._deadline = deadline
        self._worker = RestartingWorker(
            self.start_process, f"a process of {Path(self._place.python).name} to probe in"
        )

    def start_process(self) -> WorkerProcess:
        return self._place.start_worker(MODULE)

    def close(self) -> None:
        self._worker.kill()

    def _request_verdict(self, request: Message, on: object) -> Verdict:
        """The verdict of the worker. A crash or a hang before the kernel was imported says nothing of the
        kernel: SKIP. OutOfTimeError at the deadline."""
        imported = False
        try:
            self._worker.start()
            reply = self._worker.request(request, self._time_left())
            while PROGRESS in reply:  # each such message starts the clock again
                imported = True
                reply = self._worker.receive(self._time_left())
        except WorkerFailure as failure:
            if failure.outcome is Outcome.HANG and self._is_out_of_time():
                raise OutOfTimeError from None
            state, kind = (State.BAD, str(failure.outcome)) if imported else (State.SKIP, IMPORT_FAILURE)
            return Verdict(state, kind, failure.reason, seconds=failure.seconds)
        raise_error_in(reply)
        verdict = Verdict.from_json(reply["verdict"], "the answer of a probing process")
        if verdict.kind == Outcome.CRASH and on == "cuda":
            self.close()
        return verdict

    def _time_left(self) -> float:
        """Seconds until a hang. OutOfTimeError after the deadline."""
        if self._is_out_of_time():
            self.close()
            raise OutOfTimeError
        return (
            self._timeout if self._deadline is None else min(self._timeout, self._deadline - time.monotonic())
        )

    def _is_out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline


class TrialWorker(_VerdictWorker):
    """Runs trials in a worker process."""

    def run_trial(self, trial: Trial) -> Verdict:
        """BadInputError and StoreError as `trial.run_trial`. CannotRunError if no process can be started, or
        if something other than the kernel fails."""
        found = self._request_verdict({"trial": trial.to_json()}, trial.on)
        return found if found.facts else of_ended_process(found, trial)


class ProbeWorker(_VerdictWorker):
    """Runs the probes of an axis in a worker process. A probe is a function of this package that takes plain
    JSON by keyword and returns a `Verdict`."""

    def run_probe(self, probe: str, **arguments: Any) -> Verdict:
        """The verdict of `probe`, "package.module:function", for these arguments. BadInputError, StoreError
        and CannotRunError as the probe raises them; CannotRunError if no process can be started, or if
        something other than the kernel fails."""
        return self._request_verdict({"probe": probe, "arguments": arguments}, arguments.get("on"))


class ReusedWorker:
    """Starts workers one after another, of which the last one goes on: it has imported and compiled what the
    next trial needs. `cold`: seconds of the longest first trial of a worker."""

    def __init__(self, start: Callable[[], TrialRunner]) -> None:
        self._start = start
        self._worker: TrialRunner | None = None
        self._used = False
        self.cold = 0.0

    def restart(self) -> TrialRunner:
        """A new worker in place of the last one; closing what is returned leaves it running."""
        self.close()
        self._worker, self._used = self._start(), False
        return _LeftRunning(self)

    def run_trial(self, trial: Trial) -> Verdict:
        """In the last worker, which is started if there is none."""
        if self._worker is None:
            self._worker, self._used = self._start(), False
        begin, first, self._used = time.monotonic(), not self._used, True
        found = self._worker.run_trial(trial)
        if first:
            self.cold = max(self.cold, time.monotonic() - begin)
        return found

    def run_trial_apart(self, trial: Trial) -> Verdict:
        """In a new worker, whatever earlier trials left in the last one."""
        if self._used:
            self.close()
        return self.run_trial(trial)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


@dataclass(frozen=True, slots=True)
class _LeftRunning:
    worker: ReusedWorker

    def run_trial(self, trial: Trial) -> Verdict:
        return self.worker.run_trial(trial)

    def close(self) -> None:
        pass


def reply_or_error(compute: Callable[[], Message]) -> Message:
    """In a worker: the reply that `compute` returns, or its error as a reply.

    Probes turn exceptions of a kernel into verdicts. An exception that leaves a probe is an error of gdnbench
    or of the machine, such as a full disk, and says nothing of the kernel.
    """
    try:
        return compute()
    except EXPECTED_ERRORS as error:
        if isinstance(error, CANNOT_RUN_ERRORS):
            return {"cannot_run": str(error)}
        return {"store" if isinstance(error, StoreError) else "bad_input": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"internal": f"gdnbench itself failed, not the kernel: {describe(error)}; see stderr"}


def raise_error_in(reply: Message) -> None:
    """In the parent: raises the error that `reply` carries, if any: CannotRunError, StoreError or
    BadInputError."""
    for key, kind in _ERRORS.items():
        if reply.get(key) is not None:
            raise kind(reply[key])
