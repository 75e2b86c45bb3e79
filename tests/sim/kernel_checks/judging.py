# SPDX-License-Identifier: Apache-2.0
"""Checks the cases of one kernel, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from gdnbench.ops import operation
from gdnbench.replay.failure import Failure
from gdnbench.replay.kernels import is_user_kernel
from gdnbench.replay.run import InProcess
from gdnbench.replay.simulated import SIM, replay_gpu
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.sim import Accepted, Settings, Severity, active
from gdnbench.sim.errors import KernelFault
from gdnbench.sim.explore import Run, Shape, explore, fresh_seed
from gdnbench.store.reader import Store
from tests.kernels.proving import Proof, Prover, chosen
from tests.sim.kernel_checks.foreign import Calls
from tests.sim.kernel_checks.results import Case, digest_of, read, write
from tests.sim.kernel_checks.subjects import SUBJECTS, Subject

CALLED = "small inputs"
"""The case of a kernel that takes no records."""
NO_SECOND_TILE = "no CTA took a second tile"
"""How the simulator's note begins that says so."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How kernels are checked: `random` schedules of fresh seeds beside `schedules`, `cases` patterns, on a
    GPU of `sms` SMs, None for its own number."""

    schedules: tuple[str, ...]
    random: int
    quick: bool
    cases: tuple[str, ...]
    threads: int
    accepted: Accepted
    content: str
    sms: int | None = None

    def drawn(self) -> tuple[str, ...]:
        return (*self.schedules, *(f"random:{fresh_seed()}" for _ in range(self.random)))


@dataclass(frozen=True)
class Checker(Prover):
    """Proves under the checker, then runs once without it: the seconds of the latest record's runs, in
    `checked` and `plain`, and the digests of their outputs."""

    plain: list[float] = field(default_factory=list)
    checked: list[float] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def _replayed(
        self, store: Store, number: int, schedule: str, run: Path
    ) -> tuple[RecordResult, dict[str, Tensor]]:
        found, left = Prover._replayed(self, store, number, schedule, run)
        self.checked.append(found.seconds)
        self.digests.append(digest_of(left))
        self.notes.extend(found.notes)
        return found, left

    def record(self, store: Store, number: int) -> RecordResult:
        self.checked.clear()
        self.digests.clear()
        self.notes.clear()
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
    done = frozenset(
        case.case for case in read(path, asked.content) if case.kernel == name and case.sms == asked.sms
    )

    def told(case: Case) -> None:
        write(path, case)
        gpu = "" if case.sms is None else f" on {case.sms} SMs"
        line = f"{case.verdict:11} {name}{gpu}: {case.case} {case.reason}".rstrip()
        print(line, file=sys.stderr, flush=True)

    with replay_gpu(sms=asked.sms):
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
                asked.sms,
                checker.digests[0],
                any(note.startswith(NO_SECOND_TILE) for note in checker.notes),
            )
        )

    checker.prove(asked.cases, asked.quick, proven)


def _fails(record: RecordResult) -> bool:
    return any(finding.fails for finding in record.findings or ())


def _may_refuse(subject: Subject) -> bool:
    """Other people's kernels may refuse any call, and a plan one that it has no room for."""
    return bool(subject.package) or is_user_kernel(subject.kernel)


def _called(name: str, calls: Calls, asked: Asked) -> Case:
    digests: list[str] = []
    notes: list[str] = []

    def run(schedule: str) -> Run:
        settings = Settings(schedule=schedule, threads=asked.threads, check=True)
        with active(settings, sms=asked.sms) as session:
            try:
                tensors = calls(schedule)
            except KernelFault:
                tensors = None  # the report has it
        if tensors is not None and not digests:
            digests.append(digest_of(tensors))
        found = [finding for report in session.reports for finding in report.findings]
        notes.extend(finding.message for finding in found if finding.severity is Severity.NOTE)
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
    case = Case(name, CALLED, asked.content, verdict, "; ".join(reasons), schedules, findings)
    one_tile = any(note.startswith(NO_SECOND_TILE) for note in notes)
    return replace(case, sms=asked.sms, bits="".join(digests), one_tile=one_tile)
