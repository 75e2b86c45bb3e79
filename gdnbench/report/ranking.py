# SPDX-License-Identifier: Apache-2.0
"""Ranks the records of runs for inspection: failures first, then those closest to their limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdnbench.errors import Exit
from gdnbench.report.outcome import Outcome
from gdnbench.report.runs import Run, as_replayed

_SEVERITY = {Exit.MISMATCH: 0, Exit.CANNOT_RUN: 1, Exit.BAD_INPUT: 2, Exit.PASS: 3}


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of one run. `ratio`: its largest error / limit, None without a limit; over 1 fails."""

    run: int
    record: Mapping[str, Any]
    ratio: float | None
    severity: int

    @property
    def failed(self) -> bool:
        """Whether the outcome is not a pass."""
        return self.severity < _SEVERITY[Exit.PASS]

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: failures first, then the records closest to failing."""
        ratio = -1.0 if self.ratio is None else math.inf if math.isnan(self.ratio) else self.ratio
        return (self.severity, -ratio, self.run, self.record["number"])


def severities() -> dict[str, int]:
    """By outcome: 0 for a kernel that is wrong, 1 for one that did not run, 2 for a record that was not
    judged, 3 for a pass."""
    return {str(outcome): _SEVERITY[outcome.exit_code] for outcome in Outcome}


def rank_records(runs: Sequence[Run]) -> list[Entry]:
    """The records of `runs` in that order. BadInputError for a run with invalid content."""
    return sorted(_entries(runs), key=lambda entry: entry.order)


def _entries(runs: Sequence[Run]) -> Iterator[Entry]:
    known = severities()
    for number, run in enumerate(runs):
        for record in run.records:
            with as_replayed(f"{run.path}: record {record.get('number', '?')}"):
                entry = Entry(number, record, _ratio(record), known[record["outcome"]])
            yield entry


def _ratio(record: Mapping[str, Any]) -> float | None:
    found = [
        float(held["error"]) / limit if (limit := float(held["limit"])) > 0 else math.inf
        for tensor in record["tensors"]
        if tensor["judged"]
        for held in tensor.get("held") or ()
        if float(held["limit"]) > 0 or float(held["error"]) > 0
    ]
    return max(found, key=lambda ratio: math.inf if math.isnan(ratio) else ratio, default=None)
