# SPDX-License-Identifier: Apache-2.0
"""Records x kernels -> results: outputs judged as a replay does, then those kernels timed that pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gdnbench import phases
from gdnbench.errors import BadInputError, Exit
from gdnbench.judge.record import ORACLE
from gdnbench.judge.rule import describe_rule
from gdnbench.ops import operation
from gdnbench.replay import kernels as named
from gdnbench.replay.execute import device_of
from gdnbench.replay.replay import select
from gdnbench.replay.save import RunWriter
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome, exit_code
from gdnbench.report.report import RecordResult, ReplayReport
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.timing.baseline import AgainstBaseline, against
from gdnbench.timing.cuda_clocks import resolved
from gdnbench.timing.isolated import Judged, Timed, Timer, TimingProcess
from gdnbench.timing.machine import machine
from gdnbench.timing.options import RULE, TimingOptions
from gdnbench.timing.result import KernelTiming, Machine, RecordTiming
from gdnbench.timing.types import Mode


@dataclass(frozen=True, slots=True)
class TimingReport:
    """Kernels timed on records of a store; the first kernel is what the others are compared with."""

    store: str
    kernels: tuple[str, ...]
    on: str
    mode: Mode
    rule: str  # by which outputs were judged
    records: tuple[RecordTiming, ...]
    changes: tuple[AgainstBaseline, ...] | None = None  # None: there was no baseline

    @property
    def outcomes(self) -> list[Outcome]:
        return [kernel.outcome for record in self.records for kernel in record.kernels]

    @property
    def exit_code(self) -> Exit:
        """A regression is as bad as a crash."""
        slower = any(change.regression for change in self.changes or ())
        return exit_code([*self.outcomes, Outcome.MISMATCH] if slower else self.outcomes)


Progress = Callable[[int, int, RecordTiming], None]
"""Called after each record: how many are done, of how many, and the last one."""


def time_records(
    store: Store,
    kernels: Sequence[str],
    *,
    on: str = "cpu",
    records: Sequence[int] | None = None,
    op: str | None = None,
    options: TimingOptions | None = None,
    time_wrong: bool | Collection[str] = False,
    save: str | Path | None = None,
    baseline: Sequence[RecordTiming] | None = None,
    timer: Timer | None = None,
    progress: Progress | None = None,
) -> TimingReport:
    """Judge and time `kernels` on the records of `store` (those numbered in `records`, of operation `op`).

    A kernel whose outputs fail is not timed, unless `time_wrong`, of all or of those that it names. `save`: a
    run store for the results; one that was begun holds every record that was finished. `baseline`: earlier
    times of these records, in this mode and on this machine, which the times are compared with. `timer` is
    what judges and times them, by default a process of its own.

    BadInputError for arguments that name nothing or contradict each other, CannotRunError if `on` is not
    here.
    """
    if on == SIM:
        raise BadInputError("the simulator has no clock: see counting.count_records")
    numbers = chosen(store, kernels, on, records, op)
    options = options or TimingOptions()
    setting = _Setting.of_device(on, options)
    before = None if baseline is None else _Baseline(baseline)
    if before is not None:
        before.check([store.records[number] for number in numbers], setting)
    done: list[RecordTiming] = []
    with ExitStack() as stack:
        if timer is None:
            timer = stack.enter_context(closing(TimingProcess(store.path, on, options)))
        saved = None
        if save is not None:
            report = ReplayReport(str(store.path), kernels[0], ORACLE, on, describe_rule(RULE), ())
            saved = stack.enter_context(RunWriter(Path(save), report.header, store, numbers))
        one = _Records(kernels, timer, setting, kernels if time_wrong is True else time_wrong or ())
        for number in numbers:
            record = store.records[number]
            done.append(one.time(record))
            if saved is not None:
                _save(saved, record, done[-1])
            if progress is not None:
                progress(len(done), len(numbers), done[-1])
    changes = None if before is None else before.changes(done)
    return TimingReport(
        str(store.path), tuple(kernels), on, options.mode, describe_rule(RULE), tuple(done), changes
    )


@contextmanager
def record_timer(
    store: Store, kernels: Sequence[str], on: str, options: TimingOptions
) -> Iterator[Callable[[StoredRecord], RecordTiming]]:
    """Yields what times `kernels`, all of which passed, on a record. CannotRunError if `on` is not here."""
    setting = _Setting.of_device(on, options)
    with closing(TimingProcess(store.path, on, options)) as timer:
        yield lambda record: _timed(timer, record, kernels, setting)


def chosen(
    store: Store, kernels: Sequence[str], on: str, records: Sequence[int] | None, op: str | None
) -> list[int]:
    """Numbers of the records; BadInputError and CannotRunError for what cannot be meant."""
    if not kernels:
        raise BadInputError("no kernel is named: give --kernel, more than once to compare")
    for name in kernels:
        named.check_name(name, on)
        if kernels.count(name) > 1:
            raise BadInputError(f"kernel {name} is named twice; a kernel is compared with others")
    return select(store, records, op)


@dataclass(frozen=True, slots=True)
class _Setting:
    """The settings that all records of a run share and that a baseline must share too."""

    mode: Mode
    machine: Machine
    clock: str

    @classmethod
    def of_device(cls, on: str, options: TimingOptions) -> _Setting:
        """BadInputError for a clock that the device has not, CannotRunError if it is not here."""
        device = device_of(on)
        return cls(options.mode, machine(device), resolved(device, options.clock))


class _Records:
    """Judges and times one record after another."""

    def __init__(
        self, kernels: Sequence[str], timer: Timer, setting: _Setting, wrong_too: Collection[str]
    ) -> None:
        self._kernels, self._timer, self._setting = kernels, timer, setting
        self._wrong_too = wrong_too

    def time(self, record: StoredRecord) -> RecordTiming:
        """One record; what goes wrong with a kernel on it is that kernel's outcome."""
        op = operation(record.info.op)
        phases.begin(f"record {record.number}")
        phases.enter("judge")
        results = {name: self._timer.judge(record, op, name) for name in self._kernels}
        fit = [name for name, result in results.items() if self._is_timed(name, result.outcome)]
        unfit = [_untimed(name, results[name]) for name in results if name not in fit]
        timing = _timed(self._timer, record, fit, self._setting)
        # What was timed may still be wrong: what the judge said of it stands.
        marked = [
            _marked(kernel, results[kernel.name]) if kernel.timed else kernel for kernel in timing.kernels
        ]
        return replace(timing, kernels=(*marked, *unfit))

    def _is_timed(self, name: str, outcome: Outcome) -> bool:
        return outcome is Outcome.PASS or (name in self._wrong_too and outcome is Outcome.MISMATCH)


def _timed(timer: Timer, record: StoredRecord, kernels: Sequence[str], setting: _Setting) -> RecordTiming:
    """The comparison, with kernels that failed behind those that were timed: blocks name these by position.
    Without blocks where none was timed."""
    timed = timer.time(record, operation(record.info.op), kernels) if kernels else Timed(None, ())
    if timed.timing is not None:
        return replace(timed.timing, kernels=(*timed.timing.kernels, *timed.failed))
    return _nothing(record, setting, timed.failed)


def _nothing(record: StoredRecord, setting: _Setting, kernels: tuple[KernelTiming, ...] = ()) -> RecordTiming:
    """A record on which no kernel was timed."""
    label = RecordResult.from_record(record, Outcome.PASS).label
    mode, here, clock = setting.mode, setting.machine, setting.clock
    return RecordTiming(label, record.number, record.key, record.info.op, mode, here, kernels, clock=clock)


class _Baseline:
    """Earlier times, by record."""

    def __init__(self, timings: Sequence[RecordTiming]) -> None:
        self._by_key = {timing.key: timing for timing in timings}

    def check(self, records: Sequence[StoredRecord], setting: _Setting) -> None:
        """Before anything is timed: BadInputError for what cannot be compared."""
        there = [record for record in records if record.key in self._by_key]
        if not there:
            raise BadInputError("the baseline has none of these records: name times of the same store")
        for record in there:
            against(_nothing(record, setting), self._by_key[record.key])

    def changes(self, timings: Sequence[RecordTiming]) -> tuple[AgainstBaseline, ...]:
        """Of every record; one that the baseline lacks has none, and a note that says so."""
        return tuple(
            against(timing, self._by_key[timing.key])
            if timing.key in self._by_key
            else AgainstBaseline(timing.label, (), ("not in the baseline",))
            for timing in timings
        )


def _untimed(name: str, result: Judged) -> KernelTiming:
    return KernelTiming(name, result.outcome, result.reason)


def _marked(kernel: KernelTiming, result: Judged) -> KernelTiming:
    """`kernel`, which was timed, with what the judge said of its outputs."""
    return replace(kernel, outcome=result.outcome, reason=result.reason)


def _save(saved: RunWriter, record: StoredRecord, timing: RecordTiming) -> None:
    """The record's times; of outcomes the first that is not a pass."""
    bad = next((kernel for kernel in timing.kernels if kernel.outcome is not Outcome.PASS), None)
    outcome, reason = (Outcome.PASS, "") if bad is None else (bad.outcome, f"{bad.name}: {bad.reason}")
    saved.add(
        record, operation(record.info.op), RecordResult.from_record(record, outcome, reason), None, timing
    )
