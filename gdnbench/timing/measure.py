# SPDX-License-Identifier: Apache-2.0
"""Judges and times kernels on one record, in this process: buffers, clock, comparison and verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor

from gdnbench import phases
from gdnbench.errors import BadInputError, CannotRunError, GdnbenchError
from gdnbench.judge import calls
from gdnbench.judge.record import ORACLE, Judge
from gdnbench.replay import call as calling
from gdnbench.replay.execute import Execution, device_of
from gdnbench.replay.failure import Failure
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.replay.replay import Replayer
from gdnbench.replay.run import InProcess, Runner, why_not_found
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.store.reader import StoredRecord
from gdnbench.timing import ceiling
from gdnbench.timing.bench import Bench, BenchSubject, preparation
from gdnbench.timing.comparison import Comparison, DisturbedError, Progress, RoundError, compare
from gdnbench.timing.conditions import watch_of
from gdnbench.timing.cuda_clocks import resolved
from gdnbench.timing.machine import machine
from gdnbench.timing.options import RULE, TimingOptions
from gdnbench.timing.result import Ceiling, KernelTiming, Rates, RecordTiming
from gdnbench.timing.rotation import RotationOptions
from gdnbench.timing.statistics import MIN_PLACEMENTS, Rule
from gdnbench.timing.types import RESOLUTION, Cache, Subject
from gdnbench_kernels.contract import Call, Operation, Work

GPU_PLACEMENTS = 8
"""What placements do makes most of an interval's width on a GPU: the ratio of two decode kernels on an H200
scattered by 0.34 % between them, of which Student's factor makes 1.11 % for 6 placements and 0.83 % for 8. On
a CPU a pass over more of them takes too long."""

STRICT_DISCARDS, LENIENT_DISCARDS = 20, 3
"""Disturbed blocks in a row after which a machine is taken to be never quiet. Pauses between them double from
0.05 s up to 1 s, so 20 take 17 s, in which heat goes. 3 are measured again at once, as one disturbed block
of a quiet machine is; seconds that are waited for measure nothing."""

At = Callable[[int], AbstractContextManager[None]]
"""Tells whoever watches that the code of the kernel at that position runs meanwhile."""


class KernelFailed(Exception):
    """One of the kernels raised `error`; the others may be timed without it."""

    def __init__(self, kernel: str, error: Exception) -> None:
        super().__init__(f"{kernel}: {error}")
        self.kernel, self.error = kernel, error


class PreparedWrong(GdnbenchError):
    """A launch that a kernel prepared leaves wrong outputs, while the kernel's function passes."""


class RoundWrong(GdnbenchError):
    """A timed round leaves other bits on another placement, so its time is not that of the call."""


class _Left:
    """Runs nothing: what was left is known."""

    def __init__(self, outputs: dict[str, Tensor], handed: dict[str, str]) -> None:
        self._outputs, self._handed = outputs, handed

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        return Execution(self._outputs, (), (), 0.0, conventions=self._handed)

    def close(self) -> None:
        """There is nothing to close."""


class Session:
    """Judges and times records on the device called `on`; ceilings are measured once for each number of
    bytes."""

    def __init__(self, on: str, options: TimingOptions, at: At) -> None:
        self._device = device_of(on)
        self._options, self._at = options, at
        self._clock = resolved(self._device, options.clock)
        self._machine = machine(self._device)
        self._watch = watch_of(self._device)
        self._ceilings: dict[int, Ceiling] = {}
        self._on = on
        self._judge = Judge(RULE, self._device, brief=True)
        self._runners: dict[str, InProcess] = {}
        self._judged: dict[tuple[int, str], Outcome] = {}

    def judge(self, record: StoredRecord, kernel: str, ran: Callable[[], None]) -> RecordResult:
        """What becomes of the kernel on a record, by the default rule against the oracle. `ran` is called
        once the kernel has run. BadInputError where there is no such kernel."""
        if kernel not in self._runners:
            problem = why_not_found(kernel, self._on)
            if problem is not None:
                raise BadInputError(problem)
            self._runners[kernel] = InProcess(kernel, self._on)
        found = Replayer(_Told(self._runners[kernel], ran), None, ORACLE, self._judge).replay(record)
        self._judged[record.number, kernel] = found.outcome
        return found

    def time(self, record: StoredRecord, operation: Operation, names: Sequence[str]) -> RecordTiming:
        """Compares the kernels called `names`, each of which passed on `record`, with the first of them.

        Raises KernelFailed for one that raises, CannotRunError where nothing can be timed here.
        """
        options = self._options
        given = calls.compact_call(record, operation, self._device)
        placements = GPU_PLACEMENTS if self._device.type == "cuda" else MIN_PLACEMENTS
        rotation = RotationOptions(placements=placements, seed=options.seed)
        bench = Bench(given, operation, self._device, options.mode, rotation, options.clock)
        kernels, programs = list[LoadedKernel](), list[dict[str, float]]()
        own, subjects = list[BenchSubject](), list[Subject]()
        for position, name in enumerate(names):
            with self._blamed(position, name):
                kernels.append(load(name, operation))
                own.append(bench.subject(kernels[-1]))
                subjects.append(_Marked(own[-1], position, self._at))
                self._check_prepared(bench, record, kernels[-1], operation)
                programs.append(bench.programs(kernels[-1]) or {})
        control = bench.control()
        work = None if operation.work is None else operation.work(given)
        notes = [*_converted(given, operation, kernels), *bench.notes, f"timed by {bench.method}"]
        reached = None
        if work is not None and options.mode.cache is Cache.COLD:  # a cache is not bound by the memory's
            try:
                reached = self._ceiling(work.bytes)
            except (ImportError, NotImplementedError) as error:
                notes.append(f"no ceiling was measured: {error}")
        found = self._compare(subjects)
        for position, name in enumerate(names):
            with self._blamed(position, name):
                wrong = own[position].stray()
                if wrong is not None:
                    raise RoundWrong(f"{wrong}: its times are of other work")
        return RecordTiming(
            label=RecordResult.from_record(record, Outcome.PASS).label,
            number=record.number,
            key=record.key,
            op=record.info.op,
            mode=options.mode,
            machine=self._machine,
            kernels=_kernels(found, programs, work, reached),
            pairs=found.pairs,
            repeat=found.repeat,
            repeat_samples=found.repeat_samples,
            blocks=found.blocks,
            placements=found.placements,
            end=found.end,
            seconds=found.seconds,
            discarded=found.discarded,
            disturbed=found.disturbed,
            conditions=found.conditions,
            ceiling=reached,
            control=control,
            notes=(*notes, *found.notes),
            clock=self._clock,
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )

    def _check_prepared(
        self, bench: Bench, record: StoredRecord, kernel: LoadedKernel, operation: Operation
    ) -> None:
        """Holds what a prepared launch leaves to the rule, where the kernel's function passed: it is other
        code, and the one that is timed. PreparedWrong where it fails."""
        if preparation(kernel, operation) is None:
            return
        outcome = self._judged.get((record.number, kernel.name))
        if outcome is None:  # by a process that has ended
            outcome = self.judge(record, kernel.name, lambda: None).outcome
        if outcome is not Outcome.PASS:
            return  # timed all the same, and marked
        left = {name: tensor.cpu() for name, tensor in bench.outputs(kernel).items()}
        given = calls.compact_call(record, operation, self._device)
        handed = calling.conversion(given, operation, kernel).target
        found = Replayer(_Left(left, handed), None, ORACLE, self._judge).replay(record)
        if found.outcome is not Outcome.PASS:
            raise PreparedWrong(
                f"the launch that it prepared fails where its function passes: {found.reason}"
            )

    @contextmanager
    def _blamed(self, position: int, name: str) -> Iterator[None]:
        try:
            with self._at(position):
                yield
        except Exception as error:
            raise KernelFailed(name, error) from error

    def _compare(self, subjects: Sequence[Subject]) -> Comparison:
        options = self._options
        rule = Rule(
            options.precision,
            seconds=options.seconds,
            resolution=RESOLUTION[self._clock],
            discards=STRICT_DISCARDS if options.strict else LENIENT_DISCARDS,
            keep_disturbed=not options.strict,
        )
        self._watch.now()  # what happened since the last record, judging among it, disturbs no block
        try:
            phases.enter("time", "warming up")
            return compare(subjects, rule, self._watch, _say_how_far)
        except RoundError as error:
            cause = error.__cause__
            raise KernelFailed(error.kernel, cause if isinstance(cause, Exception) else error) from error
        except DisturbedError as error:
            if any(pair.interval is None for pair in error.partial.pairs) or not error.partial.blocks:
                raise CannotRunError(f"{error}; without --strict such blocks count") from None
            return error.partial

    def _ceiling(self, size: int) -> Ceiling:
        if size not in self._ceilings:
            self._ceilings[size] = ceiling.measure(self._device, size, clock=self._options.clock)
        return self._ceilings[size]


class _Told:
    """A runner that reports when the kernel has run."""

    def __init__(self, runner: Runner, ran: Callable[[], None]) -> None:
        self._runner, self._ran = runner, ran

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        found = self._runner.run_record(record, operation)
        self._ran()
        return found

    def close(self) -> None:
        self._runner.close()


class _Marked:
    """A subject that marks when its kernel's code runs."""

    def __init__(self, subject: Subject, position: int, at: At) -> None:
        self._subject, self._position, self._at = subject, position, at

    @property
    def name(self) -> str:
        return self._subject.name

    @property
    def placements(self) -> int:
        return self._subject.placements

    @property
    def launches(self) -> int:
        return self._subject.launches

    def round(self, placement: int) -> float:
        with self._at(self._position):
            return self._subject.round(placement)


def _kernels(
    found: Comparison, programs: Sequence[Mapping[str, float]], work: Work | None, reached: Ceiling | None
) -> tuple[KernelTiming, ...]:
    ceiling_rate = None if reached is None else reached.bytes_per_second
    timed = []
    for index, name in enumerate(found.names):
        summary = found.summaries[index] if found.summaries else None
        rates = None
        if summary is not None and work is not None:
            rates = Rates.of_kernel(work.bytes, work.flop, summary.median, ceiling_rate)
        timed.append(
            KernelTiming(
                name,
                Outcome.PASS,
                samples=found.samples[index],
                summary=summary,
                launches=found.launches[index],
                rates=rates,
                programs=programs[index],
                interval=found.intervals[index],
            )
        )
    return tuple(timed)


def _converted(given: Call, operation: Operation, kernels: Sequence[LoadedKernel]) -> tuple[str, ...]:
    """What was converted for a kernel, outside the time."""
    return tuple(
        f"{kernel.name}: {text}, outside the time"
        for kernel in kernels
        for text in calling.conversion(given, operation, kernel).texts
    )


def _say_how_far(progress: Progress) -> None:
    width = "" if progress.width is None else f", interval {progress.width:.1%} wide"
    phases.enter("time", f"{progress.blocks} blocks{width}")
