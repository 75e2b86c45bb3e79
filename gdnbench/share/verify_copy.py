# SPDX-License-Identifier: Apache-2.0
"""Verifies a copy: replays the same records from source and copy, and compares the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gdnbench.errors import CannotRunError
from gdnbench.judge.result import Side, TensorResult
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.store.reader import Store

_NEVER_RAN = (Outcome.UNSUPPORTED, Outcome.MISSING, Outcome.COMPILE_FAILURE)


@dataclass(frozen=True, slots=True)
class Shown:
    """One record replayed from source and copy. `lost`: what the copy does not show.

    `lost` is empty if the outcome and the failing tensors are the same.
    """

    source: RecordResult
    copy: RecordResult
    lost: str = ""

    @property
    def failing(self) -> list[tuple[TensorResult, TensorResult]]:
        """Tensors that fail in both."""
        of_copy = {(one.tensor, one.side): one for one in self.copy.tensors}
        return [
            (one, of_copy[one.tensor, one.side])
            for one in self.source.tensors
            if not one.passed and (one.tensor, one.side) in of_copy
        ]


def replay_both(source: Store, numbers: Sequence[int], copy: Store, options: dict[str, Any]) -> list[Shown]:
    """Replay records `numbers` of `source`, and all records of `copy`, which are the same in the same order.

    `options` are those of `replay`; raises what it raises, and CannotRunError if the kernel cannot run on a
    record.
    """
    ours = replay(source, records=list(numbers), **options).records
    for one in ours:
        if one.outcome in _NEVER_RAN:
            raise CannotRunError(f"nothing can be shown: record {one.label}: {one.outcome}: {one.reason}")
    theirs = replay(copy, **options).records
    return [Shown(one, other, _lost(one, other)) for one, other in zip(ours, theirs, strict=True)]


def _lost(source: RecordResult, copy: RecordResult) -> str:
    if copy.outcome is not source.outcome:
        return f"{source.outcome.value} in the source, {copy.outcome.value} in the copy"
    if source.outcome is Outcome.CRASH and _kind(source) != _kind(copy):
        return f"{_kind(source)} in the source, {_kind(copy)} in the copy"
    if source.outcome is not Outcome.MISMATCH:
        return ""
    ours, theirs = _failing(source), _failing(copy)
    if ours != theirs:
        return f"{_names(ours)} fail in the source, {_names(theirs)} in the copy"
    if bool(source.faults) != bool(copy.faults):
        return "what it writes and must not is seen in one of them alone"
    return ""


def _kind(crash: RecordResult) -> str:
    """The exception or signal without its message, which may contain sizes or addresses."""
    return crash.reason.partition(":")[0].partition(" (")[0]


def _failing(result: RecordResult) -> set[tuple[str, Side]]:
    return {(tensor.tensor, tensor.side) for tensor in result.tensors if not tensor.passed}


def _names(failing: set[tuple[str, Side]]) -> str:
    return ", ".join(sorted(name for name, _ in failing)) or "no tensor"


def same_elements(source: Store, numbers: Sequence[int], copy: Store) -> str:
    """The first tensor of the copy whose digest differs from the source's; "" if there is none."""
    for at, number in enumerate(numbers):
        ours, theirs = source.records[number], copy.records[at]
        for when in ("before", "after"):
            a, b = getattr(ours, when), getattr(theirs, when)
            for name in {**a, **b}:
                if name not in a or name not in b or a[name].digest != b[name].digest:
                    return f"record {number}: {name} {when} the call"
    return ""
