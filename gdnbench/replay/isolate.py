"""Runs a kernel in a process of its own, so that its crash or hang is an outcome and the next record goes on.

One process serves all records of a kernel and is replaced after a crash, a hang or an error of the device,
which leaves a CUDA context unusable. It reads the store itself; outputs come back through a file, so that no
tensor passes through a pipe.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.replay.process import START_SECONDS, Gone, Worker, cause
from gdnbench.replay.tensor_ipc import get, stages_beside
from gdnbench.report.outcome import Outcome
from gdnbench.store.address import Address
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Operation

if TYPE_CHECKING:
    from gdnbench.sim.report import Finding
    from gdnbench.trace.request import TraceRequest


class Isolated:
    """Runs `kernel` on records of the store at `path` in a worker; `timeout` is seconds a record.

    With `stages` its intermediates come back too, with `check` what the simulator's checker found; with
    `trace` the worker writes what instructions compute.
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
    ) -> None:
        self._path, self._kernel, self._on, self._timeout = path, kernel, on, timeout
        asked = json.dumps(None if trace is None else trace.as_json())
        self._options = [str(int(stages)), str(int(check)), asked]
        self._folder = tempfile.TemporaryDirectory(prefix="gdnbench-replay-")
        self._results = Path(self._folder.name) / "outputs"
        self._worker: Worker | None = None

    def run(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        """Raises CannotRunError if no worker can be started, BadInputError if there is no such kernel."""
        fresh = self._worker is None
        worker = self._started()
        imported = not fresh
        try:
            if fresh:
                self._check_loaded(worker)
                imported = True
            reply = worker.ask({"record": record.number}, self._timeout)
        except TimeoutError as error:
            self._stop()
            reason = f"no answer within {error.args[0]:g} s; the process was killed"
            return Failure(Outcome.HANG, reason, imported)
        except Gone:
            status = worker.wait()
            self._stop()
            return Failure(Outcome.CRASH, f"the process ended by {cause(status)}", imported)
        if "outcome" in reply:
            outcome = Outcome(reply["outcome"])
            if outcome is Outcome.CRASH and self._on == "cuda":
                self._stop()
            return Failure(outcome, reply["reason"], reply["imported"], _checked(reply["checked"]))
        return Execution(
            get(self._results, reply["tensors"]),
            tuple(reply["faults"]),
            tuple(reply["notes"]),
            reply["seconds"],
            get(stages_beside(self._results), reply["stages"]),
            reply["conventions"],
            checked=_checked(reply["checked"]),
        )

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()

    def _started(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(
                "gdnbench.replay.worker",
                [self._kernel, self._on, str(self._path), str(self._results), *self._options],
            )
            try:
                self._worker.receive(START_SECONDS)
            except (TimeoutError, Gone):
                self._stop()
                raise CannotRunError(
                    f"the process for kernel {self._kernel} on {self._on} did not start; its stderr says why"
                ) from None
        return self._worker

    def _check_loaded(self, worker: Worker) -> None:
        """Waits for the kernel to be imported, which may take longer than a record may."""
        problem = worker.receive(max(self._timeout, START_SECONDS))["bad_input"]
        if problem is not None:
            raise BadInputError(problem)

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _checked(found: list[dict[str, Any]] | None) -> tuple[Finding, ...] | None:
    if found is None:
        return None
    from gdnbench.sim.report import Finding

    return tuple(map(Finding.from_json, found))
