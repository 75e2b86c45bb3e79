# SPDX-License-Identifier: Apache-2.0
"""Records x kernels -> counts of what kernels execute on the simulator, and their predicted times on a GPU
that has a time model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from gdnbench.errors import BAD_INPUT_ERRORS, Exit, StoreError
from gdnbench.judge import calls
from gdnbench.judge.record import ORACLE, Judge
from gdnbench.judge.rule import describe_rule
from gdnbench.ops import operation
from gdnbench.replay.execute import Execution, device_of
from gdnbench.replay.failure import Failure
from gdnbench.replay.predicting import Timelines, timelines_kept
from gdnbench.replay.replay import Replayer
from gdnbench.replay.run import InProcess
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome, exit_code
from gdnbench.report.report import RecordResult
from gdnbench.sim.predict import PredictedCall
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.timing.counts import Counts, counted
from gdnbench.timing.options import RULE
from gdnbench.timing.run import chosen
from gdnbench_kernels.contract import ContractError, Operation, Work


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """What one kernel did on one record in the simulator; no counts unless its outputs pass. `predicted` is
    its time on the machine that was asked for, `no_time` why there is none."""

    name: str
    outcome: Outcome
    reason: str
    counts: Counts | None
    predicted: PredictedCall | None = None
    no_time: str = ""


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Kernels on one record in the simulator, and what the operation itself costs."""

    label: str
    number: int
    key: str
    op: str
    work: Work | None
    kernels: tuple[KernelCounts, ...]


Progress = Callable[[int, int, RecordCounts], None]
"""Called after each record: how many are done, of how many, and the last one."""


@dataclass(frozen=True, slots=True)
class CountsReport:
    """Kernels counted, in place of times, on records of a store."""

    store: str
    kernels: tuple[str, ...]
    rule: str
    records: tuple[RecordCounts, ...]

    @property
    def exit_code(self) -> Exit:
        """CANNOT_RUN at best where a kernel has no predicted time."""
        kernels = [kernel for record in self.records for kernel in record.kernels]
        without = [Outcome.UNSUPPORTED for kernel in kernels if kernel.predicted is None]
        return exit_code([*(kernel.outcome for kernel in kernels), *without])


def count_records(
    store: Store,
    kernels: Sequence[str],
    *,
    records: Sequence[int] | None = None,
    op: str | None = None,
    time_wrong: bool = False,
    machine: str | None = None,
    timelines: Timelines | None = None,
    progress: Progress | None = None,
) -> CountsReport:
    """What `kernels` do on the records of `store` in the simulator, and how long that is predicted to take on
    `machine`, if that has a time model; `timelines` takes the predicted launches. Raises as `time_records`
    does."""
    numbers = chosen(store, kernels, SIM, records, op)
    judge, done = Judge(RULE, device_of(SIM)), list[RecordCounts]()
    with ExitStack() as stack:
        runs = {name: stack.enter_context(closing(_Counted(name, machine, timelines))) for name in kernels}
        for number in numbers:
            record = store.records[number]
            found = tuple(_counts_of(record, name, runs[name], judge, time_wrong) for name in kernels)
            label = RecordResult.from_record(record, Outcome.PASS).label
            done.append(
                RecordCounts(label, record.number, record.key, record.info.op, _work(record, judge), found)
            )
            if progress is not None:
                progress(len(done), len(numbers), done[-1])
    return CountsReport(str(store.path), tuple(kernels), describe_rule(RULE), tuple(done))


class _Counted:
    """Runs one kernel on the simulator and keeps the counts, and the predicted time, of its last call."""

    def __init__(self, kernel: str, machine: str | None, timelines: Timelines | None) -> None:
        self._kernel = kernel
        self._runner = InProcess(kernel, SIM, predict=machine)
        self._timelines = timelines
        self.counts: Counts | None = None
        self.predicted: PredictedCall | None = None
        self.no_time = ""

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        self.counts, self.predicted, self.no_time = None, None, ""
        name = f"record {record.number}, {self._kernel}, "
        with counted(), timelines_kept(self._timelines, name):
            found = self._runner.run_record(record, operation)
        if isinstance(found, Execution):
            self.counts = Counts.of_launches(found.launches)
            if found.predicted is not None:
                self.predicted, self.no_time = found.predicted.call, found.predicted.no_time
        return found

    def close(self) -> None:
        self._runner.close()


def _counts_of(
    record: StoredRecord, name: str, runs: _Counted, judge: Judge, time_wrong: bool
) -> KernelCounts:
    result = Replayer(runs, None, ORACLE, judge).replay(record)
    shown = result.outcome is Outcome.PASS or (time_wrong and result.outcome is Outcome.MISMATCH)
    if not shown:
        return KernelCounts(name, result.outcome, result.reason, None)
    return KernelCounts(name, result.outcome, result.reason, runs.counts, runs.predicted, runs.no_time)


def _work(record: StoredRecord, judge: Judge) -> Work | None:
    """What the operation costs on a record that is whole."""
    op = operation(record.info.op)
    if op.work is None:
        return None
    try:
        return op.work(calls.compact_call(record, op, judge.device))
    except (ContractError, *BAD_INPUT_ERRORS, StoreError):
        return None  # a record that its kernels' outcomes say is refused
