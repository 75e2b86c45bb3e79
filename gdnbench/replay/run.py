# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel on records in this process; `isolate` runs it in a worker process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gdnbench import phases
from gdnbench.errors import BAD_INPUT_ERRORS
from gdnbench.replay.execute import Execution, execute
from gdnbench.replay.failure import Failure, classify, describe_error
from gdnbench.replay.kernels import LoadedKernel, is_user_kernel, load, load_function
from gdnbench.replay.simulated import SIM, simulated, traced
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import StoredRecord
from gdnbench.workers.process import is_worker_process
from gdnbench_kernels.contract import Operation

if TYPE_CHECKING:
    from gdnbench.sim import Finding, Questions
    from gdnbench.trace.request import TraceRequest


def kernel_errors() -> tuple[type[BaseException], ...]:
    """The exceptions that count as a kernel's. SystemExit would end the whole command, by sys.exit(0) as if
    all had passed. In a worker process every exception is the kernel's, KeyboardInterrupt too."""
    return (BaseException,) if is_worker_process() else (Exception, SystemExit, GeneratorExit)


Debug = Callable[[BaseException], None]


class Runner(Protocol):
    """Runs one kernel on records."""

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure: ...

    def close(self) -> None: ...


class InProcess:
    """Runs the kernel in this process. That is fast, but its crash or hang takes this process with it. What
    the kernel prints goes to stderr. With `check` the simulator's checker runs, with `trace` the values that
    instructions compute are written, with `keep_going` the simulator goes on after faults, with `predict` the
    time on that machine is predicted. `debug` is called with an exception by which the kernel crashes or does
    not compile, while its frames exist. `kernel` is a name or a kernel that is loaded already."""

    def __init__(
        self,
        kernel: str | LoadedKernel,
        on: str,
        stages: bool = False,
        check: bool = False,
        trace: TraceRequest | None = None,
        *,
        keep_going: bool = False,
        predict: str | None = None,
        debug: Debug | None = None,
    ) -> None:
        self._kernel = kernel
        self._on = on
        self._stages = stages
        self._check = check
        self._trace = trace
        self._keep_going = keep_going
        self._predict = predict
        self._debug = debug
        self._loaded: dict[str, LoadedKernel] = {}
        self._questions: Questions | None = None
        if on == SIM:
            from gdnbench.sim import Questions

            self._questions = Questions()

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        imported = False
        checked: list[Finding] | None = [] if self._check else None
        try:
            with contextlib.redirect_stdout(sys.stderr), folder_kept():
                phases.enter("import the kernel")
                kernel = self._load(operation)
                imported = True
                with traced(self._trace, record):
                    how = (self._on, self._stages, checked)
                    return execute(
                        record,
                        operation,
                        kernel,
                        *how,
                        keep_going=self._keep_going,
                        questions=self._questions,
                        predict=self._predict,
                    )
        except kernel_errors() as error:
            found = None if checked is None else tuple(checked)
            outcome, described = classify(error), describe_error(error)
            if self._debug is not None and outcome in (Outcome.CRASH, Outcome.COMPILE_FAILURE):
                self._debug(error)
            return Failure(outcome, described.reason, imported, found, described)

    def _load(self, operation: Operation) -> LoadedKernel:
        if isinstance(self._kernel, LoadedKernel):
            return self._kernel
        if operation.name not in self._loaded:
            # Its file may compile kernels when it is imported.
            with simulated(self._on, questions=self._questions):
                loaded = load(self._kernel, operation)
            self._loaded[operation.name] = loaded
        return self._loaded[operation.name]

    def close(self) -> None:
        self._loaded.clear()


@contextlib.contextmanager
def folder_kept() -> Iterator[None]:
    """Goes back to the current folder at the end: a kernel may leave it, and paths are relative to it."""
    before = Path.cwd()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the kernel may have removed it
            os.chdir(before)


def why_not_found(kernel: str, on: str) -> str | None:
    """Why there is no function of the name `kernel`, in one line; None if there is one. Any other failure to
    load it becomes the outcome of each record."""
    if is_user_kernel(kernel):
        try:
            with simulated(on), folder_kept():
                load_function(kernel)
        except BAD_INPUT_ERRORS as error:
            return str(error)
        except kernel_errors():
            return None
    return None
