"""Judges and times kernels in a process of their own, so that one that ends it, or its CUDA context, ends no
run.

One process does both for all kernels and records, and is replaced where a kernel ended it: starting one takes
seconds, and no other process of ours has work for the device while kernels are timed. The process says which
kernel it is at by a byte in a file, which costs it no more than a system call outside the time and is still
there when the process is not. What ended the process is then that kernel's outcome, and the others are timed
again without it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.replay.failure import Failure
from gdnbench.replay.process import START_SECONDS, Gone, Worker, cause
from gdnbench.report.outcome import Outcome
from gdnbench.store.address import Address
from gdnbench.store.reader import StoredRecord
from gdnbench.timing.options import TimingOptions
from gdnbench.timing.plain import to_plain
from gdnbench.timing.result import KernelTiming, RecordTiming
from gdnbench_kernels.contract import Operation

MODULE = "gdnbench.timing.worker"
JUDGE_SECONDS = 3600.0
"""That oracle and judge may take, which end by themselves: an fp64 reference of a long record on a CPU."""


class Timer(Protocol):
    """Judges and times kernels on records."""

    def judge(self, record: StoredRecord, operation: Operation, kernel: str) -> Judged:
        """Runs the kernel once and holds what it leaves to the default rule. What goes wrong is its outcome;
        BadInputError where there is no such kernel."""

    def time(self, record: StoredRecord, operation: Operation, kernels: Sequence[str]) -> Timed:
        """Kernels that fail meanwhile are outcomes, and the others are timed without them."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a kernel on a record, and why, in one line, where it did not pass."""

    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Timed:
    """What came of it: the comparison of those that could be timed, if any, and why others could not."""

    timing: RecordTiming | None
    failed: tuple[KernelTiming, ...]


class TimingProcess:
    """Judges and times kernels on records of the store at `path`, on the device called `on`."""

    def __init__(self, path: Address, on: str, options: TimingOptions) -> None:
        self._path, self._on, self._options = path, on, options
        self._folder = tempfile.TemporaryDirectory(prefix="gdnbench-time-")
        self._mark = Path(self._folder.name) / "kernel"
        self._worker: Worker | None = None

    def judge(self, record: StoredRecord, operation: Operation, kernel: str) -> Judged:
        """See `Timer`. CannotRunError if no process can be started."""
        worker = self._started()
        try:
            reply = worker.ask({"record": record.number, "judge": kernel}, self._options.timeout)
            if "ran" in reply:  # the rest is not the kernel's
                reply = worker.receive(JUDGE_SECONDS)
        except TimeoutError as error:
            self._stop()
            return Judged(Outcome.HANG, f"no answer within {error.args[0]:g} s; the process was killed")
        except Gone:
            status = worker.wait()
            self._stop()
            return Judged(Outcome.CRASH, f"the process ended by {cause(status)}")
        if reply["bad_input"] is not None:
            raise BadInputError(reply["bad_input"])
        found = Judged(Outcome(reply["outcome"]), reply["reason"])
        self._discard(found.outcome)
        return found

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
        self._stop()
        self._folder.cleanup()

    def _try(self, record: StoredRecord, kernels: list[str]) -> RecordTiming | tuple[str | None, Failure]:
        """The comparison of all `kernels`, or which of them it failed on; None if on none of them."""
        worker = self._started()
        # Each kernel may take the timeout to be compiled, as it may in a replay.
        limit = self._options.timeout * len(kernels) + self._options.seconds
        self._mark.write_bytes(bytes([NOBODY]))
        try:
            reply = worker.ask({"record": record.number, "kernels": kernels}, limit)
        except TimeoutError:
            self._stop()
            return self._marked(kernels), Failure(
                Outcome.HANG, f"timing: no answer within {limit:g} s; the process was killed"
            )
        except Gone:
            status = worker.wait()
            self._stop()
            return self._marked(kernels), Failure(
                Outcome.CRASH, f"timing: the process ended by {cause(status)}"
            )
        return self._answer(reply)

    def _answer(self, reply: dict[str, Any]) -> RecordTiming | tuple[str | None, Failure]:
        if "timing" in reply:
            return RecordTiming.from_json(reply["timing"], "the timing process's answer")
        outcome = Outcome(reply["outcome"])
        self._discard(outcome)
        return reply["kernel"], Failure(outcome, f"timing: {reply['reason']}")

    def _discard(self, outcome: Outcome) -> None:
        """An error of the device leaves a context that nothing runs in."""
        if outcome is Outcome.CRASH and self._on == "cuda":
            self._stop()

    def _marked(self, kernels: list[str]) -> str | None:
        position = self._mark.read_bytes()[0]
        return kernels[position] if position < len(kernels) else None

    def _started(self) -> Worker:
        if self._worker is None:
            options = json.dumps(to_plain(self._options))
            self._worker = Worker(MODULE, [str(self._path), self._on, str(self._mark), options])
            try:
                self._worker.receive(START_SECONDS)
            except (TimeoutError, Gone):
                self._stop()
                raise CannotRunError(
                    f"the process that times kernels on {self._on} did not start; its stderr says why"
                ) from None
        return self._worker

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


NOBODY = 255
"""In the file: the process is at no kernel's own code. Kernels are numbered from 0, in the order given."""
