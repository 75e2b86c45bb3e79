# SPDX-License-Identifier: Apache-2.0
"""Statistics of each line of a pair of blocks that fit in cache: the arithmetic of a comparison.

A line is a run of elements of one row and one head. With d = x - y, a line yields sum d^2, sum y^2, sum d*y,
sum |d|, max |d| and the largest ULP distance. All metrics follow from these without cancellation, because
differences are squared; squares are never subtracted. A block takes about twenty vectorised operations in
cache, so a full diff costs only a few passes over memory.

Each block takes the cheapest of three paths that applies:

  equal    bits are equal: only sum y^2 is computed;
  narrow   fp32 arithmetic, for dtypes that fp32 holds, while no square leaves fp32's range;
  wide     fp64 with masks: non-finite elements, extreme magnitudes, an fp64 side, a relative tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench.judge import ulp

BLOCK = 1 << 18
"""Elements of a block: its scratch memory stays in the L3 cache, and the overhead of about forty calls is
small."""

# Between these limits squares stay in fp32's normal range (1e-38 .. 3e38), and what underflows is below
# 2**-24 of the line's sum.
_LARGEST = 1e15
_SMALLEST = 1e-12
# In 16- and 32-bit formats, elements 2**(width-1) ULP apart differ in sign and one is 2.0 or more.
_NO_WRAP = 2.0
_NARROW = {torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2}


class Sum(IntEnum):
    """Rows of `LineStats.sums`, over elements that are finite on both sides."""

    COUNT = 0
    ABS = 1
    DD = 2
    YY = 3
    DY = 4
    NONFINITE = 5  # elements that are NaN or infinite on one side, or infinities of different signs


class Peak(IntEnum):
    """Rows of `LineStats.peaks`."""

    ABS = 0
    ULP = 1
    SCORE = 2  # |d| - rel * |y|, compared with a tolerance's abs; equals ABS if rel is 0


@dataclass(slots=True)
class LineStats:
    """Statistics of n lines: sums [len(Sum), n] and peaks [len(Peak), n], both fp64."""

    sums: np.ndarray
    peaks: np.ndarray

    @classmethod
    def empty(cls, lines: int) -> LineStats:
        return cls(np.zeros((len(Sum), lines)), np.zeros((len(Peak), lines)))


@dataclass(slots=True)
class Tally:
    """Counts over a whole tensor. Offsets are flat positions in the tensor, -1 for none."""

    unequal: int = 0
    nan_only_x: int = 0
    nan_only_y: int = 0
    inf_unequal: int = 0
    violations: int = 0
    first_unequal: int = -1
    first_nonfinite: int = -1
    codes: np.ndarray = field(default_factory=lambda: np.zeros(256, dtype=np.int64))
    buckets: np.ndarray = field(default_factory=lambda: np.zeros(ulp.BUCKETS, dtype=np.int64))

    @property
    def histogram(self) -> np.ndarray:
        """ULP distances by bucket."""
        return np.asarray(ulp.by_bucket(self.codes) + self.buckets)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element passes when |x - y| <= abs + rel * |y|."""

    abs: float
    rel: float = 0.0


class LineMeter:
    """Measures pairs of equally shaped [lines, width] tensors; keeps its scratch memory between calls."""

    def __init__(
        self, x_dtype: torch.dtype, y_dtype: torch.dtype, tolerance: Tolerance | None = None
    ) -> None:
        self._same = x_dtype == y_dtype
        self._narrow = self._same and x_dtype in _NARROW and tolerance is None
        self._tolerance = tolerance
        self._ulp_dtype = ulp.exact_in_float(x_dtype)
        self._scratch: dict[tuple[str, torch.dtype], Tensor] = {}
        self._views: dict[tuple[str, torch.dtype], Tensor] = {}  # scratch in the last block's shape
        self._lanes = ulp.lanes(BLOCK)

    def measure(self, x: Tensor, y: Tensor, stats: LineStats, tally: Tally, first: int = 0) -> None:
        """Fill `stats` with the lines of x against y and add to `tally`; `first` is the flat offset of x[0,
        0]."""
        if x.numel() == 0:
            return
        step = max(1, BLOCK // x.shape[1])
        with np.errstate(all="ignore"):  # the results are checked for overflow instead
            for start in range(0, x.shape[0], step):
                stop = min(start + step, x.shape[0])
                part = LineStats(stats.sums[:, start:stop], stats.peaks[:, start:stop])
                self._block(x[start:stop], y[start:stop], part, tally, first + start * x.shape[1])

    def _block(self, x: Tensor, y: Tensor, stats: LineStats, tally: Tally, first: int) -> None:
        equal = self._same and torch.equal(as_integers(x), as_integers(y))
        if not self._narrow or not (self._equal(y, stats) if equal else self._different(x, y, stats)):
            self._wide(x, y, stats, tally, first)
            return
        stats.sums[Sum.COUNT] = x.shape[1]
        if equal:
            tally.buckets[0] += x.numel()
        elif x.element_size() > 1 and float(stats.peaks[Peak.ABS].max()) < _NO_WRAP:
            self._near_bits(x, y, stats, tally, first)
        else:
            self._bits(x, y, None, stats, tally, first)

    def _equal(self, y: Tensor, stats: LineStats) -> bool:
        """The line sums for x equal to y; False if they leave fp32's range."""
        wide = self._as_float("y", y)
        squares = _dot(wide, wide)
        if not _squares_hold(squares, wide):
            return False
        stats.sums[Sum.YY] = squares
        return True

    def _different(self, x: Tensor, y: Tensor, stats: LineStats) -> bool:
        """The line sums and peaks in fp32; False if they leave its range or meet a NaN or infinity."""
        xf, yf = self._as_float("x", x), self._as_float("y", y)
        d = torch.sub(xf, yf, out=self._buffer("d", x))
        squares, dot, error = _dot(yf, yf), _dot(d, yf), _dot(d, d)
        d.abs_()
        peak, total = d.amax(-1).numpy(), d.sum(-1).numpy()
        # A NaN or infinity on either side makes `d` non-finite, hence its line's peak.
        if not (peak <= _LARGEST).all() or ((peak < _SMALLEST) & (peak > 0)).any():
            return False
        if not _squares_hold(squares, yf):
            return False
        stats.sums[Sum.YY], stats.sums[Sum.DY], stats.sums[Sum.DD] = squares, dot, error
        stats.sums[Sum.ABS], stats.peaks[Peak.ABS], stats.peaks[Peak.SCORE] = total, peak, peak
        # |x|^2 follows from these sums unless x is so much smaller than y that they cancel.
        return bool((2 * dot + error >= -0.99 * squares).all())

    def _wide(self, x: Tensor, y: Tensor, stats: LineStats, tally: Tally, first: int) -> None:
        """Line sums and peaks in fp64 over the elements finite on both sides; counts the others."""
        xd, yd = x.double(), y.double()
        finite = torch.isfinite(xd) & torch.isfinite(yd)
        if not bool(finite.all()):
            _count_nonfinite(xd, yd, tally, first)
            zero = torch.zeros((), dtype=torch.float64)
            xd, yd = torch.where(finite, xd, zero), torch.where(finite, yd, zero)
        d = xd - yd
        magnitude, reference = d.abs(), yd.abs()
        stats.sums[Sum.COUNT] = finite.sum(-1).numpy()
        stats.sums[Sum.ABS] = magnitude.sum(-1).numpy()
        stats.sums[Sum.DD] = (d * d).sum(-1).numpy()
        stats.sums[Sum.YY] = (yd * yd).sum(-1).numpy()
        stats.sums[Sum.DY] = (d * yd).sum(-1).numpy()
        if not bool(finite.all()):
            stats.sums[Sum.NONFINITE] = _unequal_kinds(x.double(), y.double()).sum(-1).numpy()
        stats.peaks[Peak.ABS] = stats.peaks[Peak.SCORE] = magnitude.amax(-1).numpy()
        if self._tolerance is not None:
            score = magnitude - self._tolerance.rel * reference
            stats.peaks[Peak.SCORE] = torch.where(finite, score, -torch.inf).amax(-1).numpy()
            allowed = self._tolerance.abs + self._tolerance.rel * reference
            tally.violations += int((magnitude > allowed).sum())
        self._bits(x, y if self._same else y.to(x.dtype), finite, stats, tally, first)

    def _near_bits(self, x: Tensor, y: Tensor, stats: LineStats, tally: Tally, first: int) -> None:
        """As `_bits`, in integers of the dtype's width, for finite elements less than _NO_WRAP apart."""
        integers = as_integers(x).dtype
        a, b, scratch = (self._buffer(name, x, integers).numpy() for name in ("a", "b", "scratch"))
        ulp.ordered_into(a, scratch, x)
        ulp.ordered_into(b, scratch, y)
        zeros = np.equal(b, 0, out=self._buffer("mask", x, torch.bool).numpy()).any()
        distance = np.abs(np.subtract(a, b, out=a), out=a)
        stats.peaks[Peak.ULP] = torch.from_numpy(distance).amax(-1).numpy()
        codes = ulp.bucket_codes_of_integers(distance, scratch, self._buffer("x", x))
        counts = ulp.count_codes(codes, self._lane(codes))
        tally.codes += counts
        if zeros or tally.first_unequal < 0:
            _count_unequal(as_integers(x) != as_integers(y), tally, first)
        else:
            tally.unequal += x.numel() - int(
                counts[ulp.ZERO_CODES].sum()
            )  # no zeros, so no +0 and -0 at distance 0

    def _bits(
        self, x: Tensor, y: Tensor, finite: Tensor | None, stats: LineStats, tally: Tally, first: int
    ) -> None:
        """ULP distances, their histogram and the count of unequal elements; `finite` None: all are finite."""
        unequal = as_integers(x) != as_integers(y)
        if finite is not None and x.is_floating_point():
            unequal &= ~(torch.isnan(x.double()) & torch.isnan(y.double()))  # fp8 lacks isnan
        _count_unequal(unequal, tally, first)
        if self._ulp_dtype is None:
            distances = ulp.wide_distances(x, y)
            if finite is not None:
                distances = np.where(finite.numpy(), distances, np.uint64(0))
            tally.buckets += ulp.wide_histogram(distances)
            stats.peaks[Peak.ULP] = distances.max(-1).astype(np.float64)
        else:
            a = self._buffer("x", x, self._ulp_dtype).copy_(ulp.ordered(x))
            b = self._buffer("y", y, self._ulp_dtype).copy_(ulp.ordered(y))
            distance = a.sub_(b).abs_()
            if finite is not None:
                distance.masked_fill_(~finite, 0)
            codes = ulp.bucket_codes(distance)
            tally.codes += ulp.count_codes(codes, self._lane(codes))
            stats.peaks[Peak.ULP] = distance.amax(-1).numpy()
        if finite is not None:
            tally.buckets[0] -= x.numel() - int(finite.sum())  # non-finite elements belong to no bucket

    def _as_float(self, name: str, values: Tensor) -> Tensor:
        return values if values.dtype == torch.float32 else self._buffer(name, values).copy_(values)

    def _lane(self, codes: Tensor) -> Tensor:
        if codes.numel() > len(self._lanes):  # a line wider than a block
            self._lanes = ulp.lanes(codes.numel())
        return self._lanes[: codes.numel()]

    def _buffer(self, name: str, like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Scratch memory of `like`'s shape, reused: a fresh allocation would cost a page fault every 4
        KiB."""
        view = self._views.get((name, dtype))
        if view is None or view.shape != like.shape:
            flat = self._scratch.get((name, dtype))
            if flat is None or len(flat) < like.numel():
                flat = self._scratch[name, dtype] = torch.empty(like.numel(), dtype=dtype)
            view = self._views[name, dtype] = flat[: like.numel()].view(like.shape)
        return view


def _dot(a: Tensor, b: Tensor) -> np.ndarray:
    """<a, b> of each line in one pass; a product and a sum would write and read an array between them."""
    return np.asarray(np.vecdot(a.numpy(), b.numpy()))


def _squares_hold(squares: np.ndarray, values: Tensor) -> bool:
    """Whether fp32 sums of squares neither overflowed nor consist of underflowed squares."""
    if not (squares <= _LARGEST * _LARGEST).all():  # NaN compares false
        return False
    small = squares < _SMALLEST * _SMALLEST
    return not small.any() or not values.numpy()[small].any()


def _count_unequal(unequal: Tensor, tally: Tally, first: int) -> None:
    count = int(torch.count_nonzero(unequal))
    tally.unequal += count
    if count and tally.first_unequal < 0:
        tally.first_unequal = first + int(torch.nonzero(unequal.reshape(-1))[0])


def _infinite_on_one_side(xd: Tensor, yd: Tensor) -> Tensor:
    """Where neither is NaN and one is an infinity that the other is not."""
    return ~torch.isnan(xd) & ~torch.isnan(yd) & (torch.isinf(xd) | torch.isinf(yd)) & (xd != yd)


def _unequal_kinds(xd: Tensor, yd: Tensor) -> Tensor:
    """Where one is NaN and the other is not, or `_infinite_on_one_side`."""
    return (torch.isnan(xd) != torch.isnan(yd)) | _infinite_on_one_side(xd, yd)


def _count_nonfinite(xd: Tensor, yd: Tensor, tally: Tally, first: int) -> None:
    x_nan, y_nan = torch.isnan(xd), torch.isnan(yd)
    infinite = _infinite_on_one_side(xd, yd)
    tally.nan_only_x += int((x_nan & ~y_nan).sum())
    tally.nan_only_y += int((y_nan & ~x_nan).sum())
    tally.inf_unequal += int(infinite.sum())
    wrong = ((x_nan != y_nan) | infinite).reshape(-1)
    if tally.first_nonfinite < 0 and bool(wrong.any()):
        tally.first_nonfinite = first + int(torch.nonzero(wrong)[0])
