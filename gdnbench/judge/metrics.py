# SPDX-License-Identifier: Apache-2.0
"""Metrics of one tensor against another: in total, and for each (sequence, head, chunk).

x is the tensor under test, y its reference. Rows in no region of the partition are padding and never count.
Elements finite on both sides enter the errors; the others are counted by how they differ. All NaNs are equal;
+0 and -0 are 0 ULP apart but not bitwise equal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gdnbench.judge import ulp
from gdnbench.judge.block_stats import LineMeter, LineStats, Peak, Sum, Tally, Tolerance
from gdnbench.judge.location import Location, locate
from gdnbench.judge.row_source import RowSource
from gdnbench_kernels.contract import Partition, Region

READ_BYTES = 16 << 20
"""Bytes of rows read at once from each side: bounds memory, and is large enough that no chunk is read
twice."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Error figures over a set of elements.

    `rms_ratio` is rms(x - y) / rms(y), which equals the relative L2 error |x - y| / |y|; `cosine` is the
    distance 1 - <x, y> / (|x| |y|).
    """

    count: int
    max_abs: float
    mean_abs: float
    rms: float
    rms_reference: float
    rms_ratio: float
    cosine: float
    max_ulp: int

    @property
    def relative_l2(self) -> float:
        return self.rms_ratio


@dataclass(frozen=True, slots=True)
class Worst:
    """An element to report: its location, both values, and their distance."""

    at: Location
    x: float
    y: float
    ulp: int | None  # None if one of the two is not finite

    def __str__(self) -> str:
        return f"{self.at}: {self.x:.9g} against {self.y:.9g}"


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Elements that are not finite on at least one side and differ in kind."""

    nan_only_x: int
    nan_only_y: int
    inf_unequal: int
    first: Worst | None

    @property
    def unequal(self) -> int:
        return self.nan_only_x + self.nan_only_y + self.inf_unequal


@dataclass(frozen=True, slots=True)
class Groups:
    """Line statistics by region and head: sums [len(Sum), regions, heads], peaks [len(Peak), ...]."""

    regions: tuple[Region, ...]
    sums: np.ndarray
    peaks: np.ndarray

    def errors(self, region: int, head: int) -> Errors:
        """Errors of one (sequence, chunk) and head."""
        return _errors(self.sums[:, region, head], self.peaks[:, region, head])

    def total(self) -> Errors:
        """Errors of all elements."""
        if self.sums[0].size == 0:
            return _errors(np.zeros(len(Sum)), np.zeros(len(Peak)))
        return _errors(self.sums.sum(axis=(1, 2)), self.peaks.max(axis=(1, 2)))

    def by_sequence(self) -> Groups:
        """The groups with the chunks of each sequence merged, as the bound needs them."""
        members: dict[int, list[int]] = {}
        for i, region in enumerate(self.regions):
            members.setdefault(region.sequence, []).append(i)
        merged = tuple(
            Region(self.regions[ids[0]].start, self.regions[ids[-1]].stop, sequence)
            for sequence, ids in members.items()
        )
        heads = self.sums.shape[2]
        sums, peaks = np.zeros((len(Sum), len(merged), heads)), np.zeros((len(Peak), len(merged), heads))
        for row, ids in enumerate(members.values()):
            sums[:, row], peaks[:, row] = self.sums[:, ids].sum(axis=1), self.peaks[:, ids].max(axis=1)
        return Groups(merged, sums, peaks)

    def rms(self) -> np.ndarray:
        """rms(x - y) for each region and head, [regions, heads]; 0 where there is no element."""
        return _root_mean(self.sums[Sum.DD], self.sums[Sum.COUNT])

    def nonfinite(self) -> np.ndarray:
        """Elements that are NaN or infinite on one side only, for each region and head, [regions, heads]."""
        return np.asarray(self.sums[Sum.NONFINITE])

    def rms_reference(self) -> np.ndarray:
        """rms(y) for each region and head, [regions, heads]; 0 where there is no element."""
        return _root_mean(self.sums[Sum.YY], self.sums[Sum.COUNT])


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor compared with another.

    `worst` is the largest |x - y| (with a tolerance: the largest excess); if all values agree and bits do
    not, the first such element. `violations` counts elements beyond the tolerance.
    """

    elements: int
    unequal: int
    total: Errors
    groups: Groups
    nonfinite: NonFinite
    ulp_histogram: tuple[int, ...]
    worst: Worst | None
    violations: int = 0

    @property
    def bits_equal(self) -> bool:
        return self.unequal == 0


def compare(
    x: RowSource,
    y: RowSource,
    partition: Partition,
    axes: Sequence[str] = (),
    tolerance: Tolerance | None = None,
) -> Comparison:
    """Compare `x` with `y` over the rows of `partition`.

    Shapes must be equal. Dtypes may differ: ULP distance and bit equality then use y rounded to x's dtype.
    Memory is limited to twice READ_BYTES plus the groups, for any size. ValueError for unequal shapes or
    overlapping regions.
    """
    if x.shape != y.shape:
        raise ValueError(f"cannot compare shapes {x.shape} and {y.shape}")
    run = _Run(x, y, partition, axes, tolerance)
    if x.digest is None or x.digest != y.digest:
        run.read_all()
    return run.finish()


class _Run:
    """A comparison in progress."""

    def __init__(
        self,
        x: RowSource,
        y: RowSource,
        partition: Partition,
        axes: Sequence[str],
        tolerance: Tolerance | None,
    ) -> None:
        self.x, self.y, self.axes = x, y, axes
        self.rel = tolerance.rel if tolerance else 0.0
        ascending = tuple(sorted(partition.regions, key=lambda region: region.start))
        for before, after in itertools.pairwise(ascending):
            if after.start < before.stop:
                raise ValueError(f"regions overlap at row {after.start}: {before} and {after}")
        self.partition = Partition(ascending, partition.head_axis, partition.token_axis)
        self.starts = [region.start for region in ascending]
        self.same_bits = x.digest is not None and x.digest == y.digest
        shape, axis = x.shape, partition.head_axis
        heads = 1 if axis is None else shape[axis]
        before_head = 1 if axis is None else math.prod(shape[1:axis])
        after_head = math.prod(shape[1:]) if axis is None else math.prod(shape[axis + 1 :])
        self.line_shape = (before_head, heads)
        self.width = after_head
        self.row_elements = math.prod(shape[1:])
        groups = (len(ascending), heads)
        self.sums, self.peaks = np.zeros((len(Sum), *groups)), np.zeros((len(Peak), *groups))
        if tolerance is not None:
            self.peaks[Peak.SCORE] = -np.inf
        self.meter = LineMeter(x.dtype, y.dtype, tolerance)
        self.tally = Tally()
        self.best = -np.inf
        self.worst: Worst | None = None
        self.first_unequal: Worst | None = None
        self.first_nonfinite: Worst | None = None

    def read_all(self) -> None:
        for start, stop in _units(self.partition.regions, self._rows_at_once()):
            if self.row_elements and self.line_shape[1]:
                self._unit(start, stop)

    def _rows_at_once(self) -> int:
        bytes_a_row = self.row_elements * max(self.x.dtype.itemsize, self.y.dtype.itemsize)
        return max(1, READ_BYTES // max(1, bytes_a_row))

    def _unit(self, start: int, stop: int) -> None:
        x, y = self.x.read_rows(start, stop), self.y.read_rows(start, stop)
        if any(region.tokens is not None for region in self.partition.regions):
            x, y = self._without_padding(x, start), self._without_padding(y, start)
        x, y = x.reshape(-1, self.width), y.reshape(-1, self.width)
        stats = LineStats.empty(x.shape[0])
        offset = start * self.row_elements
        self.meter.measure(x, y, stats, self.tally, offset)
        self._fold(stats, start, stop)
        score = stats.peaks[Peak.SCORE]
        line = int(score.argmax())
        if score[line] > self.best and stats.peaks[Peak.ABS, line] > 0:
            self.best = float(score[line])
            xd, yd = x[line].double().numpy(), y[line].double().numpy()
            finite = np.isfinite(xd) & np.isfinite(yd)
            xd, yd = np.where(finite, xd, 0.0), np.where(finite, yd, 0.0)
            ranks = np.where(finite, np.abs(xd - yd) - self.rel * np.abs(yd), -np.inf)
            self.worst = self._element(offset + line * self.width + int(ranks.argmax()))
        if self.first_unequal is None and self.tally.first_unequal >= 0:
            self.first_unequal = self._element(self.tally.first_unequal)
        if self.first_nonfinite is None and self.tally.first_nonfinite >= 0:
            self.first_nonfinite = self._element(self.tally.first_nonfinite)

    def _without_padding(self, rows: Tensor, start: int) -> Tensor:
        """Chunks [R, Hv, C, ...] with NaN past their last token: NaN on both sides does not count."""
        rows = rows.clone()
        for region in self.partition.regions:
            for row in range(max(region.start, start), min(region.stop, start + len(rows))):
                rows[row - start, :, region.tokens :] = torch.nan
        return rows

    def _fold(self, stats: LineStats, start: int, stop: int) -> None:
        """Merge the statistics of rows [start, stop) into those of their regions and heads."""
        shape = (stop - start, *self.line_shape)
        sums = stats.sums.reshape(len(Sum), *shape).sum(axis=2)
        peaks = stats.peaks.reshape(len(Peak), *shape).max(axis=2)
        owner = np.searchsorted(self.starts, np.arange(start, stop), side="right") - 1
        edges = np.concatenate([[0], np.flatnonzero(np.diff(owner)) + 1])
        owners = owner[edges]
        self.sums[:, owners] += np.add.reduceat(sums, edges, axis=1)
        folded = np.maximum.reduceat(peaks, edges, axis=1)
        self.peaks[:, owners] = np.maximum(self.peaks[:, owners], folded)

    def _element(self, offset: int) -> Worst:
        """The element at flat `offset` of the tensors."""
        index = tuple(int(i) for i in np.unravel_index(offset, self.x.shape))
        inner = (0, *index[1:])
        x = self.x.read_rows(index[0], index[0] + 1)[inner].reshape(1)
        y = self.y.read_rows(index[0], index[0] + 1)[inner].reshape(1)
        xv, yv = float(x.double()), float(y.double())
        distance = None
        if math.isfinite(xv) and math.isfinite(yv):
            a, b = ulp.ordered(x), ulp.ordered(y.to(x.dtype))
            distance = abs(int(a) - int(b))
        return Worst(locate(index, self.partition, self.axes, self.starts), xv, yv, distance)

    def finish(self) -> Comparison:
        rows = sum(region.stop - region.start for region in self.partition.regions)
        elements = rows * self.row_elements
        if self.same_bits:
            self.tally.buckets[0] = elements
            heads = max(1, self.line_shape[1])
            lengths = np.array([region.stop - region.start for region in self.partition.regions], dtype=float)
            self.sums[Sum.COUNT] = (lengths * (self.row_elements // heads))[:, None]
        groups = Groups(self.partition.regions, self.sums, self.peaks)
        tally = self.tally
        histogram = tally.histogram
        used = np.flatnonzero(histogram)
        return Comparison(
            elements=elements,
            unequal=tally.unequal,
            total=groups.total(),
            groups=groups,
            nonfinite=NonFinite(tally.nan_only_x, tally.nan_only_y, tally.inf_unequal, self.first_nonfinite),
            ulp_histogram=tuple(histogram[: used[-1] + 1].tolist()) if used.size else (),
            worst=self.worst or self.first_unequal,
            violations=tally.violations,
        )


def _units(regions: Sequence[Region], rows: int) -> Iterator[tuple[int, int]]:
    """Runs of consecutive rows that belong to a region, split into at most `rows` each."""
    start = stop = -1
    for region in (*regions, None):
        if region is not None and region.start == stop:
            stop = region.stop
            continue
        for first in range(start, stop, rows):
            yield first, min(first + rows, stop)
        if region is not None:
            start, stop = region.start, region.stop


def _errors(sums: np.ndarray, peaks: np.ndarray) -> Errors:
    count = int(sums[Sum.COUNT])
    dd, yy, dy = float(sums[Sum.DD]), float(sums[Sum.YY]), float(sums[Sum.DY])
    return Errors(
        count=count,
        max_abs=float(peaks[Peak.ABS]),
        mean_abs=float(sums[Sum.ABS]) / count if count else 0.0,
        rms=math.sqrt(dd / count) if count else 0.0,
        rms_reference=math.sqrt(yy / count) if count else 0.0,
        rms_ratio=_ratio(math.sqrt(dd), math.sqrt(yy)),
        cosine=_cosine(dd, yy, dy),
        max_ulp=int(peaks[Peak.ULP]),
    )


def _root_mean(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    mean: np.ndarray = np.divide(total, count, out=np.zeros_like(count), where=count > 0)
    return np.asarray(np.sqrt(mean))


def _ratio(error: float, reference: float) -> float:
    if error == 0:
        return 0.0
    return error / reference if reference > 0 else math.inf


def _cosine(dd: float, yy: float, dy: float) -> float:
    """1 - <x, y> / (|x| |y|) from sums of d = x - y; 1 if one side is zero.

    |x|^2 = |y|^2 + 2<d, y> + |d|^2. The definition cancels for small d, so this computes the equivalent
    (|d|^2 - (|x| - |y|)^2) / (2 |x| |y|), which does not.
    """
    if dd == 0:
        return 0.0
    xx = max(0.0, yy + 2 * dy + dd)
    norm_x, norm_y = math.sqrt(xx), math.sqrt(yy)
    if norm_x == 0 or norm_y == 0:
        return 1.0
    if dd > yy / 4:
        return min(2.0, max(0.0, 1 - (yy + dy) / norm_x / norm_y))
    difference = (2 * dy + dd) / (norm_x + norm_y)
    return max(0.0, (dd - difference * difference) / (2 * norm_x * norm_y))
