# SPDX-License-Identifier: Apache-2.0
"""State kept between tests: the open store, the kernel's process, the judge and its oracle."""

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
    """Stands in for a kernel: returns outputs that the test computed itself."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        return self._execution

    def close(self) -> None:
        pass


class Replaying:
    """A store and the means to replay its records. StoreError if there is no store, CannotRunError for a
    missing device."""

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
        """The result of a record: with the requested kernel, with a function called here, or of a finished
        execution."""
        replayer, options = self._replayer, self.options
        if isinstance(kernel, Execution):
            replayer = replayer.with_kernel(Done(kernel))
        elif kernel is not None:
            loaded = of_function(kernel, _name_of(kernel))
            replayer = replayer.with_kernel(InProcess(loaded, options.on, options.stages, options.check))
        with _modules_found():
            return replayer.judge(record).result_with_findings(accepted)

    def report(self, result: RecordResult, kernel: Kernel | Execution | None = None) -> ReplayReport:
        """`result` as a report of `gdnbench replay`."""
        report = replace(self.options.report(self.store), records=(result,))
        return report if kernel is None else replace(report, kernel=_name_of(kernel))

    def close(self) -> None:
        self._stack.close()


class Replays:
    """Keeps the last store and kernel open, since tests of one mark follow each other."""

    def __init__(self) -> None:
        self._key: tuple[Address, ReplayOptions] | None = None
        self._last: Replaying | None = None

    def replaying(self, path: Address, options: ReplayOptions) -> Replaying:
        """The `Replaying` for `path` and `options`; raises what that raises."""
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
    """Context in which a kernel's process finds the modules that tests find.

    pytest adds folders to this process' path that its environment does not name; the kernel's process starts
    with the first record.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        yield
