"""What is kept from one test to the next: the open store, the kernel's process, the judge and its oracle."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.replay.kernels import of_function
from gdnbench.replay.replay import Replayer, ReplayOptions, replaying
from gdnbench.replay.run import InProcess
from gdnbench.report.report import RecordResult, ReplayReport
from gdnbench.store.address import Address
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Kernel, Operation

if TYPE_CHECKING:
    from gdnbench.sim import Accepted


class Done:
    """Stands in for a kernel that has run: what the test itself computed."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        return self._execution

    def close(self) -> None:
        pass


class Replaying:
    """A store and what replays its records. Opening it raises StoreError where there is no store, and
    CannotRunError for a device that is not here."""

    def __init__(self, path: Address, options: ReplayOptions) -> None:
        self.options = options
        with ExitStack() as stack:
            self.store = stack.enter_context(Store.open(path))
            self._replayer: Replayer = stack.enter_context(replaying(self.store, options))
            self._stack = stack.pop_all()

    def replay(
        self,
        record: StoredRecord,
        kernel: Kernel | Execution | None = None,
        accepted: Accepted | None = None,
    ) -> RecordResult:
        """What a record comes to with the kernel asked for; with a function, run here; or with what ran."""
        replayer, options = self._replayer, self.options
        if isinstance(kernel, Execution):
            replayer = replayer.with_kernel(Done(kernel))
        elif kernel is not None:
            loaded = of_function(kernel, _name_of(kernel))
            replayer = replayer.with_kernel(InProcess(loaded, options.on, options.stages, options.check))
        with _modules_found():
            return replayer.judge(record).result_with_findings(accepted)

    def report(self, result: RecordResult, kernel: Kernel | Execution | None = None) -> ReplayReport:
        """`result` as `gdnbench replay` reports it."""
        report = replace(self.options.report(self.store), records=(result,))
        return report if kernel is None else replace(report, kernel=_name_of(kernel))

    def close(self) -> None:
        self._stack.close()


class Replays:
    """Keeps the last store and kernel open: tests of one mark follow each other."""

    def __init__(self) -> None:
        self._key: tuple[Address, ReplayOptions] | None = None
        self._last: Replaying | None = None

    def replaying(self, path: Address, options: ReplayOptions) -> Replaying:
        """That of `path` and `options`; errors as of `Replaying`."""
        key = (path, options)
        if self._last is None or self._key != key:
            self.close()
            self._last, self._key = Replaying(*key), key
        return self._last

    def close(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None


def _name_of(kernel: Kernel | Execution) -> str:
    if isinstance(kernel, Execution):
        return "outputs of the test"
    return str(getattr(kernel, "__name__", repr(kernel)))


@contextmanager
def _modules_found() -> Iterator[None]:
    """While a kernel's process, which starts with the first record, finds the modules that tests do: pytest
    puts folders on this process' path that its environment does not name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        yield
