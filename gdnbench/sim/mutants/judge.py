# SPDX-License-Identifier: Apache-2.0
"""Judges mutants: whether the checker, different outputs, a fault or a hang detects a mutant, or nothing
does."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import FrameType

from gdnbench.sim.checker.cluster_uses import ClusterMember
from gdnbench.sim.checker.cta_detector import CtaRaceDetector
from gdnbench.sim.checker.findings import FindingGroup, Side
from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.checker.happens_before import Verdict
from gdnbench.sim.errors import FaultKind, KernelFault, SimError
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.observer import Addresses, Masks, Writer
from gdnbench.sim.mutants.launches import KeptLaunch
from gdnbench.sim.mutants.mutant import Kind, Mutant
from gdnbench.sim.ptx.ir import Instruction, Module, Register
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import run_ptx

# Random schedules also test failed polls of an mbarrier. With an odd seed many polls in a row fail, which
# detects a poll with the wrong parity.
SCHEDULES = ("late", "early", "random:4")
PEEKS = ("random:5",)
# A mutant that exceeds this multiple of the kernel's own accesses and machine instructions, plus a constant
# for small kernels, runs in an endless loop.
MANY, SOME = 10, 2_000

# Of a finding: verdict, cause, kind and place of both accesses, memory.
Cause = tuple[str, ...]


class Outcome(StrEnum):
    """What detects the mutant. `REVIEW`: a finding that the PTX ISA leaves open. `UNREACHED`: the launch
    never executes the instruction. `UNDECIDED`: the run took longer than the limit."""

    ERROR = "checker"
    REVIEW = "review"
    NUMBERS = "numbers"
    FAULT = "fault"
    HANG = "hang"
    SURVIVOR = "survivor"
    UNREACHED = "unreached"
    UNDECIDED = "undecided"


KILLED = (Outcome.ERROR, Outcome.REVIEW, Outcome.NUMBERS, Outcome.FAULT, Outcome.HANG)


class _EndlessError(Exception):
    """The run executed more than its budget."""


class _ErrorFoundError(Exception):
    """The checker has found an error that the kernel itself does not have; the rest of the run is not
    needed."""


class _OverTimeError(Exception):
    """The run exceeded its time limit."""


@dataclass(slots=True)
class _Executed:
    """The number of accesses and machine instructions of a launch, and their PTX lines."""

    budget: int | None = None
    count: int = 0
    lines: set[int] = field(default_factory=set)

    def add(self, ins: Instruction, count: int = 1) -> None:
        self.count += count
        self.lines.add(ins.place.line)
        if self.budget is not None and self.count > self.budget:
            raise _EndlessError


@dataclass(slots=True)
class _Watched:
    """The checker of one CTA, counting what is executed. If `known` is given, it ends the run at the first
    error that is not in it. Implements `machine.observer.Checker`."""

    checker: CtaRaceDetector | ClusterMember
    executed: _Executed
    known: Container[Cause] | None
    findings: int = 0

    def _found(self) -> None:
        by_cause = self.checker.findings.by_cause
        if self.known is not None and len(by_cause) > self.findings:
            new = list(by_cause.values())[self.findings :]
            self.findings = len(by_cause)
            if any(one.verdict is Verdict.ERROR and _cause(one) not in self.known for one in new):
                raise _ErrorFoundError

    def on_accesses(self, warp: Warp, ins: Instruction, masks: Masks, addresses: Addresses) -> None:
        self.executed.add(ins, len(masks))
        self.checker.on_accesses(warp, ins, masks, addresses)
        self._found()

    def on_warp_collective(self, warp: Warp, ins: Instruction, lanes: Lanes, live: Lanes) -> None:
        self.executed.add(ins)
        self.checker.on_warp_collective(warp, ins, lanes, live)
        self._found()

    def before_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
    ) -> None:
        self.executed.add(ins)
        self.checker.before_instruction(warp, ins, lanes, sources, previous)
        self._found()

    def after_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
        results: Results | Wait,
    ) -> None:
        self.checker.after_instruction(warp, ins, lanes, sources, previous, results)
        self._found()

    def on_submit(self, operation: AsyncOperation) -> None:
        self.checker.on_submit(operation)
        self._found()

    def before_landing(self, operation: AsyncOperation) -> None:
        self.checker.before_landing(operation)
        self._found()

    def on_register_use(
        self,
        warp: Warp,
        ins: Instruction,
        register: Register,
        writer: Writer | None,
        *,
        computed: bool = False,
    ) -> None:
        self.checker.on_register_use(warp, ins, register, writer, computed=computed)
        self._found()

    def on_warp_exit(self, warp: int) -> None:
        self.checker.on_warp_exit(warp)

    def on_hang(self) -> None:
        self.checker.on_hang()

    def on_cta_end(self) -> None:
        self.checker.on_cta_end()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a launch. `after` is the memory at its end, None if it did not finish. `found` counts pairs
    of instructions by cause, verdict and Python lines: a mutant moves some to other PTX lines."""

    after: tuple[bytes, ...] | None
    found: Counter[Cause]
    executed: _Executed
    fault: KernelFault | None = None
    endless: bool = False


def run_launch(
    launch: KeptLaunch,
    module: Module,
    engine: str,
    schedule: str,
    budget: int | None = None,
    known: Container[Cause] | None = None,
) -> Run:
    """Run the launch with the kernel of `module` and the checker, from the kept memory. If `known` is given,
    the run ends at the first error that is not in it."""
    request = launch.request
    checker = LaunchChecker(module.kernels[request.entry])
    executed = _Executed(budget)
    memory = launch.memory()
    fault, endless, stopped = None, False, True
    try:
        run_ptx(
            module,
            request.entry,
            request.grid,
            request.block,
            request.params,
            request.shared_bytes,
            engine=engine,
            schedule=schedule,
            memory=memory,
            threads=1,
            registers=request.registers,
            multiprocessors=launch.multiprocessors,
            cluster=request.cluster,
            preferred_cluster=request.preferred_cluster,
            checker=lambda cta: _Watched(checker.begin(cta), executed, known),
        )
        stopped = False
    except KernelFault as error:
        fault = error
    except _EndlessError:
        endless = True
    except _ErrorFoundError:
        pass
    after = None if stopped else launch.after(memory)
    found: Counter[Cause] = Counter()
    for one in checker.found():
        found[_cause(one)] += max(len(one.places), 1)
    return Run(after, found, executed, fault, endless)


def _cause(found: FindingGroup) -> Cause:
    cause = found.cause if isinstance(found.cause, str) else found.cause.value
    sides = (found.first, found.second)
    if found.verdict is Verdict.REVIEW:  # findings with equal opcodes count as one, at the first one's places
        told = tuple(side.does if side is not None else "" for side in sides)
    else:
        told = tuple(map(_side, sides))
    return (found.verdict.value, cause, *told, found.memory)


def _side(side: Side | None) -> str:
    if side is None:
        return ""
    place = side.place
    return f"{side.does} at {place.file}:{place.file_line}" if place.file else f"{side.does}: {place.text}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome, with `why`, one line on the finding, fault or difference, and the `schedule` that showed
    it."""

    outcome: Outcome
    why: str = ""
    schedule: str = ""


class Judge:
    """Compares mutants of one launch's kernel with the kernel itself, which must run without errors."""

    def __init__(
        self,
        launch: KeptLaunch,
        engine: str = "interpreter",
        schedules: Sequence[str] = SCHEDULES,
        seconds: float | None = None,
    ) -> None:
        self.launch = launch
        self.engine = engine
        self.seconds = seconds
        self.schedules = schedules
        every = dict.fromkeys((*schedules, *PEEKS))
        self.own = {schedule: run_launch(launch, launch.module, engine, schedule) for schedule in every}
        first = next(iter(self.own.values()))
        for schedule, own in self.own.items():
            if own.fault is not None:
                raise own.fault
            if own.after != first.after:
                raise ValueError(
                    f"{launch.request.entry}: under schedule {schedule} other bits than under another"
                )

    def judge(self, mutant: Mutant) -> Judgement:
        """The first outcome that detects `mutant`, or that nothing does."""
        if not any(mutant.place.line in own.executed.lines for own in self.own.values()):
            return Judgement(Outcome.UNREACHED)
        module = parse(mutant.ptx(self.launch.module.text))
        try:
            with _limit(self.seconds):
                schedules = self.own if mutant.kind is Kind.PARITY else self.schedules
                for schedule in schedules:
                    found = self._run(module, schedule, self.own[schedule])
                    if found is not None:
                        return found
        except _OverTimeError:
            return Judgement(Outcome.UNDECIDED, f"more than {self.seconds:g} s")
        return Judgement(Outcome.SURVIVOR)

    def _run(self, module: Module, schedule: str, own: Run) -> Judgement | None:
        budget = MANY * own.executed.count + SOME
        try:
            ran = run_launch(self.launch, module, self.engine, schedule, budget, own.found)
        except SimError as error:
            return Judgement(Outcome.FAULT, str(error).partition("\n")[0], schedule)
        new = sorted(ran.found - own.found)
        for cause in new:
            if cause[0] == Verdict.ERROR.value:
                return Judgement(Outcome.ERROR, _line(cause), schedule)
        if ran.fault is not None:
            hangs = ran.fault.kind in (FaultKind.DEADLOCK, FaultKind.LIMIT)
            why = str(ran.fault).partition("\n")[0]
            return Judgement(Outcome.HANG if hangs else Outcome.FAULT, why, schedule)
        if ran.endless:
            return Judgement(Outcome.HANG, f"more than {budget} accesses and machine instructions", schedule)
        if new:
            return Judgement(Outcome.REVIEW, _line(new[0]), schedule)
        if ran.after != own.after:
            return Judgement(Outcome.NUMBERS, self._differs(ran, own), schedule)
        return None

    def _differs(self, ran: Run, own: Run) -> str:
        assert ran.after is not None
        assert own.after is not None
        pairs = zip(self.launch.tensors, ran.after, own.after, strict=True)
        return "other bits in " + ", ".join(tensor.name for tensor, is_, was in pairs if is_ != was)


def _line(cause: Cause) -> str:
    _, what, first, second, memory = cause
    return f"{what} in {memory}: " + "; ".join(filter(None, (first, second)))


@contextmanager
def _limit(seconds: float | None) -> Iterator[None]:
    """Raises in the main thread once the process has used this many seconds of CPU time; time in which the
    process does not run does not count. Python drops what is raised inside a destructor or the callback of a
    weak reference: then it raises at the end of the `with` block."""
    if seconds is None:
        yield
        return
    rung = False

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal rung
        rung = True
        raise _OverTimeError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if rung:
        raise _OverTimeError
