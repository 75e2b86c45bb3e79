# SPDX-License-Identifier: Apache-2.0
"""Compares a run's errors with the accepted ones: which are worse by more than a factor, and which are
better.

An error is worse if it exceeds both `factor` times the accepted error and the error of rounding the exact
result (as in `gdnbench.judge.tensor`: u rms(y) + s / 2, for one element u |y| + s / 2), so that an accepted
error near zero does not demand less than a rounding. Better is defined the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from gdnbench.bits import logical
from gdnbench.judge.limits import unit_roundoff
from gdnbench.judge.record import ORACLE
from gdnbench.judge.result import Side, TensorResult
from gdnbench.report.report import RecordResult
from gdnbench.suite.plan import Entry

METRICS = ("rms", "max_abs")


@dataclass(frozen=True, slots=True)
class Measured:
    """The errors of one tensor against the oracle, and the part that rounding alone may explain."""

    rms: float
    max_abs: float
    rms_floor: float = 0.0
    max_abs_floor: float = 0.0

    def error_and_floor(self, metric: str) -> tuple[float, float]:
        """(error, floor)."""
        return getattr(self, metric), getattr(self, f"{metric}_floor")


@dataclass(frozen=True, slots=True)
class Change:
    """An error now, and as accepted."""

    tensor: str
    metric: str
    accepted: float
    now: float
    factor: float

    def __str__(self) -> str:
        name = {"rms": "RMS error", "max_abs": "largest error"}[self.metric]
        times = f"{self.now / self.accepted:.3g} x" if self.accepted > 0 else "over"
        return f"{name} {self.now:.3g} is {times} the accepted {self.accepted:.3g}; factor {self.factor:g}"


def acceptable_errors(entry: Entry, record: RecordResult) -> dict[str, Measured]:
    """Errors that may be accepted, by tensor: finite ones of tensors that were judged against the oracle and
    passed."""
    found = {}
    for tensor in record.tensors:
        errors = tensor.errors
        if errors is None or not tensor.passed or not _against_oracle(entry, record.op, tensor):
            continue
        if isfinite(errors.rms) and isfinite(errors.max_abs):
            unit, tiny = unit_roundoff(logical(tensor.dtype).torch_dtype)
            peak = abs(tensor.worst.y) if tensor.worst is not None and isfinite(tensor.worst.y) else 0.0
            floors = unit * errors.rms_reference + tiny, unit * peak + tiny
            found[baseline_name(tensor)] = Measured(errors.rms, errors.max_abs, *floors)
    return found


def baseline_name(tensor: TensorResult) -> str:
    """The tensor's name in a baseline; a stage and an output may have the same name."""
    return f"{tensor.tensor} (stage)" if tensor.stage else tensor.tensor


def _against_oracle(entry: Entry, op: str, tensor: TensorResult) -> bool:
    """Whether the errors are relative to the fp64 oracle, not to a rounded oracle or another kernel."""
    rule = entry.options.rule_of(op, tensor.tensor)
    other = rule.tol is not None and entry.options.against != ORACLE
    return tensor.judged and tensor.side is Side.KERNEL and not rule.bitwise and not other


def worse_errors(now: Measured, accepted: Mapping[str, Any], factor: float, tensor: str) -> Iterator[Change]:
    for metric in METRICS:
        error, floor = now.error_and_floor(metric)
        if not error <= max(factor * accepted[metric], floor):
            yield Change(tensor, metric, accepted[metric], error, factor)


def better_errors(now: Measured, accepted: Mapping[str, Any], factor: float, tensor: str) -> Iterator[Change]:
    for metric in METRICS:
        error, floor = now.error_and_floor(metric)
        if accepted[metric] > max(factor * error, floor):
            yield Change(tensor, metric, accepted[metric], error, factor)
