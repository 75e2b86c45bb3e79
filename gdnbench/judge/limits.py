# SPDX-License-Identifier: Apache-2.0
"""The limits of a bound: how large the error of a tensor, of its parts and of its gain may be.

With T torch's error, R the error of rounding the exact result y, u the unit roundoff of the dtype, and k the
factor of the bound (2):

| limit                       | of                                     | value                               |
|-----------------------------|----------------------------------------|-------------------------------------|
| RMS                         | the tensor                             | k T + F                             |
| RMS of a sequence and head  | each (sequence, head)                  | k T_even + F                        |
| RMS of a line               | each token of a head, row of a state   | k z T_near + F                      |
| gain of a sequence and head | <x - y, y> / <y, y> of each            | k abs(b_T) + abs(b_R) + z s_f + C   |
| gain of a head              | the same over all sequences            | the same                            |
| largest                     | abs(x - y)                             | k g max T + u max abs(y)            |
|                             | of a row of a state, if that is larger | k z T_near + u max abs(y)           |

Each has in addition the smallest normal number of fp32 or bf16, since `.ftz` instructions flush what is
smaller (PTX ISA, "Rounding modifiers" and "Subnormal numbers"); half the smallest subnormal of other dtypes.

F, the floor. A kernel need not be better than a correctly rounded result, whose error R is computed, element
by element. A right kernel may round somewhere else, though, and draws other errors. One rounding error that
is uniform in [-u, u], as within one binade, has the mean square u^2 / 3; over n lines, each with an error of
its own, the mean has the relative standard deviation sqrt(4/45) / (1/3) / sqrt(n) = 0.894 / sqrt(n), and its
root half of that. So F = R (1 + 3 x 0.447 / sqrt(n)), and at most u rms(y), which no rounding exceeds.

T_even. Torch's error of a (sequence, head) may be 0 by luck where few roundings make it up: the beta of a
single token may be exactly 0.5. So T is there at least t rms(y) min(1, 3 / sqrt(n)), with t torch's relative
error in the median (sequence, head) of the tensor and n the lines of the group. The 3 is a choice: with more
than nine lines luck counts for less. All lines of a state are one draw: one token writes them all.

z, what chance allows. Of N independent normal errors with deviation 1 the largest exceeds sqrt(2 ln(2 N / p))
with a probability below p = 1e-6. For lines N is their number, for gains that of (sequence, head), for the
largest error that of elements. T_near and s are estimates from few lines, so that the errors over them have
longer tails than normal ones; k = 2 covers that.

T_near. Torch's error on one line may be 0 by luck, when the line's only rounding error is common to all its
elements. The mean square over the lines within 8 places of it, in the same sequence and head, seldom is, and
t rms(y) of the line is not. An element of a state is the sum of products of a few keys and values, so that
its errors have longer tails than normal ones: torch's largest says little of the next kernel's. The limit of
a row then follows from torch's RMS error there.

s, the deviation of the gain. Errors of different lines are independent and lean along y as often as against
it, so that the variance of the sum of their products with y is estimated by the sum of the squares. The
rounding errors r_i of the elements of a line are independent too. With sums over the lines l of a group, and
e_l torch's error on one:

    s^2 = (k^2 max(sum_l m_l <e_l, y_l>^2, a^2 sum_l m_l y_l^4) + sum_l m_l sum_i (r_i y_i)^2)
          / (sum_l y_l^2)^2

y_l^2 is the square of the norm, and a^2 = sum <e_l, y_l>^2 / sum y_l^4 over all lines of the tensor: a group
of few lines may have small products by luck. m_l is the number of lines in the group that are equal to line
l, itself included: all requests of a benchmark may have one prompt. Equal lines have equal errors, and the
variance of a sum of m equal terms is m times the sum of their variances. No gain of a state is judged: errors
of its lines are not independent, since one token writes them all.

z s_f. A kernel may round f factors that all elements of a line have in common and that are exact in torch,
by the operation's `line_factors`. Each is off by an error that is uniform in [-u, u], with the deviation
u / sqrt(3), and the mean over n = (sum y_l^2)^2 / sum m_l y_l^4 lines by sqrt(n) less, but never by more than
u: (z s_f)^2 = (z s)^2 + f min(u, z u / sqrt(3 n))^2.

C, the cut. Tensor cores may cut the operands of a tf32 product to 10 bits instead of rounding them. Each is
then smaller by 0.36 x 2^-10 of itself in the mean, always in the same direction: 0.5 x 2^-10 over a
significand m that is log-uniform in [1, 2), where the mean of 1 / m is 1 / (2 ln 2). C is that times the
number of operands that are cut one after another on the way to an output, the operation's `cut_operands`.

g, the luck of a largest error. The largest of n errors with exponential tails, as states have, is ln n times
their scale with a standard deviation of pi / sqrt(6) = 1.28 of it. Two such, torch's and the kernel's, differ
by sqrt(2) as much: g = 1 + 3 x 1.28 sqrt(2) / ln n for n elements, 1 of other outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gdnbench.judge.line_errors import LineErrors, LineGrid, line_errors, line_grid
from gdnbench.judge.metrics import Comparison, Groups
from gdnbench.judge.result import LimitCheck
from gdnbench_kernels.contract import Partition

CHANCE = 1e-6
"""The probability that chance alone exceeds a limit of lines or gains, of one tensor."""

FLOOR_SPREAD = 3 * math.sqrt(4 / 45) * 3 / 2
"""Three standard deviations of the root of the mean of n squared uniform errors, times sqrt(n)."""

LARGEST_SPREAD = 3 * math.sqrt(2) * math.pi / math.sqrt(6)
"""Three standard deviations of the difference of two largest errors, in scales of exponential tails."""

CUT = 0.5 * 2.0**-10 / (2 * math.log(2))
"""The mean share of an operand that cutting it to 10 bits takes away."""

GAIN_SHARE = 0.5
"""Of a squared error, from which on a gain describes it."""
NEAR = 8
TINY = np.finfo(np.float64).tiny
VANISHING = 1e-200
"""A sum of squares of a result that every dtype rounds to 0, and that has no gain."""

RMS, LARGEST = "RMS", "largest"
OF_HEAD, OF_LINE = "RMS of a sequence and head", "RMS of a line"
GAIN, HEAD_GAIN = "gain of a sequence and head", "gain of a head"


@dataclass(frozen=True, slots=True)
class ExactLines:
    """The lines of one output: their exact values, torch's errors and those of rounding the exact values.
    `typical`: torch's RMS error relative to the exact values, in the median (sequence, head)."""

    grid: LineGrid
    torchs: LineErrors
    rounded: LineErrors
    typical: float


def exact_lines(torchs: Tensor, exact: Tensor, partition: Partition, dtype: torch.dtype) -> ExactLines:
    """The lines of torch's result against `exact` (fp64; NaN where an element does not count), and the errors
    of rounding `exact` to `dtype`."""
    grid = line_grid(exact, partition)
    errors, rounded = (line_errors(one, exact, partition, grid) for one in (torchs, exact.to(dtype)))
    _, owner = np.unique(grid.sequences, return_inverse=True)
    number = int(owner.max()) + 1 if owner.size else 0
    squares, exact_squares = _sums(errors.dd, owner, number), _sums(grid.yy, owner, number)
    some = exact_squares > VANISHING
    typical = float(np.median(np.sqrt(squares[some] / exact_squares[some]))) if some.any() else 0.0
    return ExactLines(grid, errors, rounded, typical)


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of one output, and the errors there of the tensor under test."""

    exact: ExactLines
    own: LineErrors

    @property
    def grid(self) -> LineGrid:
        return self.exact.grid

    @property
    def torchs(self) -> LineErrors:
        return self.exact.torchs

    @property
    def rounded(self) -> LineErrors:
        return self.exact.rounded


def lines_of(x: Tensor, y: Tensor, partition: Partition, exact: ExactLines) -> Lines:
    """The lines of `x` against `y`, whose lines are `exact`."""
    return Lines(exact, line_errors(x, y, partition, exact.grid))


def unit_roundoff(dtype: torch.dtype) -> tuple[float, float]:
    """Unit roundoff u, and what flushing or rounding small numbers may cost; zeros for integers, which are
    exact. The smallest normal number of fp32 and bf16, half the smallest subnormal of others: `.ftz` is an
    option of instructions of the former only."""
    if not dtype.is_floating_point:
        return 0.0, 0.0
    info = torch.finfo(dtype)
    flushed = dtype in (torch.float32, torch.bfloat16)
    return info.eps / 2, info.smallest_normal if flushed else info.smallest_normal * info.eps / 2


@dataclass(frozen=True, slots=True)
class Finding:
    """A limit with its error. `words` say so where it is exceeded; `minor`: they say nothing new where an RMS
    limit is exceeded too."""

    check: LimitCheck
    words: str
    minor: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one tensor under a bound of factor `k`.

    `added`: an allowed error relative to the exact value. `largest`: max |y| over the elements that count.
    `lines` None: the floor is u rms(y), and neither lines nor gains are judged. `cut_operands`,
    `line_factors`: see the operation's.
    """

    dtype: torch.dtype
    k: float
    largest: float
    added: float = 0.0
    lines: Lines | None = None
    cut_operands: int = 0
    line_factors: int = 0

    def findings(self, own: Comparison, torchs: Comparison) -> list[Finding]:
        """Each limit with its error.

        A limit of parts is that of the part that comes closest to it or exceeds it most; a part with an
        element that is not finite where it should be exceeds any.
        """
        found = [self._of_tensor(own, torchs), *self._of_heads(own.groups, torchs.groups)]
        if self.lines is not None:
            found += [*self._of_lines(self.lines), *self._of_gains(self.lines)]
        return [*found, self._of_largest(own, torchs)]

    def by_chunk(self, own: Comparison, torchs: Comparison) -> np.ndarray:
        """error / limit of the RMS of each region and head, [regions, heads]; infinite for a part with an
        element that is not finite where it should be."""
        starts = [region.start for region in own.groups.regions]
        floor = self._floor(own.groups, lambda grid: np.searchsorted(starts, grid.rows, side="right") - 1)
        limits = self._limit(torchs.groups.rms(), own.groups.rms_reference(), floor)
        return _ratios(_errors(own.groups), limits)

    def _limit(self, torchs: np.ndarray, exact: np.ndarray, floor: np.ndarray) -> np.ndarray:
        return np.asarray(self.k * torchs + floor + self.added * exact + unit_roundoff(self.dtype)[1])

    def _floor(self, groups: Groups, owner_of: Callable[[LineGrid], np.ndarray]) -> np.ndarray:
        """F by region and head; `owner_of`: the region of each line."""
        most = np.asarray(unit_roundoff(self.dtype)[0] * groups.rms_reference())
        if self.lines is None:
            return most
        owner, number = owner_of(self.lines.grid), len(groups.regions)
        squares, count = (_sums(one, owner, number) for one in (self.lines.rounded.dd, self.lines.grid.count))
        floor = _floor(squares, count, np.bincount(owner, minlength=number)[:, None])
        return np.asarray(np.minimum(most, floor))

    def _of_tensor(self, own: Comparison, torchs: Comparison) -> Finding:
        u, tiny = unit_roundoff(self.dtype)
        floor = u * own.total.rms_reference
        if self.lines is not None:
            dd, count = self.lines.rounded.dd, self.lines.grid.count
            floor = min(floor, float(_floor(dd.sum(), count.sum(), np.array(dd.size))))
        limit = self.k * torchs.total.rms + floor + self.added * own.total.rms_reference + tiny
        words = (
            f"RMS error {own.total.rms:.3g} over {limit:.3g} = {self.k:g} x torch's {torchs.total.rms:.3g}"
            " + rounding"
        )
        return Finding(LimitCheck(RMS, own.total.rms, limit), words)

    def _of_heads(self, own: Groups, torchs: Groups) -> list[Finding]:
        own, torchs = own.by_sequence(), torchs.by_sequence()
        errors = _errors(own)
        if not errors.size:
            return []
        place = {merged.sequence: position for position, merged in enumerate(own.regions)}

        def owner_of(grid: LineGrid) -> np.ndarray:
            owners = np.array([place[one.sequence] for one in grid.owners], dtype=np.int64)
            return np.asarray(owners[grid.regions])

        limits = self._limit(self._evened(own, torchs), own.rms_reference(), self._floor(own, owner_of))
        region, head, over = _worst(errors, limits)
        sequence = own.regions[region].sequence
        error, limit = float(errors[region, head]), float(limits[region, head])
        words = (
            f"RMS error of {over} of {errors.size} (sequence, head): worst sequence {sequence} head {head},"
            f" {error:.3g} over {limit:.3g}"
        )
        return [Finding(LimitCheck(OF_HEAD, error, limit, sequence, head=head), words)]

    def _evened(self, own: Groups, torchs: Groups) -> np.ndarray:
        """T_even by sequence and head."""
        rms, exact = torchs.rms(), own.rms_reference()
        if self.lines is None:
            return rms
        grid = self.lines.grid
        number = np.array([[region.stop - region.start] for region in own.regions])
        draws = np.maximum(number * grid.per_row, 1) if grid.vectors else np.ones_like(number)
        least = self.lines.exact.typical * exact * np.minimum(1.0, 3 / np.sqrt(draws))
        return np.asarray(np.maximum(rms, least))

    def _of_lines(self, lines: Lines) -> list[Finding]:
        grid = lines.grid
        if not grid.yy.size:
            return []
        u, tiny = unit_roundoff(self.dtype)
        norms = np.sqrt(grid.yy / np.maximum(grid.count, 1))
        rounded = _floor(lines.rounded.dd, grid.count, np.array(1))
        limits = (
            self.k * _chance(grid.yy.size) * self._near_torchs(lines) + np.minimum(u * norms, rounded) + tiny
        )
        limits += self.added * norms
        errors = np.sqrt(lines.own.dd / np.maximum(grid.count, 1))
        line, head, over = _worst(errors, limits)
        region = grid.owners[int(grid.regions[line])]
        token = None
        if grid.vectors:
            row, inner = int(grid.rows[line]), int(grid.inner[line])
            token = inner if region.token is None else region.token + row - region.start
        error, limit = float(errors[line, head]), float(limits[line, head])
        place = " ".join(
            f"{name} {value}"
            for name, value in (
                ("sequence", region.sequence),
                ("chunk", region.chunk),
                ("token", token),
                ("head", head),
            )
            if value is not None
        )
        words = f"RMS error of {over} of {errors.size} lines: worst {place}, {error:.3g} over {limit:.3g}"
        check = LimitCheck(OF_LINE, error, limit, region.sequence, region.chunk, head, token)
        return [Finding(check, words, minor=True)]

    def _of_gains(self, lines: Lines) -> list[Finding]:
        grid = lines.grid
        if not (grid.vectors and grid.yy.size):
            return []
        sequences, owner = np.unique(grid.sequences, return_inverse=True)
        found = []
        for what, groups, number in ((GAIN, owner, len(sequences)), (HEAD_GAIN, np.zeros_like(owner), 1)):
            if what == HEAD_GAIN and len(sequences) == 1:
                continue
            errors, limits = self._gains(lines, groups, number)
            group, head, over = _worst(np.abs(errors), limits)
            sequence = int(sequences[group]) if what == GAIN else None
            error, limit = float(errors[group, head]), float(limits[group, head])
            place = f"head {head}" if sequence is None else f"sequence {sequence} head {head}"
            parts = "heads" if sequence is None else "(sequence, head)"
            words = f"gain of {over} of {errors.size} {parts}: worst {place}, {error:+.3%} over {limit:.3%}"
            own = (_sums(one, groups, number)[group, head] for one in (lines.own.dd, grid.yy))
            minor = error * error < GAIN_SHARE * float(next(own)) / max(float(next(own)), VANISHING)
            found.append(Finding(LimitCheck(what, abs(error), limit, sequence, head=head), words, minor))
        return found

    def _limit_by_row(self, lines: Lines, limit: float) -> float:
        """The limit of the largest error of a state where rows may have a larger one than `limit`: that of
        the row that comes closest to its own or exceeds it most."""
        grid = lines.grid
        near = self.k * _chance(int(grid.count.sum())) * self._near_torchs(lines)
        allowed = np.maximum(limit, near + (unit_roundoff(self.dtype)[0] + self.added) * self.largest)
        line, head, _ = _worst(lines.own.peak, allowed)
        return float(lines.own.peak.max() * allowed[line, head] / max(lines.own.peak[line, head], TINY))

    def _near_torchs(self, lines: Lines) -> np.ndarray:
        """T_near by line and head."""
        grid = lines.grid
        owner = grid.sequences if grid.vectors else grid.regions
        typical = lines.exact.typical * np.sqrt(grid.yy / np.maximum(grid.count, 1))
        return np.asarray(np.maximum(np.sqrt(_near(lines.torchs.dd, grid.count, owner)), typical))

    def _gains(self, lines: Lines, groups: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        """<x - y, y> / <y, y> and its limit by group and head, [number, heads]; 0 where y is 0."""
        grid, k = lines.grid, self.k

        def summed(values: np.ndarray) -> np.ndarray:
            return _sums(values, groups, number)

        yy = summed(grid.yy)
        some = yy > VANISHING
        there = np.where(some, yy, 1.0)
        own, torchs, rounded = (summed(one.dy) / there for one in (lines.own, lines.torchs, lines.rounded))
        products, squares = lines.torchs.dy**2, grid.yy**2
        of_tensor = products.sum() / max(float(squares.sum()), VANISHING)
        copies = _copies(grid.yy, groups)
        fourths = summed(copies * squares)
        aligned = k * k * np.maximum(summed(copies * products), of_tensor * fourths)
        z, u = _chance(yy.size), unit_roundoff(self.dtype)[0]
        spread = z * np.sqrt(aligned + summed(copies * lines.rounded.dydy)) / there
        factor = np.minimum(u, z * u / math.sqrt(3) * np.sqrt(fourths) / there)
        spread = np.sqrt(spread**2 + self.line_factors * factor**2)
        limits = k * np.abs(torchs) + np.abs(rounded) + spread
        limits += self.cut_operands * CUT + self.added
        # Each of n elements may be off by that much: |<d, y>| <= tiny sqrt(n) |y|.
        limits += unit_roundoff(self.dtype)[1] * np.sqrt(summed(grid.count) / there)
        return np.where(some, own, 0.0), limits

    def _of_largest(self, own: Comparison, torchs: Comparison) -> Finding:
        u, tiny = unit_roundoff(self.dtype)
        rows = None if self.lines is None or self.lines.grid.vectors else self.lines
        luck = 1.0 if rows is None else 1 + LARGEST_SPREAD / math.log(max(rows.grid.count.sum(), math.e))
        limit = self.k * luck * torchs.total.max_abs + (u + self.added) * self.largest + tiny
        if rows is not None and rows.grid.yy.size and own.total.max_abs > limit:
            limit = self._limit_by_row(rows, limit)
        at = own.worst.at if own.worst is not None else None
        place = () if at is None else (at.sequence, at.chunk, at.head, at.token)
        words = (
            f"largest error {own.total.max_abs:.3g} over {limit:.3g} = {self.k:g} x torch's"
            f" {torchs.total.max_abs:.3g} + rounding; at {own.worst}"
        )
        return Finding(LimitCheck(LARGEST, own.total.max_abs, limit, *place), words)


def first_wrong_chunk(own: Groups, ratios: np.ndarray, sequence: int | None, head: int | None) -> str:
    """`; first wrong chunk of it: 3 (token 192)`: the first chunk of a sequence and head whose RMS error
    exceeds its limit, where the sequence has several; empty where it has not, or none exceeds it."""
    if sequence is None or head is None:
        return ""
    regions = enumerate(own.regions)
    chunks = [i for i, one in regions if one.sequence == sequence and None not in (one.chunk, one.token)]
    wrong = [i for i in chunks if ratios[i, head] > 1]
    if len(chunks) < 2 or not wrong:
        return ""
    first = own.regions[wrong[0]]
    return f"; first wrong chunk of it: {first.chunk} (token {first.token})"


def _chance(number: int) -> float:
    """z: what the largest of `number` normal errors exceeds with a probability of CHANCE, in deviations."""
    return math.sqrt(2 * math.log(2 * max(1, number) / CHANCE))


def _floor(squares: np.ndarray, count: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """F of groups with these sums of squared rounding errors, elements and lines."""
    rounded = np.sqrt(squares / np.maximum(count, 1))
    return np.asarray(rounded * (1 + FLOOR_SPREAD / np.sqrt(np.maximum(lines, 1))))


def _sums(values: np.ndarray, groups: np.ndarray, number: int) -> np.ndarray:
    """[L, heads] summed by group, [number, heads]."""
    found = np.zeros((number, values.shape[1]))
    np.add.at(found, groups, values)
    return found


def _copies(yy: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """m_l [L, heads]: the lines of the same group and head whose sum of squares is that of the line. Sums are
    compared in 36 of their 52 bits: an oracle may sum equal lines in another order, and few other lines agree
    in so many."""
    keys = (np.ascontiguousarray(yy, dtype=np.float64).view(np.int64) + (1 << 15)) >> 16
    found = np.empty(yy.shape)
    for head in range(yy.shape[1]):
        order = np.lexsort((keys[:, head], groups))
        key, group = keys[order, head], groups[order]
        run = np.concatenate([[0], np.cumsum((np.diff(key) != 0) | (np.diff(group) != 0))])
        found[order, head] = np.bincount(run)[run]
    return found


def _near(squares: np.ndarray, count: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """The mean square error over the lines within NEAR places of each line that have its owner, or that of
    the line if it is larger."""
    total = np.concatenate([np.zeros((1, squares.shape[1])), squares.cumsum(axis=0)])
    elements = np.concatenate([np.zeros((1, squares.shape[1])), count.cumsum(axis=0)])
    edges = np.flatnonzero(np.diff(owner)) + 1
    starts, stops = np.concatenate([[0], edges]), np.concatenate([edges, [len(owner)]])
    run = np.searchsorted(edges, np.arange(len(owner)), side="right")
    low = np.maximum(np.arange(len(owner)) - NEAR, starts[run])
    high = np.minimum(np.arange(len(owner)) + NEAR + 1, stops[run])
    mean = (total[high] - total[low]).clip(min=0) / np.maximum(elements[high] - elements[low], 1)
    return np.asarray(np.maximum(mean, squares / np.maximum(count, 1)))


def _errors(groups: Groups) -> np.ndarray:
    """RMS errors by region and head; NaN for a group with an element that is not finite on one side."""
    return np.where(groups.nonfinite() > 0, np.nan, groups.rms())


def _ratios(errors: np.ndarray, limits: np.ndarray) -> np.ndarray:
    ratios = np.where(errors > 0, errors / np.maximum(limits, TINY), 0.0)
    return np.where(np.isnan(errors), np.inf, ratios)


def _worst(errors: np.ndarray, limits: np.ndarray) -> tuple[int, int, int]:
    """Place of the largest error / limit, and how many exceed 1."""
    first, second = np.unravel_index(_ratios(errors, limits).argmax(), errors.shape)
    return int(first), int(second), int((~(errors <= limits)).sum())
