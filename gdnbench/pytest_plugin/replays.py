"""What is kept from one test to the next: the open store, the kernel's process, the judge and its oracle."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gdnbench.judge.record import ORACLE, Judge
from gdnbench.judge.rule import Rule, describe_rule, make_rule
from gdnbench.pytest_plugin.asked import Asked
from gdnbench.replay import kernels
from gdnbench.replay.execute import Execution, device_of
from gdnbench.replay.failure import Failure
from gdnbench.replay.replay import RECORDED, Replayer, runner
from gdnbench.replay.run import InProcess, Runner
from gdnbench.replay.simulated import SIM
from gdnbench.report.report import RecordResult, ReplayReport
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Kernel, Operation


class Done:
    """Stands in for a kernel that has run: what the test itself computed."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    def run(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        return self._execution

    def close(self) -> None:
        pass


class Replaying:
    """A store and what replays its records as asked. Opening it raises GdnbenchError: BadInputError for a
    kernel, device or rule that there is not, CannotRunError for a device that is not here."""

    def __init__(self, path: Path, asked: Asked) -> None:
        kernels.check_name(asked.kernel, asked.on)
        if asked.against not in (ORACLE, RECORDED):
            kernels.check_name(asked.against)
        self.asked = asked
        self.device = device_of(asked.on)
        self._rule: Rule = make_rule(asked.k, asked.k_by_tensor, asked.tol, asked.bitwise)
        self._judge = Judge(self._rule, self.device)
        with ExitStack() as stack:
            self.store = stack.enter_context(Store.open(path))
            self._kernel = stack.enter_context(closing(self._runner(asked.kernel, asked.on)))
            self._other: Runner | None = None
            if asked.against not in (ORACLE, RECORDED):
                # The other side of a simulated kernel need not be: its tensors are on the CPU anyway.
                simulated = asked.on == SIM and asked.against in kernels.on_simulator()
                there = asked.on if simulated or asked.on != SIM else "cpu"
                self._other = stack.enter_context(closing(self._runner(asked.against, there)))
            self._stack = stack.pop_all()

    def _runner(self, kernel: str, on: str) -> Runner:
        asked = self.asked
        return runner(
            self.store,
            kernel,
            on,
            isolate=asked.isolate,
            timeout=asked.timeout,
            stages=asked.stages,
            check=asked.check and on == SIM,
        )

    def replay(self, record: StoredRecord, kernel: Kernel | Execution | None = None) -> RecordResult:
        """What a record comes to with the kernel asked for; with a function, run here; or with what ran."""
        ran: Runner = self._kernel
        if isinstance(kernel, Execution):
            ran = Done(kernel)
        elif kernel is not None:
            loaded = kernels.of_function(kernel, _name_of(kernel))
            ran = InProcess(loaded, self.asked.on, self.asked.stages, self.asked.check)
        with _modules_found():
            return Replayer(ran, self._other, self.asked.against, self._judge).replay(record)

    def report(self, result: RecordResult, kernel: Kernel | Execution | None = None) -> ReplayReport:
        """`result` as `gdnbench replay` reports it."""
        asked = self.asked
        name = asked.kernel if kernel is None else _name_of(kernel)
        rule = describe_rule(self._rule)
        return ReplayReport(str(self.store.path), name, asked.against, asked.on, rule, (result,))

    def close(self) -> None:
        self._stack.close()


class Replays:
    """Keeps the last store and kernel open: tests of one mark follow each other."""

    def __init__(self) -> None:
        self._key: tuple[Path, Asked] | None = None
        self._last: Replaying | None = None

    def of(self, path: Path, asked: Asked) -> Replaying:
        """That of `path` and what is asked, whichever of its records; errors as of `Replaying`."""
        key = (path, replace(asked, op=None, records=None))
        if self._last is None or self._key != key:
            self.close()
            self._last, self._key = Replaying(*key), key
        return self._last

    def close(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None


def _name_of(kernel: Kernel | Execution) -> str:
    return (
        "outputs of the test" if isinstance(kernel, Execution) else getattr(kernel, "__name__", repr(kernel))
    )


@contextmanager
def _modules_found() -> Iterator[None]:
    """While a kernel's process, which starts with the first record, finds the modules that tests do: pytest
    puts folders on this process' path that its environment does not name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        yield
