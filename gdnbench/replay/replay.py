# SPDX-License-Identifier: Apache-2.0
"""Replays the records of a store through a kernel and judges what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from gdnbench import phases
from gdnbench.errors import BAD_INPUT_ERRORS, BadInputError, StoreError
from gdnbench.judge import calls
from gdnbench.judge.by_tensor import ByTensor, describe_rules, with_rules
from gdnbench.judge.error_attribution import StageShare, attribute_errors
from gdnbench.judge.record import ORACLE, Judge
from gdnbench.judge.result import Side, TensorResult
from gdnbench.judge.rule import Rule, make_rule
from gdnbench.judge.stages import exact_stages, judge_stages
from gdnbench.ops import operation
from gdnbench.record import Status
from gdnbench.replay import kernels, side_effects
from gdnbench.replay.execute import Execution, device_of
from gdnbench.replay.failure import Failure
from gdnbench.replay.isolate import Isolated
from gdnbench.replay.predicting import machine_to_predict
from gdnbench.replay.record import JudgedRecord, Times, finish_record
from gdnbench.replay.run import Debug, InProcess, Runner
from gdnbench.replay.save import RunWriter
from gdnbench.replay.simulated import SIM, replay_gpu, requested_gpu
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult, ReplayReport
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import ContractError, Operation, Role

if TYPE_CHECKING:
    from gdnbench.sim import Accepted
    from gdnbench.sim.predict import PredictedTime
    from gdnbench.trace.request import TraceRequest

RECORDED = "recorded"
TIMEOUT = 300.0
SLOW_TIMEOUT = 10 * TIMEOUT
"""Of a record that is checked, which is simulated up to ten times as slowly; that is traced: what is recorded
is interpreted; or whose time is predicted."""

Progress = Callable[[int, int, RecordResult], None]
"""Called after each record: how many are done, of how many, and the last one."""


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
    save_outputs: bool = True,
    grids: bool = False,
    time: Times | None = None,
    check: bool = False,
    accepted: Accepted | None = None,
    trace: TraceRequest | None = None,
    keep_going: bool = False,
    predict: bool = False,
    machine: str | None = None,
    sms: int | None = None,
    progress: Progress | None = None,
    debug: Debug | None = None,
) -> ReplayReport:
    """Replay the records of `store` (those numbered in `records`, of operation `op`) through `kernel`.

    The rule is `k` (2 unless given) times the error of torch's kernel, or `bitwise`, or `tol` = (abs, rel).
    `rules` are those of single tensors, by TENSOR or OPERATION.TENSOR.
    `stages`: judge the intermediates that the kernel fills as well, ahead of its outputs, by the same rule.
    `time` is called for each record that passed, and what it returns is kept with the result.
    `check`: the simulator checks every launch of `kernel`, and of `against` if that is simulated; an error
    that is not `accepted` fails the record.
    `save`: a run store for the results, and without `save_outputs` nothing else.
    `grids`: results have their errors by chunk and head, as they have where they are saved.
    `trace`: the simulator writes what instructions of `kernel` compute.
    `keep_going`: a simulated `kernel` goes on after faults that can be skipped; its record is a mismatch.
    `predict`: the time of simulated kernels on `machine` is predicted and kept with records that pass.
    `machine` and `sms`: the GPU of simulated kernels and its number of SMs, see `replay_gpu`.
    `debug` is called with an exception of a kernel in this process, as `InProcess` says.
    `isolate` None: in a process of its own for a user's function, on CUDA, or with a timeout; `timeout` is
    seconds a record.

    BadInputError for arguments that name nothing or contradict each other, CannotRunError if `on` is not
    here.
    """
    options = replay_options(
        kernel=kernel,
        against=against,
        on=on,
        k=k,
        k_by_tensor=k_by_tensor,
        tol=tol,
        bitwise=bitwise,
        rules=rules,
        stages=stages,
        isolate=isolate,
        timeout=timeout,
        check=check,
        trace=trace,
        keep_going=keep_going,
        grids=grids or save is not None,
        predict=predict,
        machine=machine,
        sms=sms,
    )
    chosen = select(store, records, op)
    report = options.report(store)
    results: list[RecordResult] = []
    with ExitStack() as stack:
        one = stack.enter_context(replaying(store, options, debug))
        saved = None
        if save is not None:
            saved = stack.enter_context(
                RunWriter(Path(save), report.header, store, chosen, outputs=save_outputs)
            )
        for number in chosen:
            record = store.records[number]
            results.append(
                finish_record(record, one.judge(record), saved=saved, time=time, accepted=accepted)
            )
            if progress is not None:
                progress(len(results), len(chosen), results[-1])
    return replace(report, records=tuple(results))


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How records are replayed and judged, whichever they are; see `replay`. `grids`: results have their
    errors by chunk and head. `predict`: the machine whose time is predicted."""

    kernel: str
    against: str
    on: str
    rule: Rule | ByTensor
    stages: bool = False
    isolate: bool | None = None
    timeout: float | None = None
    check: bool = False
    trace: TraceRequest | None = None
    grids: bool = False
    keep_going: bool = False
    machine: str | None = None
    sms: int | None = None
    predict: str | None = None

    def report(self, store: Store) -> ReplayReport:
        """Of no record yet."""
        return ReplayReport(
            str(store.path), self.kernel, self.against, self.on, describe_rules(self.rule), ()
        )


def replay_options(
    *,
    kernel: str = "torch",
    against: str = ORACLE,
    on: str = "cpu",
    k: float | None = None,
    k_by_tensor: Mapping[str, float] | None = None,
    tol: tuple[float, float] | None = None,
    bitwise: bool = False,
    rules: Mapping[str, Rule] | None = None,
    stages: bool = False,
    isolate: bool | None = None,
    timeout: float | None = None,
    check: bool = False,
    trace: TraceRequest | None = None,
    keep_going: bool = False,
    grids: bool = False,
    predict: bool = False,
    machine: str | None = None,
    sms: int | None = None,
) -> ReplayOptions:
    """The arguments of `replay`, checked as far as possible without a store and a device. BadInputError, or
    CannotRunError for a listed kernel that is not simulated."""
    rule = with_rules(make_rule(k, k_by_tensor, tol, bitwise), rules)
    if timeout is not None and not timeout > 0:
        raise BadInputError(f"timeout {timeout:g} must be a number of seconds above 0")
    if stages and against == RECORDED:
        raise BadInputError("no call records its stages: compare them with reference or another kernel")
    if check and on != SIM:
        raise BadInputError(f"--check is done by the simulator: --on {SIM}, not {on}")
    if keep_going and on != SIM:
        raise BadInputError(f"--keep-going is about faults that the simulator finds: --on {SIM}, not {on}")
    if on != SIM and (machine is not None or sms is not None):
        raise BadInputError(f"machine and sms describe a simulated GPU: on {SIM}, not {on}")
    if predict and on != SIM:
        raise BadInputError(f"the time of simulated kernels is predicted: on {SIM}, not {on}")
    if trace is not None and on != SIM:
        raise BadInputError(f"a value trace is written by the simulator: on {SIM}, not {on}")
    kernels.check_name(kernel, on)
    if against not in (ORACLE, RECORDED):
        kernels.check_name(against)
    with replay_gpu(machine, sms):  # and what an enclosing block says, for workers on other machines
        gpu = requested_gpu()
        modelled = machine_to_predict(gpu[0]) if predict else None
    how = (stages, isolate, timeout, check, trace, grids, keep_going)
    return ReplayOptions(kernel, against, on, rule, *how, *gpu, modelled)


@contextmanager
def replaying(store: Store, options: ReplayOptions, debug: Debug | None = None) -> Iterator[Replayer]:
    """A Replayer for the records of `store`. Worker processes of its kernels run until the `with` block ends.

    CannotRunError if the device is not here, BadInputError as `runner`.
    """
    on, against = options.on, options.against
    device = device_of(on)
    # The other side of a simulated kernel need not be simulated: its tensors are on the CPU anyway.
    there = "cpu" if on == SIM and against not in kernels.on_simulator() else on

    def runner_of(
        name: str, on: str, *, check: bool, trace: TraceRequest | None = None, keep_going: bool = False
    ) -> Runner:
        return runner(
            store,
            name,
            on,
            isolate=options.isolate,
            timeout=options.timeout,
            stages=options.stages,
            check=check,
            trace=trace,
            keep_going=keep_going,
            predict=options.predict if on == SIM else None,
            keep_printed=options.grids,
            debug=debug,
        )

    with ExitStack() as stack:
        stack.enter_context(replay_gpu(options.machine, options.sms))
        main = runner_of(
            options.kernel, on, check=options.check, trace=options.trace, keep_going=options.keep_going
        )
        stack.enter_context(closing(main))
        other = None
        if against not in (ORACLE, RECORDED):
            other = runner_of(against, there, check=options.check and there == SIM)
            stack.enter_context(closing(other))
        yield Replayer(main, other, against, Judge(options.rule, device, grids=options.grids))


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
    keep_going: bool = False,
    predict: str | None = None,
    keep_printed: bool = False,
    debug: Debug | None = None,
) -> Runner:
    """A Runner of `kernel` for the records of `store`, in this process or in a worker process; see `replay`.
    A worker process keeps what it prints with `keep_printed`.
    BadInputError for a timeout of a kernel that runs in this process."""
    alone = kernels.is_user_kernel(kernel) or on == "cuda" or timeout is not None
    if isolate if isolate is not None else alone:
        usual = TIMEOUT if trace is None and not check and predict is None else SLOW_TIMEOUT
        seconds = timeout if timeout is not None else usual
        how = {"keep_going": keep_going, "keep_printed": keep_printed}
        return Isolated(store.path, kernel, on, seconds, stages, check, trace, predict=predict, **how)
    if timeout is not None:
        raise BadInputError("a timeout needs isolation: a kernel in this process cannot be stopped")
    return InProcess(kernel, on, stages, check, trace, keep_going=keep_going, predict=predict, debug=debug)


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

    def __init__(self, kernel: Runner, other: Runner | None, against: str, judge: Judge) -> None:
        self._kernel = kernel
        self._other = other
        self._against = against
        self._judge = judge

    def with_kernel(self, kernel: Runner) -> Replayer:
        """A Replayer for another kernel that shares the judge and the oracle's last outputs."""
        return Replayer(kernel, self._other, self._against, self._judge)

    def replay(self, record: StoredRecord) -> RecordResult:
        """Binds, runs and judges one record. A failure becomes the outcome of the result."""
        return self.judge(record).result_with_findings()

    def judge(self, record: StoredRecord) -> JudgedRecord:
        """The same, with the kernel's outputs."""
        phases.begin(f"record {record.number}")
        try:
            op = operation(record.info.op)
            calls.check_record(record, op)
            strays = side_effects.recorded_faults(record, op) if self._against == RECORDED else []
        except (ContractError, *BAD_INPUT_ERRORS, StoreError) as error:
            return JudgedRecord(RecordResult.from_record(record, Outcome.REFUSED, str(error)), called=False)
        reason = _not_comparable(record, op) if self._against == RECORDED else None
        if reason is not None:
            return JudgedRecord(
                RecordResult.from_record(record, Outcome.NOT_COMPARABLE, reason), called=False
            )
        execution = self._kernel.run_record(record, op)
        checked = execution.checked
        if isinstance(execution, Failure):
            result = RecordResult.from_record(record, execution.outcome, execution.reason)
            result = replace(result, imported=execution.imported, error=execution.error)
        else:
            try:
                other = self._other.run_record(record, op) if self._other is not None else None
                if other is not None and other.checked is not None:
                    of_other = (replace(finding, of=self._against) for finding in other.checked)
                    checked = (*(checked or ()), *of_other)
                phases.enter("judge")
                result = self._compare(record, op, execution, other, strays)
                result = replace(result, predicted=_predicted(execution, other))
            except (*BAD_INPUT_ERRORS, StoreError) as error:
                result = RecordResult.from_record(record, Outcome.REFUSED, str(error))
        if self._judge.grids:
            result = replace(result, ranges=calls.ranges_of(record, op), printed=self._printed())
        left = None if isinstance(execution, Failure) else execution
        return JudgedRecord(result, left, checked)

    def _printed(self) -> str:
        """What the kernels printed meanwhile, in processes of their own; the other one's marked as such."""
        kernel, other = (
            one.printed() if isinstance(one, Isolated) else "" for one in (self._kernel, self._other)
        )
        return f"{kernel}\n{self._against} printed:\n{other}".lstrip() if other else kernel

    def _compare(
        self,
        record: StoredRecord,
        op: Operation,
        execution: Execution,
        found: Execution | Failure | None,
        strays: list[str],
    ) -> RecordResult:
        """`found` is the execution of the other kernel; `strays` are faults of the recorded call, which wrote
        where it must not."""
        other: dict[str, Tensor] | None = None
        other_stages: dict[str, Tensor] | None = None
        other_handed: dict[str, str] | None = None
        faults, notes = [*execution.faults, *strays], [*execution.notes]
        if self._against == RECORDED:
            other = {name: handle.read() for name, handle in record.after.items()}
        elif found is not None:
            if isinstance(found, Failure):
                result = RecordResult.from_record(record, found.outcome, f"{self._against}: {found.reason}")
                return replace(result, error=found.error and found.error.of(self._against))
            other, other_stages, other_handed = found.outputs, found.stages, found.conventions
            faults += [f"{self._against}: {fault}" for fault in found.faults]
            notes += [f"{self._against}: {note}" for note in found.notes]
        tensors = self._judge.tensors(
            record, op, execution.outputs, other, handed=execution.conventions, other_handed=other_handed
        )
        shares: tuple[StageShare, ...] | None = None
        if execution.stages:
            given = op.convert(calls.compact_call(record, op, self._judge.device), execution.conventions)
            rule, grids = self._judge.rule, self._judge.grids
            exact = exact_stages(op, given) if grids else None
            stages = judge_stages(op, given, execution.stages, rule, other_stages, grids=grids, oracle=exact)
            tensors = (*stages, *tensors)
            if exact is not None:
                outputs = op.convert_outputs(
                    execution.outputs, calls.conventions_of(record, op), given.conventions
                )
                shares = attribute_errors(op, given, {**execution.stages, **outputs}, exact)
        reasons = [*faults, *_reasons(tensors)]
        outcome = Outcome.MISMATCH if reasons else Outcome.PASS
        return replace(
            RecordResult.from_record(record, outcome, reasons[0] if reasons else ""),
            faults=tuple(faults),
            tensors=tensors,
            notes=tuple(notes),
            seconds=execution.seconds,
            waterfall=shares,
        )


def _predicted(*found: Execution | Failure | None) -> tuple[PredictedTime, ...]:
    """The predicted times of the kernels that ran."""
    return tuple(one.predicted for one in found if isinstance(one, Execution) and one.predicted is not None)


def _not_comparable(record: StoredRecord, operation: Operation) -> str | None:
    """Why the outputs of `record` cannot be compared with; None if they can."""
    if not record.after:
        unfinished = record.info.status is Status.UNFINISHED
        why = "the recorded call never finished" if unfinished else "its capture kept the inputs alone"
        return f"{why}: it has no output"
    left_out = record.info.dispatch.get("not_recorded")
    outputs = (spec.name for spec in operation.tensors if spec.role is Role.OUTPUT and not spec.optional)
    if left_out is None or all(name in record.after for name in outputs):
        return None  # an output that is missing without a word is a difference
    return f"its capture left out {left_out}; compare with reference"


def _reasons(tensors: Sequence[TensorResult]) -> Iterator[str]:
    for tensor in tensors:
        for reason in tensor.reasons:
            side = f"{tensor.side} " if tensor.side is not Side.KERNEL else ""
            yield f"{side}{tensor.tensor}: {reason}"
