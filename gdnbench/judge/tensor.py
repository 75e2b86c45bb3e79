# SPDX-License-Identifier: Apache-2.0
"""Decides when a tensor passes.

A tensor passes when its error against the fp64 oracle keeps to the limits of `gdnbench.judge.limits`: k times
the error of the same-dtype torch kernel on the same record, plus the error of rounding the exact result.

Rules for non-finite elements; "overflows" means finite in fp64 but not once rounded to the dtype:

| oracle            | the kernel's element must be                                              |
|-------------------|---------------------------------------------------------------------------|
| NaN               | NaN or infinite, since no finite value is right                            |
| +Inf, -Inf        | the same infinity, or non-finite exactly as torch's is                     |
| overflows         | the infinity of its sign, or finite, infinite or NaN exactly as torch's is |
| finite, torch too | finite                                                                     |
| finite, torch not | anything: excluded and counted                                             |

Only elements finite in all three enter the errors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gdnbench.judge import quick_check
from gdnbench.judge.block_stats import Peak, Tolerance
from gdnbench.judge.grid import Grid, grid_of
from gdnbench.judge.limits import (
    GAIN,
    HEAD_GAIN,
    LARGEST,
    OF_HEAD,
    RMS,
    Limits,
    Lines,
    exact_lines,
    first_wrong_chunk,
    lines_of,
)
from gdnbench.judge.location import locate
from gdnbench.judge.metrics import Comparison, Worst, compare
from gdnbench.judge.result import LimitCheck, Side, TensorResult, worst_groups
from gdnbench.judge.row_source import Memory, RowSource
from gdnbench.judge.rule import Bitwise, Bound
from gdnbench.judge.yardstick import Yardstick, measure_yardstick
from gdnbench.record import When
from gdnbench_kernels.contract import Partition
from gdnbench_kernels.validate import dtype_name


@dataclass(frozen=True, slots=True)
class Subject:
    """A tensor to be judged: its name, the owners of its rows, and the meaning of its axes.

    `rows`: the caller's row numbers, if they are not the positions (slots of a pool). `grid`: whether the
    result includes the errors by chunk and head. `cut_operands`, `line_factors`: see
    the operation's.
    """

    name: str
    when: When
    partition: Partition
    axes: tuple[str, ...]
    side: Side = Side.KERNEL
    rows: tuple[int, ...] | None = None
    grid: bool = False
    cut_operands: int = 0
    line_factors: int = 0

    def named(self, worst: Worst) -> Worst:
        """`worst` with the caller's row number."""
        if self.rows is None:
            return worst
        index = (self.rows[worst.at.index[0]], *worst.at.index[1:])
        return replace(worst, at=replace(worst.at, index=index))

    def grid_of(
        self,
        x: RowSource,
        y: RowSource,
        own: Comparison,
        torchs: Comparison | None = None,
        of_limit: np.ndarray | None = None,
    ) -> Grid | None:
        """The errors by chunk and head of `x` against `y`, whose comparison is `own`; None unless `grid` is
        set. `of_limit`: error / limit by region and head."""
        if not self.grid:
            return None
        return grid_of(x, y, own, torchs, self.partition, self.axes, self.rows, of_limit)

    def compare(self, x: RowSource, y: RowSource, tolerance: Tolerance | None = None) -> Comparison:
        """Compare `x` with `y`; coordinates in the result are the caller's."""
        found = compare(x, y, self.partition, self.axes, tolerance)
        if self.rows is None:
            return found
        first = found.nonfinite.first
        return replace(
            found,
            worst=found.worst and self.named(found.worst),
            nonfinite=replace(found.nonfinite, first=first and self.named(first)),
        )


def judge(
    subject: Subject,
    tensor: Tensor,
    oracle: Tensor,
    yardstick: Tensor,
    bound: Bound | None,
    added: float = 0.0,
    *,
    by_line: bool = True,
    known: Yardstick | None = None,
) -> TensorResult:
    """Judge `tensor` by `bound`: its error against `oracle` (fp64) compared with that of `yardstick` (torch's
    kernel), see `gdnbench.judge.limits`.

    All three are on the CPU; `tensor` must have the contract's shape and dtype. `yardstick` has them too, or
    is in fp64 if it was moved with `oracle`.
    Without a bound the errors are only measured, and only the rules for non-finite elements apply. `added`:
    an allowed error relative to the exact value, in addition to the dtype's rounding. `by_line` False: lines
    and gains are not judged, as of stages, whose rows may be parts of chunks. `known`: the result of
    `yardstick_of`, to compute it once for several kernels.
    """
    if (unmatched := shape_mismatch(subject, Memory(tensor), Memory(yardstick))) is not None:
        return unmatched
    by = known
    if by is None:
        by = yardstick_of(subject, oracle, yardstick, tensor.dtype, by_line=by_line)
    screened = _screen(subject, tensor, oracle, yardstick, by)
    own = subject.compare(Memory(screened.tensor), Memory(by.oracle))
    found = measured_result(subject, Memory(tensor), own, screened.reasons)
    ratios = None
    if bound is not None:
        lines = None
        if by.lines is not None:
            lines = lines_of(screened.tensor, by.oracle, subject.partition, by.lines)
        limits = _limits(subject, tensor, bound, by.largest, added, lines)
        ratios = limits.by_chunk(own, by.errors)
        found = _held_to(found, own, by.errors, limits, ratios)
    return replace(
        found,
        yardstick=by.errors.total,
        excluded=screened.excluded,
        worst=screened.wrong or own.worst,
        grid=subject.grid_of(Memory(tensor), Memory(oracle), own, by.errors, ratios),
    )


def _limits(
    subject: Subject, tensor: Tensor, bound: Bound, largest: float, added: float, lines: Lines | None
) -> Limits:
    k, cut, factors = bound.factor(subject.name), subject.cut_operands, subject.line_factors
    return Limits(tensor.dtype, k, largest, added, lines, cut, factors)


def yardstick_of(
    subject: Subject, oracle: Tensor, torchs: Tensor, dtype: torch.dtype, *, by_line: bool = True
) -> Yardstick:
    """What results of `dtype` are judged by; `oracle` and `torchs` are on the CPU."""
    return measure_yardstick(oracle, torchs, subject.partition, subject.axes, dtype, by_line=by_line)


def _held_to(
    found: TensorResult, own: Comparison, torchs: Comparison, limits: Limits, ratios: np.ndarray
) -> TensorResult:
    """`found` with the limits and a reason for each that is exceeded, minor ones left out. `ratios`: error /
    limit by region and head."""
    findings = limits.findings(own, torchs)
    over = {one.check.what for one in findings if one.check.over}
    reasons = tuple(
        one.words
        for one in findings
        if one.check.over
        and not (one.minor and over & {RMS, OF_HEAD})
        and not (one.check.what == HEAD_GAIN and GAIN in over)
    )
    checks = tuple(one.check for one in findings)
    worst = next((check for check in checks if check.over and check.head is not None), None)
    if worst is not None and reasons:
        last = first_wrong_chunk(own.groups, ratios, worst.sequence, worst.head)
        reasons = tuple(words + last * (words.startswith("RMS error of")) for words in reasons)
    return replace(
        found,
        reasons=found.reasons + reasons,
        held=checks,
        groups=worst_groups(own, ratios),
    )


def judge_briefly(
    subject: Subject, tensor: Tensor, oracle: Tensor, yardstick: Tensor, torchs: Comparison, bound: Bound
) -> TensorResult | None:
    """As `judge`, on the device where all tensors lie, without ULP distances and the count of unequal
    elements.

    `torchs` is `quick_check.quick_errors` of `yardstick`. None if only `judge` can decide.
    """
    if shape_mismatch(subject, Memory(tensor), Memory(oracle)) is not None:
        return None
    if quick_check.has_overflow(oracle, tensor.dtype):
        return None
    own = quick_check.quick_errors(tensor, oracle, subject.partition, subject.axes)
    if own is None:
        return None
    largest = quick_check.largest_magnitude(oracle, subject.partition)
    named = replace(own, worst=own.worst and subject.named(own.worst))
    exact = exact_lines(yardstick, oracle, subject.partition, tensor.dtype)
    lines = lines_of(tensor, oracle, subject.partition, exact)
    limits = _limits(subject, tensor, bound, largest, 0.0, lines)
    ratios = limits.by_chunk(named, torchs)
    found = _held_to(measured_result(subject, Memory(tensor), named, ()), named, torchs, limits, ratios)
    return replace(found, yardstick=torchs.total)


def judge_against_target(
    subject: Subject, tensor: RowSource, target: RowSource, rule: Bitwise | Tolerance
) -> TensorResult:
    """Compare `tensor` with `target` itself, bitwise or within a tolerance."""
    if (unmatched := shape_mismatch(subject, tensor, target)) is not None:
        return unmatched
    if isinstance(rule, Bitwise):
        comparison = subject.compare(tensor, target)
        found = measured_result(subject, tensor, comparison, _unequal_bits(comparison))
        found, ratios = replace(found, bitwise=True), None
    else:
        comparison = subject.compare(tensor, target, rule)
        found = measured_result(subject, tensor, comparison, _beyond(comparison, rule))
        found, ratios = replace(found, held=_limit_of(found, rule)), _of_tolerance(comparison, rule)
    return replace(found, grid=subject.grid_of(tensor, target, comparison, of_limit=ratios))


def _of_tolerance(comparison: Comparison, rule: Tolerance) -> np.ndarray | None:
    """The largest |x - y| - REL |y| of each region and head, over ABS; None without ABS."""
    if not rule.abs > 0:
        return None
    ratios = np.maximum(comparison.groups.peaks[Peak.SCORE], 0.0) / rule.abs
    return np.where(comparison.groups.nonfinite() > 0, np.inf, ratios)


def _limit_of(found: TensorResult, rule: Tolerance) -> tuple[LimitCheck, ...]:
    """The tolerance of the element that comes closest to it or exceeds it most."""
    worst = found.worst
    if worst is None:
        return ()
    error, limit, at = abs(worst.x - worst.y), rule.abs + rule.rel * abs(worst.y), worst.at
    return (LimitCheck(LARGEST, error, limit, at.sequence, at.chunk, at.head),)


def show_difference(subject: Subject, tensor: RowSource, target: RowSource) -> TensorResult:
    """The difference of two tensors, which affects the outcome only if they cannot be compared."""
    if (unmatched := shape_mismatch(subject, tensor, target)) is not None:
        return unmatched
    comparison = subject.compare(tensor, target)
    grid = subject.grid_of(tensor, target, comparison)
    return replace(measured_result(subject, tensor, comparison, ()), judged=False, grid=grid)


def shape_mismatch(subject: Subject, tensor: RowSource, target: RowSource) -> TensorResult | None:
    """A failing result if shape or dtype differ (an fp64 oracle matches any dtype), or if rows or axes of the
    call are missing; else None."""
    rows = max((region.stop for region in subject.partition.regions), default=0)
    if tensor.shape != target.shape:
        reason = f"shape {list(tensor.shape)} against {list(target.shape)}"
    elif tensor.shape[0] < rows or (subject.partition.head_axis or 0) >= len(tensor.shape):
        reason = f"shape {list(tensor.shape)}; the call has {rows} rows, and axes [{', '.join(subject.axes)}]"
    elif tensor.dtype != target.dtype and target.dtype != torch.float64:
        reason = f"dtype {dtype_name(tensor.dtype)} against {dtype_name(target.dtype)}"
    else:
        return None
    return TensorResult(
        subject.name, subject.when, subject.side, dtype_name(tensor.dtype), tensor.shape, reasons=(reason,)
    )


def missing_tensor(name: str, when: When, side: Side, reason: str) -> TensorResult:
    """A result for a tensor that one side lacks."""
    return TensorResult(name, when, side, dtype="", shape=(), reasons=(reason,))


def measured_result(
    subject: Subject, tensor: RowSource, comparison: Comparison, reasons: tuple[str, ...]
) -> TensorResult:
    """The result of a comparison of `tensor`, which fails for these reasons."""
    return TensorResult(
        subject.name,
        subject.when,
        subject.side,
        dtype_name(tensor.dtype),
        tensor.shape,
        reasons=reasons,
        elements=comparison.elements,
        unequal=comparison.unequal,
        errors=comparison.total,
        nonfinite=comparison.nonfinite,
        ulp_histogram=comparison.ulp_histogram,
        worst=comparison.worst or comparison.nonfinite.first,
        groups=worst_groups(comparison),
    )


def _unequal_bits(comparison: Comparison) -> tuple[str, ...]:
    reasons = _unequal_kinds(comparison)
    if comparison.unequal > comparison.nonfinite.unequal:
        count = f"{comparison.unequal} of {comparison.elements} elements"
        reasons += (f"{count} differ in their bits; worst {comparison.worst}",)
    return reasons


def _beyond(comparison: Comparison, tolerance: Tolerance) -> tuple[str, ...]:
    reasons = _unequal_kinds(comparison)
    if comparison.violations:
        count = f"{comparison.violations} of {comparison.elements} elements"
        limit = f"{tolerance.abs:g}" + (f" + {tolerance.rel:g} |y|" if tolerance.rel else "")
        reasons += (f"{count} differ by more than {limit}; worst {comparison.worst}",)
    return reasons


def _unequal_kinds(comparison: Comparison) -> tuple[str, ...]:
    wrong = comparison.nonfinite
    if not wrong.unequal:
        return ()
    count = f"{wrong.unequal} of {comparison.elements} elements"
    return (f"{count} are NaN or infinite on one side only; first {wrong.first}",)


@dataclass(frozen=True, slots=True)
class _Screened:
    """A tensor with NaN where an element must not enter the errors."""

    tensor: Tensor
    reasons: tuple[str, ...] = ()
    wrong: Worst | None = None
    excluded: int = 0


def _screen(subject: Subject, tensor: Tensor, oracle: Tensor, yardstick: Tensor, by: Yardstick) -> _Screened:
    """Apply the table of non-finite elements in the module's docstring."""
    x = tensor.double()
    if bool((by.usable & torch.isfinite(x)).all()):
        return _Screened(tensor)
    t, rounded, rows = yardstick.double(), by.rounded, by.counts
    kind_x, kind_y, kind_t = _kind(x), _kind(rounded), _kind(t)
    overflows = torch.isfinite(oracle) & ~torch.isfinite(rounded)
    as_torch = (kind_x == kind_t) & (overflows | (kind_t != 0))
    right = torch.where(
        torch.isnan(rounded),
        kind_x != 0,
        torch.where(torch.isinf(rounded), (kind_x == kind_y) | as_torch, (kind_x == 0) | (kind_t != 0)),
    )
    wrong = ~right & rows
    excluded = int((torch.isfinite(rounded) & ~torch.isfinite(t) & rows).sum())
    reasons: tuple[str, ...] = ()
    worst = None
    if bool(wrong.any()):
        index = tuple(int(i) for i in torch.nonzero(wrong)[0])
        at = locate(index, subject.partition, subject.axes)
        worst = subject.named(Worst(at, float(x[index]), float(oracle[index]), None))
        count = int(wrong.sum())
        reasons = (
            f"{count} of {rows.expand_as(wrong).sum()} elements are NaN or infinite where they must"
            f" not be, or finite where they cannot be; first {worst}",
        )
    counted = tensor.where(by.usable, torch.nan) if tensor.is_floating_point() else tensor
    return _Screened(counted, reasons, worst, excluded)


def _kind(values: Tensor) -> Tensor:
    """0 finite, 1 NaN, 2 +Inf, 3 -Inf; uint8."""
    kind = torch.isnan(values).to(torch.uint8)
    infinite = torch.isinf(values)
    return kind + 2 * (infinite & (values > 0)) + 3 * (infinite & (values < 0))
