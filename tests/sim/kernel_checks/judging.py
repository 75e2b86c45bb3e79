"""Checks the cases of one kernel, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from gdnbench.ops import operation
from gdnbench.replay.failure import Failure
from gdnbench.replay.kernels import is_user_kernel
from gdnbench.replay.run import InProcess
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.sim import Accepted, Settings, Severity, active
from gdnbench.sim.errors import KernelFault
from gdnbench.sim.explore import Run, Shape, explore, fresh_seed
from gdnbench.store.reader import Store
from tests.kernels.proving import Proof, Prover, chosen
from tests.sim.kernel_checks.foreign import Calls
from tests.sim.kernel_checks.results import Case, read, write
from tests.sim.kernel_checks.subjects import SUBJECTS, Subject

CALLED = "small inputs"
"""The case of a kernel that takes no records."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How kernels are checked: `random` schedules of fresh seeds beside `schedules`, `cases` patterns."""

    schedules: tuple[str, ...]
    random: int
    quick: bool
    cases: tuple[str, ...]
    threads: int
    accepted: Accepted
    content: str

    def drawn(self) -> tuple[str, ...]:
        return (*self.schedules, *(f"random:{fresh_seed()}" for _ in range(self.random)))


@dataclass(frozen=True)
class Checker(Prover):
    """Proves under the checker, then runs once without it: the seconds of the latest record's runs, in
    `checked` and `plain`."""

    plain: list[float] = field(default_factory=list)
    checked: list[float] = field(default_factory=list)

    def _replayed(
        self, store: Store, number: int, schedule: str, run: Path
    ) -> tuple[RecordResult, dict[str, Tensor]]:
        found, left = Prover._replayed(self, store, number, schedule, run)
        self.checked.append(found.seconds)
        return found, left

    def record(self, store: Store, number: int) -> RecordResult:
        self.checked.clear()
        found = Prover.record(self, store, number)
        self.plain[:] = [self._seconds(store, number)] if found.outcome is Outcome.PASS else [0.0]
        return found

    def _seconds(self, store: Store, number: int) -> float:
        runner = InProcess(self.kernel, self.on, self.shown)
        with active(Settings(schedule=self.schedules[0], threads=self.threads)):
            ran = runner.run_record(store.records[number], operation(self.grid.op))
        return 0.0 if isinstance(ran, Failure) else ran.seconds


def check_all(name: str, path: Path, asked: Asked) -> None:
    """Append what is found in the cases of the kernel called `name` to the results at `path`, but for those
    that are there."""
    subject = SUBJECTS[name]
    done = frozenset(case.case for case in read(path, asked.content) if case.kernel == name)

    def told(case: Case) -> None:
        write(path, case)
        line = f"{case.verdict:11} {name}: {case.case} {case.reason}".rstrip()
        print(line, file=sys.stderr, flush=True)

    if subject.calls is None:
        _check_records(name, subject, asked, done, told)
    elif CALLED not in done and chosen(CALLED, asked.cases):
        told(_called(name, subject.calls, asked))


def _check_records(
    name: str, subject: Subject, asked: Asked, done: frozenset[str], told: Callable[[Case], None]
) -> None:
    assert subject.grid is not None
    checker = Checker(
        subject.grid,
        subject.kernel,
        SIM,
        asked.drawn(),
        stages=subject.stages,
        check=True,
        accepted=asked.accepted,
        skip=done,
        threads=asked.threads,
    )

    def proven(proof: Proof) -> None:
        case, verdict, record = proof
        if record.outcome is Outcome.UNSUPPORTED and verdict == "FAIL" and _may_refuse(subject):
            verdict = "unsupported"
        elif record.outcome is Outcome.MISMATCH and subject.package and not _fails(record):
            verdict = "numbers"
        told(
            Case(
                name,
                case,
                asked.content,
                verdict,
                record.reason,
                checker.schedules if verdict == "pass" else checker.schedules[:1],
                tuple(finding.as_json() for finding in record.findings or ()),
                checker.plain[0],
                min(checker.checked),
            )
        )

    checker.prove(asked.cases, asked.quick, proven)


def _fails(record: RecordResult) -> bool:
    return any(finding.fails for finding in record.findings or ())


def _may_refuse(subject: Subject) -> bool:
    """Other people's kernels may refuse any call, and a plan one that it has no room for."""
    return bool(subject.package) or is_user_kernel(subject.kernel)


def _called(name: str, calls: Calls, asked: Asked) -> Case:
    def run(schedule: str) -> Run:
        with active(Settings(schedule=schedule, threads=asked.threads, check=True)) as session:
            try:
                tensors = calls(schedule)
            except KernelFault:
                tensors = None  # the report has it
        found = [finding for report in session.reports for finding in report.findings]
        standing = [finding for finding in found if finding.severity is not Severity.NOTE]
        return Run(tensors, asked.accepted.apply(standing))

    schedules = asked.drawn()
    result = explore([Shape(CALLED, run, lambda schedule: f"{name} under {schedule}")], schedules)
    (tried,) = result.tried
    reasons = [one.finding.summary for one in result.found if one.finding.fails]
    if tried.difference is not None:
        reasons.append(str(tried.difference))
    findings = tuple(one.finding.as_json() for one in result.found)
    verdict = "FAIL" if reasons else "pass"
    return Case(name, CALLED, asked.content, verdict, "; ".join(reasons), schedules, findings)
