# SPDX-License-Identifier: Apache-2.0
"""The result of `gdnbench prove`: a check for each record, law and repetition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gdnbench.errors import Exit
from gdnbench.judge.result import Side
from gdnbench.report.outcome import Outcome, worst_exit_code
from gdnbench.report.repeats import but_for_numbers, groups_by
from gdnbench.report.report import RecordResult


class Section(StrEnum):
    CAPTURES = "captures"
    MADE = "made"
    LAWS = "laws"
    REPEAT = "repeat"


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `name`: the capture, or the law; `subject`: the record, and how a law's call differs.
    `runs`: how often the kernel was called. `ratio`: the largest error / limit.
    `seconds`: of the kernel and of whatever judges it."""

    section: Section
    name: str
    subject: str
    outcome: Outcome
    reasons: tuple[str, ...] = ()
    ratio: float | None = None
    runs: int = 1
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASS


@dataclass(frozen=True, slots=True)
class Row:
    """The checks of one section and name, in numbers. `unsupported`: calls that the kernel refused."""

    section: Section
    name: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> int:
        return sum(check.passed for check in self.checks)

    @property
    def unsupported(self) -> int:
        return sum(check.outcome is Outcome.UNSUPPORTED for check in self.checks)

    @property
    def failed(self) -> int:
        return len(self.checks) - self.passed - self.unsupported

    @property
    def ratio(self) -> float | None:
        return max((check.ratio for check in self.checks if check.ratio is not None), default=None)

    @property
    def seconds(self) -> float:
        return sum(check.seconds for check in self.checks)


@dataclass(frozen=True, slots=True)
class Proof:
    """What `prove` found so far. `left_out`: records and laws that were not run, in words, with the option
    that runs them; `notes`: else what a reader of the table must know."""

    kernel: str
    op: str
    on: str
    seed: int
    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def rows(self) -> tuple[Row, ...]:
        found: dict[tuple[Section, str], list[Check]] = {}
        for check in self.checks:
            found.setdefault((check.section, check.name), []).append(check)
        return tuple(Row(*key, tuple(checks)) for key, checks in found.items())

    @property
    def failing(self) -> tuple[Check, ...]:
        return tuple(
            check for check in self.checks if check.outcome not in (Outcome.PASS, Outcome.UNSUPPORTED)
        )

    @property
    def failing_alike(self) -> list[list[Check]]:
        """Failing checks; in one group those in which the kernel raised the same, or ended, but for
        numbers."""

        def key(check: Check) -> object:
            if check.outcome in (Outcome.MISMATCH, Outcome.CHECK):
                return id(check)
            return check.outcome, tuple(map(but_for_numbers, check.reasons))

        return groups_by(self.failing, key)

    @property
    def runs(self) -> int:
        return sum(check.runs for check in self.checks)

    @property
    def exit_code(self) -> Exit:
        """The worst of the checks. A call that the kernel refuses is no failure unless it refuses all."""
        if not any(check.passed for check in self.checks) and not self.failing:
            return Exit.CANNOT_RUN
        return worst_exit_code(check.outcome.exit_code for check in self.failing)


def check_of_record(section: Section, name: str, record: RecordResult) -> Check:
    """A replayed record as a check."""
    reasons = [*record.faults, *_reasons(record)] or ([record.reason] if record.reason else [])
    held = [limit.ratio for tensor in record.tensors if tensor.judged for limit in tensor.held]
    subject = record.label if section is Section.CAPTURES else f"{record.number} {record.layer}"
    return Check(
        section,
        name,
        subject,
        record.outcome,
        tuple(reasons),
        max(held, default=None),
    )


def _reasons(record: RecordResult) -> Iterable[str]:
    for tensor in record.tensors:
        for reason in tensor.reasons:
            side = "" if tensor.side is Side.KERNEL else f"{tensor.side} "
            yield f"{side}{tensor.tensor}: {reason}"
