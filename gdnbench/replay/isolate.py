# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel in a worker process, so that its crash or hang is the outcome of one record.

One process runs all records of a kernel. It is replaced after a crash, a hang, or an error of the device,
which leaves a CUDA context unusable. The worker reads the store itself and returns outputs in a file, so that
no tensor passes through a pipe.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdnbench import phases
from gdnbench.error_frames import KernelError
from gdnbench.errors import BadInputError
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.report.outcome import Outcome
from gdnbench.store.address import Address
from gdnbench.store.reader import StoredRecord
from gdnbench.workers.printed import PrintedOutput
from gdnbench.workers.process import START_SECONDS, WorkerProcess
from gdnbench.workers.restarting import RestartingWorker, WorkerFailure
from gdnbench.workers.tensor_file import read_tensors
from gdnbench_kernels.contract import Operation

if TYPE_CHECKING:
    from gdnbench.sim import Finding
    from gdnbench.sim.predict import PredictedTime
    from gdnbench.trace.request import TraceRequest


class Isolated:
    """Runs `kernel` on records of the store at `path` in a worker process, at most `timeout` seconds a
    record.

    With `stages` the kernel's intermediate tensors come back too, with `check` the findings of the
    simulator's checker. With `trace` the worker writes a trace of the values that instructions compute,
    with `keep_going` it goes on after faults, with `predict` it predicts the time on that machine. With
    `keep_printed` what it prints is kept until `printed` takes it.
    """

    def __init__(
        self,
        path: Address,
        kernel: str,
        on: str,
        timeout: float,
        stages: bool = False,
        check: bool = False,
        trace: TraceRequest | None = None,
        *,
        keep_going: bool = False,
        predict: str | None = None,
        keep_printed: bool = False,
    ) -> None:
        self._on, self._timeout = on, timeout
        self._folder = tempfile.TemporaryDirectory(prefix="gdnbench-replay-")
        self._results = Path(self._folder.name) / "outputs"
        requested_trace = json.dumps(None if trace is None else trace.as_json())
        options = [str(int(stages)), str(int(check)), requested_trace, str(int(keep_going)), predict or ""]
        arguments = [kernel, on, str(path), str(self._results), *options]
        self._printed = PrintedOutput() if keep_printed else None
        prints_to = 2 if self._printed is None else self._printed.fileno()
        self._worker = RestartingWorker(
            lambda: WorkerProcess("gdnbench.replay.worker", arguments, printed=prints_to),
            f"the process for kernel {kernel} on {on}",
        )

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        """CannotRunError if no worker process can be started, BadInputError if there is no such kernel."""
        phases.enter("start a process")
        imported = not self._worker.start()
        try:
            if not imported:
                self._await_import()
                imported = True
            reply = self._worker.request({"record": record.number}, self._timeout)
        except WorkerFailure as failure:
            return Failure(failure.outcome, failure.reason, imported, error=failure.error)
        if "outcome" in reply:
            outcome = Outcome(reply["outcome"])
            if outcome is Outcome.CRASH and self._on == "cuda":
                self._worker.kill()
            found, error = _findings(reply["checked"]), KernelError.from_json(reply["error"])
            return Failure(outcome, reply["reason"], reply["imported"], found, error)
        return Execution(
            read_tensors(self._results, reply["tensors"]),
            tuple(reply["faults"]),
            tuple(reply["notes"]),
            reply["seconds"],
            read_tensors(stage_file(self._results), reply["stages"]),
            reply["conventions"],
            checked=_findings(reply["checked"]),
            predicted=_predicted(reply["predicted"]),
        )

    def printed(self) -> str:
        """What was printed since the last call; see `PrintedOutput.take`."""
        return "" if self._printed is None else self._printed.take()

    def close(self) -> None:
        self._worker.kill()
        if self._printed is not None:
            self._printed.close()
        self._folder.cleanup()

    def _await_import(self) -> None:
        """Waits until the kernel is imported, which may take longer than a record may."""
        problem = self._worker.receive(max(self._timeout, START_SECONDS))["bad_input"]
        if problem is not None:
            raise BadInputError(problem)


def stage_file(results: Path) -> Path:
    """The file of a kernel's stages, beside the file `results` of its outputs."""
    return results.with_suffix(".stages")


def _findings(checked: list[dict[str, Any]] | None) -> tuple[Finding, ...] | None:
    if checked is None:
        return None
    from gdnbench.sim import Finding

    return tuple(map(Finding.from_json, checked))


def _predicted(plain: dict[str, Any] | None) -> PredictedTime | None:
    if plain is None:
        return None
    from gdnbench.sim.predict import PredictedTime

    return PredictedTime.from_json(plain)
