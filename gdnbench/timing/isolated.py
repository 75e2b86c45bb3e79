# SPDX-License-Identifier: Apache-2.0
"""Judges and times kernels in a worker process, so that a kernel that crashes ends no run.

One process judges and times all kernels on all records, and is replaced when a kernel crashed it: starting
one takes seconds, and no other process of gdnbench uses the device while kernels are timed. The worker writes
the number of the kernel that it runs to a file. That costs one system call outside the measured time, and the
file outlives the process. A crash becomes the outcome of the kernel that the file names, and the other
kernels are timed again without it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gdnbench.errors import BadInputError
from gdnbench.replay.failure import Failure
from gdnbench.report.outcome import Outcome
from gdnbench.store.address import Address
from gdnbench.store.reader import StoredRecord
from gdnbench.timing.json_values import to_plain
from gdnbench.timing.options import TimingOptions
from gdnbench.timing.result import KernelTiming, RecordTiming
from gdnbench.workers.process import WorkerProcess
from gdnbench.workers.restarting import RestartingWorker, WorkerFailure
from gdnbench_kernels.contract import Operation

MODULE = "gdnbench.timing.worker"
JUDGE_SECONDS = 3600.0
"""Time limit for oracle and judge, which end by themselves: an fp64 reference of a long record on a CPU."""


class Timer(Protocol):
    """Judges and times kernels on records."""

    def judge(self, record: StoredRecord, operation: Operation, kernel: str) -> Judged:
        """Runs the kernel once and compares its outputs by the default rule. A failure is its outcome;
        BadInputError if there is no such kernel."""

    def time(self, record: StoredRecord, operation: Operation, kernels: Sequence[str]) -> Timed:
        """Times the kernels against one another. A kernel that fails is an outcome, and the others are timed
        without it."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Judged:
    """The outcome of a kernel on a record, and, unless it passed, the reason in one line."""

    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Timed:
    """`timing` compares the kernels that could be timed, None if none could; `failed` has the others."""

    timing: RecordTiming | None
    failed: tuple[KernelTiming, ...]


class TimingProcess:
    """Judges and times kernels on records of the store at `path`, on the device called `on`."""

    def __init__(self, path: Address, on: str, options: TimingOptions) -> None:
        self._on, self._options = on, options
        self._folder = tempfile.TemporaryDirectory(prefix="gdnbench-time-")
        self._mark = Path(self._folder.name) / "kernel"
        arguments = [str(path), on, str(self._mark), json.dumps(to_plain(options))]
        self._worker = RestartingWorker(
            lambda: WorkerProcess(MODULE, arguments), f"the process that times kernels on {on}"
        )

    def judge(self, record: StoredRecord, operation: Operation, kernel: str) -> Judged:
        """See `Timer`. CannotRunError if no worker process can be started."""
        try:
            reply = self._worker.request({"record": record.number, "judge": kernel}, self._options.timeout)
            if "ran" in reply:  # oracle and judge follow, whose time is not the kernel's
                reply = self._worker.receive(JUDGE_SECONDS)
        except WorkerFailure as failure:
            return Judged(failure.outcome, failure.reason)
        if reply["bad_input"] is not None:
            raise BadInputError(reply["bad_input"])
        judged = Judged(Outcome(reply["outcome"]), reply["reason"])
        self._kill_after_crash(judged.outcome)
        return judged

    def time(self, record: StoredRecord, operation: Operation, kernels: Sequence[str]) -> Timed:
        """See `Timer`. CannotRunError if no process can be started."""
        left, failed = list(kernels), list[KernelTiming]()
        while left:
            found = self._try(record, left)
            if isinstance(found, RecordTiming):
                return Timed(found, tuple(failed))
            name, failure = found
            culprits = left if name is None else [name]
            failed += [KernelTiming(one, failure.outcome, failure.reason) for one in culprits]
            left = [one for one in left if one not in culprits]
        return Timed(None, tuple(failed))

    def close(self) -> None:
        self._worker.kill()
        self._folder.cleanup()

    def _try(self, record: StoredRecord, kernels: list[str]) -> RecordTiming | tuple[str | None, Failure]:
        """The comparison of all `kernels`. If one failed, its name and the failure; the name is None if the
        process was at no kernel's code."""
        # Each kernel may take the timeout to be compiled, as it may in a replay.
        limit = self._options.timeout * len(kernels) + self._options.seconds
        self._mark.write_bytes(bytes([NOBODY]))
        try:
            reply = self._worker.request({"record": record.number, "kernels": kernels}, limit)
        except WorkerFailure as failure:
            return self._marked(kernels), Failure(failure.outcome, f"timing: {failure.reason}")
        if "timing" in reply:
            return RecordTiming.from_json(reply["timing"], "the timing process's answer")
        outcome = Outcome(reply["outcome"])
        self._kill_after_crash(outcome)
        return reply["kernel"], Failure(outcome, f"timing: {reply['reason']}")

    def _kill_after_crash(self, outcome: Outcome) -> None:
        """Kills the worker after an error of the GPU, which leaves its CUDA context unusable."""
        if outcome is Outcome.CRASH and self._on == "cuda":
            self._worker.kill()

    def _marked(self, kernels: list[str]) -> str | None:
        position = self._mark.read_bytes()[0]
        return kernels[position] if position < len(kernels) else None


NOBODY = 255
"""Written to the file while the process is at no kernel's code. Kernels are numbered from 0, in the order
given."""
