"""Trials in a process of their own: a kernel that crashes or hangs is a verdict, and the next one goes on.

The process may be another Python, with other packages, and start in another folder, whose modules come first:
that is how one trial is asked of many revisions and environments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gdnbench.bisect.answering import checked
from gdnbench.bisect.trial import IMPORT_FAILURE, Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import CannotRunError
from gdnbench.replay.process import START_SECONDS, Gone, Worker, cause
from gdnbench.report.outcome import Outcome

MODULE = "gdnbench.bisect.worker"
TIMEOUT = 600.0
"""Seconds until a trial counts as hung: of the import of its kernel, then of each record."""
TOLD = "told"
"""In a message ahead of the answer: the kernel is imported, or a record is replayed."""
PROCESS_ENDED = "the process ended by"
"""How the reason of a crash begins that left no process to say more."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where trials run: the interpreter, the folder that it starts in, and what is added to its
    environment."""

    python: str = sys.executable
    folder: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def worker(self, module: str) -> Worker:
        """A process of `python -m module` there."""
        environment = {**os.environ, **self.environment}
        return Worker(module, [], python=self.python, folder=self.folder, environment=environment)


def ended(imported: bool, outcome: Outcome, reason: str, seconds: float = 0.0) -> Verdict:
    """Of a process that was ended: it says nothing of a kernel that could not be called yet."""
    if imported:
        return Verdict(State.BAD, str(outcome), reason, seconds=seconds)
    return Verdict(State.SKIP, IMPORT_FAILURE, reason, seconds=seconds)


class Probing(Protocol):
    """Runs trials somewhere: a `Prober`, or what stands in for one."""

    def run(self, trial: Trial) -> Verdict: ...

    def close(self) -> None: ...


class Prober:
    """Runs trials in one process, which is replaced after a crash, a hang or an error of the device."""

    def __init__(self, place: Place | None = None, timeout: float = TIMEOUT) -> None:
        self._place = place or Place()
        self._timeout = timeout
        self._worker: Worker | None = None

    def run(self, trial: Trial) -> Verdict:
        """BadInputError and StoreError as `trial.run`, CannotRunError if no process can be started, or if it
        fails in what is not the kernel."""
        worker = self._started()
        imported = False
        try:
            reply = worker.ask({"trial": trial.to_json()}, self._timeout)
            while TOLD in reply:  # each starts the clock again
                imported = True
                reply = worker.receive(self._timeout)
        except TimeoutError:
            self.close()
            reason = f"no answer within {self._timeout:g} s; the process was killed"
            return ended(imported, Outcome.HANG, reason, self._timeout)
        except Gone:
            status = worker.wait()
            self.close()
            return ended(imported, Outcome.CRASH, f"{PROCESS_ENDED} {cause(status)}")
        found = Verdict.from_json(checked(reply)["verdict"], "the answer of a probing process")
        if found.kind == Outcome.CRASH and trial.on == "cuda":
            self.close()
        return found

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _started(self) -> Worker:
        if self._worker is None:
            self._worker = self._place.worker(MODULE)
            try:
                self._worker.receive(START_SECONDS)
            except (TimeoutError, Gone):
                self.close()
                where = Path(self._place.python).name
                raise CannotRunError(
                    f"a process of {where} to probe in did not start; its stderr says why"
                ) from None
        return self._worker
