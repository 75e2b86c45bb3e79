# SPDX-License-Identifier: Apache-2.0
"""One worker process that is started when it is needed and replaced after a crash or a hang."""

from __future__ import annotations

from collections.abc import Callable

from gdnbench.error_frames import KernelError, error_of_dump
from gdnbench.errors import CannotRunError
from gdnbench.report.outcome import Outcome
from gdnbench.workers.process import START_SECONDS, Message, WorkerGone, WorkerProcess, describe_exit

PROCESS_ENDED = "the process ended by"
"""How the reason of a crash begins where the process ended without a reply."""


class WorkerFailure(Exception):
    """The worker crashed or hung, and was killed. `outcome` is CRASH or HANG, `error` says where, `reason`
    the same in one line, and `seconds` is the time limit of a hang (0 for a crash)."""

    def __init__(self, outcome: Outcome, error: KernelError, seconds: float = 0.0) -> None:
        super().__init__(error.reason)
        self.outcome = outcome
        self.error = error
        self.reason = error.reason
        self.seconds = seconds


class RestartingWorker:
    """Keeps one worker process, which `launch` starts. `name` is what an error calls the process."""

    def __init__(self, launch: Callable[[], WorkerProcess], name: str) -> None:
        self._launch = launch
        self._name = name
        self._worker: WorkerProcess | None = None

    def start(self) -> bool:
        """Starts the process unless it runs; whether it did. CannotRunError if the process does not start."""
        if self._worker is not None:
            return False
        self._worker = self._launch()
        try:
            self._worker.receive(START_SECONDS)
        except (TimeoutError, WorkerGone):
            self.kill()
            raise CannotRunError(f"{self._name} did not start; its stderr says why") from None
        return True

    def request(self, message: Message, timeout: float) -> Message:
        """The reply to `message`, from a process that is started first if none runs. WorkerFailure after
        `timeout` seconds or a crash, CannotRunError as `start`."""
        self.start()
        return self._await(timeout, lambda worker: worker.request(message, timeout))

    def receive(self, timeout: float) -> Message:
        """The next message of the process that runs. WorkerFailure as `request`."""
        return self._await(timeout, lambda worker: worker.receive(timeout))

    def kill(self) -> None:
        """Kills the process, if one runs. The next request starts another."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _await(self, timeout: float, receive: Callable[[WorkerProcess], Message]) -> Message:
        assert self._worker is not None
        try:
            return receive(self._worker)
        except TimeoutError:
            stacks = self._worker.python_stacks(hangs=True)
            self.kill()
            reason = f"no answer within {timeout:g} s; the process was killed"
            raise WorkerFailure(Outcome.HANG, error_of_dump(reason, stacks), timeout) from None
        except WorkerGone:
            status = self._worker.exit_status()
            stacks = self._worker.python_stacks()
            self.kill()
            reason = f"{PROCESS_ENDED} {describe_exit(status)}"
            raise WorkerFailure(Outcome.CRASH, error_of_dump(reason, stacks)) from None
