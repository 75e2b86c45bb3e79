"""Replays the records of a store through a kernel and judges what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gdnbench.errors import BadInputError, Exit, StoreError
from gdnbench.judge import calls
from gdnbench.judge.by_tensor import ByTensor, describe
from gdnbench.judge.record import ORACLE, Judge
from gdnbench.judge.result import Side, TensorResult
from gdnbench.judge.rule import Rule, make_rule
from gdnbench.judge.stages import exact_stages, judge_stages
from gdnbench.judge.waterfall import StageShare, waterfall
from gdnbench.ops import operation
from gdnbench.record import Status
from gdnbench.replay import hygiene, kernels
from gdnbench.replay.execute import Execution, device_of
from gdnbench.replay.failure import Failure
from gdnbench.replay.isolate import Isolated
from gdnbench.replay.run import InProcess, Runner
from gdnbench.replay.save import RunWriter
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult, ReplayReport
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import ContractError, Operation

if TYPE_CHECKING:
    from gdnbench.sim.checker.accept import Accepted
    from gdnbench.sim.report import Finding
    from gdnbench.timing.result import RecordTiming
    from gdnbench.trace.request import TraceRequest

RECORDED = "recorded"
TIMEOUT = 300.0
SLOW_TIMEOUT = 10 * TIMEOUT
"""Of a record that is checked, which is simulated up to ten times as slowly, or traced: what is recorded is
interpreted."""

Progress = Callable[[int, int, RecordResult], None]
"""Called after each record: how many are done, of how many, and the last one."""


Times = Callable[[StoredRecord], "RecordTiming"]
"""Times kernels on a record; one that fails meanwhile is an outcome of its own in what comes back."""


def replay(
    store: Store,
    *,
    kernel: str = "torch",
    against: str = ORACLE,
    on: str = "cpu",
    records: Sequence[int] | None = None,
    op: str | None = None,
    k: float | None = None,
    k_by_tensor: Mapping[str, float] | None = None,
    tol: tuple[float, float] | None = None,
    bitwise: bool = False,
    rules: Mapping[str, Rule] | None = None,
    stages: bool = False,
    isolate: bool | None = None,
    timeout: float | None = None,
    save: str | Path | None = None,
    time: Times | None = None,
    check: bool = False,
    accepted: Accepted | None = None,
    trace: TraceRequest | None = None,
    progress: Progress | None = None,
) -> ReplayReport:
    """Replay the records of `store` (those numbered in `records`, of operation `op`) through `kernel`.

    The rule is `k` (2 unless given) times the error of torch's kernel, or `bitwise`, or `tol` = (abs, rel).
    `rules` are those of single tensors, by TENSOR or OPERATION.TENSOR.
    `stages`: judge the intermediates that the kernel fills as well, ahead of its outputs, by the same rule.
    `time` is called for each record that passed, and what it returns is kept with the result.
    `check`: the simulator checks every launch of `kernel`, and of `against` if that is simulated; an error
    that is not `accepted` fails the record.
    `trace`: the simulator writes what instructions of `kernel` compute.
    `isolate` None: in a process of its own for a user's function, on CUDA, or with a timeout; `timeout` is
    seconds a record.

    BadInputError for arguments that name nothing or contradict each other, CannotRunError if `on` is not
    here.
    """
    rule: Rule | ByTensor = make_rule(k, k_by_tensor, tol, bitwise)
    rule = ByTensor(rule, rules) if rules else rule
    if timeout is not None and not timeout > 0:
        raise BadInputError(f"timeout {timeout:g} must be a number of seconds above 0")
    if stages and against == RECORDED:
        raise BadInputError("no call records its stages: compare them with reference or another kernel")
    if check and on != SIM:
        raise BadInputError(f"--check is done by the simulator: --on {SIM}, not {on}")
    if trace is not None and on != SIM:
        raise BadInputError(f"--trace is written by the simulator: --on {SIM}, not {on}")
    chosen = select(store, records, op)
    kernels.check_name(kernel, on)
    if against not in (ORACLE, RECORDED):
        kernels.check_name(against)
    # The other side of a simulated kernel need not be simulated: its tensors are on the CPU anyway.
    there = "cpu" if on == SIM and against not in kernels.on_simulator() else on
    device = device_of(on)

    def runner_of(name: str, place: str, check: bool = False, trace: TraceRequest | None = None) -> Runner:
        options: dict[str, Any] = {"isolate": isolate, "timeout": timeout, "stages": stages}
        return runner(store, name, place, check=check, trace=trace, **options)

    results: list[RecordResult] = []
    report = ReplayReport(str(store.path), kernel, against, on, describe(rule), ())
    with ExitStack() as stack:
        main = stack.enter_context(closing(runner_of(kernel, on, check, trace)))
        other = (
            None
            if against in (ORACLE, RECORDED)
            else stack.enter_context(closing(runner_of(against, there, check and there == SIM)))
        )
        saved = None
        if save is not None:
            saved = stack.enter_context(RunWriter(Path(save), report.header, store, chosen))
        one = Replayer(
            main, other, against, Judge(rule, device, grids=save is not None), saved, time, accepted
        )
        for number in chosen:
            results.append(one.replay(store.records[number]))
            if progress is not None:
                progress(len(results), len(chosen), results[-1])
    return replace(report, records=tuple(results))


def runner(
    store: Store,
    kernel: str,
    on: str,
    *,
    isolate: bool | None = None,
    timeout: float | None = None,
    stages: bool = False,
    check: bool = False,
    trace: TraceRequest | None = None,
) -> Runner:
    """What runs `kernel` on records of `store`, here or in a process of its own; see `replay`. BadInputError
    for a timeout of a kernel that runs here."""
    alone = kernels.is_user_kernel(kernel) or on == "cuda" or timeout is not None
    if isolate if isolate is not None else alone:
        usual = TIMEOUT if trace is None and not check else SLOW_TIMEOUT
        seconds = timeout if timeout is not None else usual
        return Isolated(store.path, kernel, on, seconds, stages, check, trace)
    if timeout is not None:
        raise BadInputError("a timeout needs isolation: a kernel in this process cannot be stopped")
    return InProcess(kernel, on, stages, check, trace)


def select(store: Store, records: Sequence[int] | None, op: str | None) -> list[int]:
    """Numbers of the records asked for, in the order asked for; BadInputError if there are none."""
    count = len(store.records)
    for number in records or ():
        if not 0 <= number < count:
            raise BadInputError(f"{store.path} has no record {number}; it has {count}, numbered from 0")
    numbers = list(records) if records is not None else list(range(count))
    if op is not None:
        operation(op)
        numbers = [number for number in numbers if store.records[number].info.op == op]
    if not numbers:
        what = f"record of {op}" if op is not None else "record"
        raise BadInputError(f"{store.path} has no {what} to replay")
    return numbers


class Replayer:
    """Replays one record after another through one kernel."""

    def __init__(
        self,
        kernel: Runner,
        other: Runner | None,
        against: str,
        judge: Judge,
        saved: RunWriter | None = None,
        time: Times | None = None,
        accepted: Accepted | None = None,
    ) -> None:
        self._kernel = kernel
        self._other = other
        self._against = against
        self._judge = judge
        self._saved = saved
        self._time = time
        self._accepted = accepted

    def replay(self, record: StoredRecord) -> RecordResult:
        """Bind, run, judge and save one record; what goes wrong with it is its result."""
        try:
            op = operation(record.info.op)
            calls.check(record, op)
            strays = hygiene.recorded_faults(record, op) if self._against == RECORDED else []
        except (ContractError, BadInputError, StoreError) as error:
            return RecordResult.of(record, Outcome.REFUSED, str(error))
        if self._against == RECORDED and not record.after:
            unfinished = record.info.status is Status.UNFINISHED
            why = "the recorded call never finished" if unfinished else "its capture kept the inputs alone"
            return RecordResult.of(record, Outcome.NOT_COMPARABLE, f"{why}: it has no output")
        execution = self._kernel.run(record, op)
        checked = execution.checked
        if isinstance(execution, Failure):
            result = RecordResult.of(record, execution.outcome, execution.reason)
            result = replace(result, imported=execution.imported)
        else:
            try:
                other = self._other.run(record, op) if self._other is not None else None
                if other is not None and other.checked is not None:
                    of_other = (replace(finding, of=self._against) for finding in other.checked)
                    checked = (*(checked or ()), *of_other)
                result = self._compare(record, op, execution, other, strays)
            except (BadInputError, StoreError) as error:
                result = RecordResult.of(record, Outcome.REFUSED, str(error))
        if checked is not None:
            found = checked if self._accepted is None else self._accepted.of(checked)
            result = _with_findings(result, found)
        if self._time is not None and result.outcome is Outcome.PASS:
            result = _with_times(result, self._time(record))
        if self._judge.grids:
            result = replace(result, ranges=calls.ranges_of(record, op))
        if self._saved is not None:
            left = None if isinstance(execution, Failure) else execution
            self._saved.add(record, op, result, left, result.timing)
        return result

    def _compare(
        self,
        record: StoredRecord,
        op: Operation,
        execution: Execution,
        found: Execution | Failure | None,
        strays: list[str],
    ) -> RecordResult:
        """`found` is what the other kernel left; `strays`: what the recorded call wrote that it must not."""
        other: dict[str, Tensor] | None = None
        other_stages: dict[str, Tensor] | None = None
        faults, notes = [*execution.faults, *strays], [*execution.notes]
        if self._against == RECORDED:
            other = {name: handle.read() for name, handle in record.after.items()}
        elif found is not None:
            if isinstance(found, Failure):
                return RecordResult.of(record, found.outcome, f"{self._against}: {found.reason}")
            other, other_stages = found.outputs, found.stages
            faults += [f"{self._against}: {fault}" for fault in found.faults]
            notes += [f"{self._against}: {note}" for note in found.notes]
        tensors = self._judge.tensors(record, op, execution.outputs, other)
        shares: tuple[StageShare, ...] | None = None
        if execution.stages:
            given = op.convert(calls.compact(record, op, self._judge.device), execution.conventions)
            rule, grids = self._judge.rule, self._judge.grids
            exact = exact_stages(op, given) if grids else None
            stages = judge_stages(op, given, execution.stages, rule, other_stages, grids=grids, oracle=exact)
            tensors = (*stages, *tensors)
            if exact is not None:
                outputs = op.convert_outputs(
                    execution.outputs, calls.conventions_of(record, op), given.conventions
                )
                shares = waterfall(op, given, {**execution.stages, **outputs}, exact)
        reasons = [*faults, *_reasons(tensors)]
        outcome = Outcome.MISMATCH if reasons else Outcome.PASS
        return replace(
            RecordResult.of(record, outcome, reasons[0] if reasons else ""),
            faults=tuple(faults),
            tensors=tensors,
            notes=tuple(notes),
            seconds=execution.seconds,
            waterfall=shares,
        )


def _with_findings(result: RecordResult, found: tuple[Finding, ...]) -> RecordResult:
    """`result` with what the checker found, and with an outcome that fails if one of it does."""
    result = replace(result, findings=found)
    errors = [finding.summary for finding in found if finding.fails]
    if not errors or result.outcome.exit_code is Exit.MISMATCH:
        return result
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    earlier = () if result.outcome is Outcome.PASS else (f"{result.outcome}: {result.reason}",)
    notes = (*result.notes, *earlier)
    return replace(result, outcome=Outcome.CHECK, reason=f"{errors[0]}{more}", notes=notes)


def _with_times(result: RecordResult, timing: RecordTiming) -> RecordResult:
    """`result` with its times, or with the outcome of a kernel that failed while it was timed."""
    failed = next((kernel for kernel in timing.kernels if kernel.outcome is not Outcome.PASS), None)
    if failed is None:
        return replace(result, timing=timing)
    return replace(result, timing=timing, outcome=failed.outcome, reason=f"{failed.name}: {failed.reason}")


def _reasons(tensors: Sequence[TensorResult]) -> Iterator[str]:
    for tensor in tensors:
        for reason in tensor.reasons:
            side = f"{tensor.side} " if tensor.side is not Side.KERNEL else ""
            yield f"{side}{tensor.tensor}: {reason}"
