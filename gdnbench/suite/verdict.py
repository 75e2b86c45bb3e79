# SPDX-License-Identifier: Apache-2.0
"""The suite's verdict on a replayed record: known failures excused, errors compared with the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase

from gdnbench.errors import Exit
from gdnbench.judge.result import Side
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.sim import group_findings
from gdnbench.suite.baseline import Baseline
from gdnbench.suite.plan import Entry, Known
from gdnbench.suite.ratchet import Change, Measured, acceptable_errors, better_errors, worse_errors
from gdnbench.suite.schema import WORSE


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a record; `tensor` is None if it concerns no single tensor."""

    outcome: str
    text: str
    tensor: str | None = None

    def known_by(self, known: Known) -> bool:
        if known.outcome is not None and known.outcome != self.outcome:
            return False
        return known.tensor is None or (self.tensor is not None and fnmatchcase(self.tensor, known.tensor))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A record's result with the suite's knowledge.

    - failures: unknown failures
    - excused: known failures, each with what excuses it
    - expired: known failures that no longer excuse
    - errors: errors that may be accepted, by tensor
    - worse, better: errors compared with the accepted ones
    - missing: tensors without an accepted error, if the suite has a baseline
    - skipped: it could not run here and is optional
    """

    record: RecordResult
    failures: tuple[Failure, ...] = ()
    excused: tuple[tuple[Failure, Known], ...] = ()
    expired: tuple[Known, ...] = ()
    errors: dict[str, Measured] = field(default_factory=dict)
    worse: tuple[Change, ...] = ()
    better: tuple[Change, ...] = ()
    missing: tuple[str, ...] = ()
    compared: int = 0
    skipped: bool = False

    @property
    def exit_code(self) -> Exit:
        if self.skipped or not self.failures:
            return Exit.PASS
        own = self.record.outcome.exit_code
        return Exit.MISMATCH if own is Exit.PASS else own

    @property
    def outcome(self) -> str:
        """The record's outcome, or one that only a suite has: skipped, worse than accepted, known failure."""
        if self.skipped:
            return "skipped"
        if self.failures and self.record.outcome is Outcome.PASS:
            return WORSE
        return "known failure" if self.excused and not self.failures else str(self.record.outcome)

    @property
    def reason(self) -> str:
        told = [failure.text for failure in self.failures] or [
            f"{failure.text} (known until {known.until}: {known.reason})" for failure, known in self.excused
        ]
        told += [f"known until {known.until}, which is over: {known.reason}" for known in self.expired]
        return "; ".join(told)


def judge_record(
    entry: Entry, record: RecordResult, known: Sequence[Known], baseline: Baseline | None, today: date
) -> Verdict:
    """The verdict on one record; `known` holds all known failures of the suite."""
    errors = acceptable_errors(entry, record)
    worst: list[Change] = []
    best: list[Change] = []
    missing = []
    for tensor, found in errors.items():
        if baseline is None:
            break
        accepted = baseline.find(*entry.key, record.key, tensor)
        if accepted is None:
            missing.append(tensor)
            continue
        steps = list(worse_errors(found, accepted, entry.options.factor, tensor))
        worst += steps
        best += () if steps else better_errors(found, accepted, entry.options.factor, tensor)
    failures = [*_failures(record), *(Failure(WORSE, f"{one.tensor}: {one}", one.tensor) for one in worst)]
    here = [one for one in known if one.is_of(entry.name, record)]
    left, excused, expired = [], [], dict[str, Known]()
    for failure in failures:
        by = [one for one in here if failure.known_by(one)]
        standing = [one for one in by if not one.expired(today)]
        if standing:
            excused.append((failure, standing[0]))
        else:
            left.append(failure)
            expired |= {one.where: one for one in by}
    cannot = record.outcome.exit_code is Exit.CANNOT_RUN
    return Verdict(
        record,
        tuple(left),
        tuple(excused),
        tuple(expired.values()),
        errors,
        tuple(worst),
        tuple(best),
        tuple(missing),
        compared=0 if baseline is None else len(errors) - len(missing),
        skipped=cannot and bool(left) and entry.options.optional,
    )


def _failures(record: RecordResult) -> Iterator[Failure]:
    """Every failure of a record, so that a known one does not hide another."""
    if record.outcome is Outcome.PASS:
        return
    outcome = str(record.outcome)
    told = 0
    for fault in record.faults:
        told += 1
        yield Failure(str(Outcome.MISMATCH), fault)
    for tensor in record.tensors:
        side = f"{tensor.side} " if tensor.side is not Side.KERNEL else ""
        for reason in tensor.reasons:
            told += 1
            yield Failure(str(Outcome.MISMATCH), f"{side}{tensor.tensor}: {reason}", tensor.tensor)
    for group in group_findings(finding for finding in record.findings or () if finding.fails):
        told += 1
        yield Failure(str(Outcome.CHECK), group.summary)
    if not told or record.outcome not in (Outcome.MISMATCH, Outcome.CHECK):
        yield Failure(outcome, record.reason)
