"""Records x kernels -> counts of what kernels execute on the simulator, which has no clock."""

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
from gdnbench.replay.replay import Replayer
from gdnbench.replay.run import InProcess
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome, exit_code
from gdnbench.report.report import RecordResult
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.timing.counts import Counts, counted
from gdnbench.timing.options import RULE
from gdnbench.timing.run import chosen
from gdnbench_kernels.contract import ContractError, Operation, Work


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """What one kernel did on one record in the simulator; no counts unless its outputs pass."""

    name: str
    outcome: Outcome
    reason: str
    counts: Counts | None


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
        """No times were made: CANNOT_RUN at best."""
        outcomes = [kernel.outcome for record in self.records for kernel in record.kernels]
        return exit_code([*outcomes, Outcome.UNSUPPORTED])


def count_records(
    store: Store,
    kernels: Sequence[str],
    *,
    records: Sequence[int] | None = None,
    op: str | None = None,
    time_wrong: bool = False,
    progress: Progress | None = None,
) -> CountsReport:
    """What `kernels` do on the records of `store` in the simulator, in place of times. Raises as
    `time_records` does."""
    numbers = chosen(store, kernels, SIM, records, op)
    judge, done = Judge(RULE, device_of(SIM)), list[RecordCounts]()
    with ExitStack() as stack:
        runs = {name: stack.enter_context(closing(_Counted(name))) for name in kernels}
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
    """Runs one kernel on the simulator and keeps the counts of its last call."""

    def __init__(self, kernel: str) -> None:
        self._runner = InProcess(kernel, SIM)
        self.counts: Counts | None = None

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        self.counts = None
        with counted():
            found = self._runner.run_record(record, operation)
        if isinstance(found, Execution):
            self.counts = Counts.of_launches(found.launches)
        return found

    def close(self) -> None:
        self._runner.close()


def _counts_of(
    record: StoredRecord, name: str, runs: _Counted, judge: Judge, time_wrong: bool
) -> KernelCounts:
    result = Replayer(runs, None, ORACLE, judge).replay(record)
    shown = result.outcome is Outcome.PASS or (time_wrong and result.outcome is Outcome.MISMATCH)
    return KernelCounts(name, result.outcome, result.reason, runs.counts if shown else None)


def _work(record: StoredRecord, judge: Judge) -> Work | None:
    """What the operation costs on a record that is whole."""
    op = operation(record.info.op)
    if op.work is None:
        return None
    try:
        return op.work(calls.compact_call(record, op, judge.device))
    except (ContractError, *BAD_INPUT_ERRORS, StoreError):
        return None  # a record that its kernels' outcomes say is refused
