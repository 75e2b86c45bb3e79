# SPDX-License-Identifier: Apache-2.0
"""The symptom of a bisection: which kind of failure counts as bad, so that no other ends it.

- `numbers`: bad if a tensor of the kernel fails, or the named one. What the checker found, faults after which
  the launch went on, and forbidden writes do not count. A crash or a hang is skipped.
- `race`: bad if the checker found an error that is not known. A crash or a hang without one is skipped; wrong
  numbers do not count.
- `crash`: bad if the kernel crashes or hangs. Wrong numbers do not count.

A kernel that does not build, compile or import is skipped, as without a symptom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from gdnbench.bisect.verdict import State
from gdnbench.errors import BadInputError
from gdnbench.judge.result import Side
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.sim import Accepted, Finding, group_findings, known_findings

ENDED = (Outcome.CRASH, Outcome.HANG)


class Symptom(StrEnum):
    NUMBERS = "numbers"
    RACE = "race"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Observed:
    """What a replay of one record left to judge. `failing`: why, by each tensor of the kernel that was
    compared; empty if it passes. `findings`: those of the checker."""

    outcome: Outcome
    reason: str
    imported: bool
    failing: Mapping[str, str]
    findings: tuple[Finding, ...] = ()

    @classmethod
    def of_result(cls, result: RecordResult) -> Observed:
        failing = {
            tensor.tensor: f"{tensor.tensor}: {tensor.reasons[0]}" if tensor.reasons else ""
            for tensor in result.tensors
            if tensor.side is Side.KERNEL
        }
        return cls(result.outcome, result.reason, result.imported, failing, result.findings or ())


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one record, see `Verdict`."""

    state: State
    kind: str
    reason: str


def judge_symptom(observed: Observed, symptom: Symptom, tensor: str | None = None, known: str = "") -> Judged:
    """Judges one record by `symptom`. `known` is the text of a baseline. BadInputError if there is no
    `tensor` of that name among those that were compared."""
    outcome = observed.outcome
    what = "faults do" if symptom is Symptom.NUMBERS and outcome is Outcome.MISMATCH else f"{outcome} does"
    kind = str(outcome) if outcome is Outcome.PASS else f"{what} not count"
    as_it_is = Judged(State.GOOD, kind, observed.reason)
    skipped = Judged(State.SKIP, str(outcome), observed.reason)
    if not observed.imported or outcome not in (Outcome.PASS, Outcome.MISMATCH, Outcome.CHECK, *ENDED):
        return skipped
    if symptom is Symptom.CRASH:
        return Judged(State.BAD, str(outcome), observed.reason) if outcome in ENDED else as_it_is
    if symptom is Symptom.RACE:
        new = group_findings(unknown_errors(observed.findings, known))
        if new:
            more = f" and {len(new) - 1} more" if len(new) > 1 else ""
            return Judged(State.BAD, str(Outcome.CHECK), f"{new[0].summary}{more}")
        return skipped if outcome in ENDED else as_it_is
    if outcome in ENDED or not observed.failing:
        return skipped
    if tensor is not None and tensor not in observed.failing:
        raise BadInputError(
            f"--tensor {tensor}: the kernel has no such output or stage; it has {', '.join(observed.failing)}"
        )
    reasons = [why for name, why in observed.failing.items() if why and tensor in (None, name)]
    return Judged(State.BAD, str(Outcome.MISMATCH), reasons[0]) if reasons else as_it_is


def unknown_errors(findings: Iterable[Finding], known: str) -> list[Finding]:
    """The errors among the findings of one call that the baseline of this text does not have."""
    return [finding for finding in _baseline(known).apply(findings) if finding.fails]


@lru_cache(maxsize=2)
def _baseline(known: str) -> Accepted:
    """The baseline of this text, which every record of a trial is compared with."""
    return Accepted.parse(known, "of this trial", "the baseline")


def count_known(observed: Iterable[Observed], known: str) -> dict[str, int]:
    """What a baseline of the findings of these calls would hold, beyond `known`: see `known_findings`."""
    found: Counter[str] = Counter()
    for one in observed:
        found |= known_findings(unknown_errors(one.findings, known))
    return dict(found)
