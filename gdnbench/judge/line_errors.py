# SPDX-License-Identifier: Apache-2.0
"""Sums of errors over each line of a tensor. A line is a vector: one row, one head and the last axis, such as
the output of one token, or one of the V rows of a state.

Rounding errors of a line's elements may be common to all of them (a kernel rounds q k^T, which scales a whole
output vector). Errors of different lines are independent draws. So lines are what averages are taken over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gdnbench_kernels.contract import Partition, Region

BLOCK = 1 << 22
"""Elements at once: their fp64 copies take some 100 MB."""


@dataclass(frozen=True, slots=True)
class LineErrors:
    """Of d = x - y by line and head, fp64 [L, heads]: sums of d^2, d y and (d y)^2, and the largest |d|, over
    the elements finite on both sides."""

    dd: np.ndarray
    dy: np.ndarray
    dydy: np.ndarray
    peak: np.ndarray


@dataclass(frozen=True, slots=True)
class LineGrid:
    """The lines of a tensor in the order of its rows.

    - rows: int [L], the row of axis 0 of each line; inner: int [L], its place among the lines of that row
    - regions: int [L], the index of the owner in `owners`; owners ascend by row
    - count, yy: fp64 [L, heads], elements that are finite and the sum of y^2 over them
    - per_row: lines of one row; vectors: whether a row and head have one line for each token, so that lines
      are different tokens
    """

    rows: np.ndarray
    inner: np.ndarray
    regions: np.ndarray
    owners: tuple[Region, ...]
    count: np.ndarray
    yy: np.ndarray
    per_row: int
    vectors: bool

    @property
    def sequences(self) -> np.ndarray:
        """The sequence of each line."""
        return np.asarray(np.array([region.sequence for region in self.owners], dtype=np.int64)[self.regions])


def line_grid(y: Tensor, partition: Partition) -> LineGrid:
    """The lines of the exact result `y` (fp64, NaN where an element does not count) over the rows of
    `partition`, whose regions are whole rows."""
    owners = tuple(sorted(partition.regions, key=lambda region: region.start))
    lengths = [region.stop - region.start for region in owners]
    rows = np.concatenate([np.arange(r.start, r.stop) for r in owners] or [np.zeros(0, np.int64)])
    before, _, inner, _ = _extents(tuple(y.shape), partition.head_axis)
    per_row = before * inner
    blocks = list(_blocks(rows, y))
    counts, squares = [], []
    for block in blocks:
        values = _by_line(y[block].double(), partition.head_axis)
        finite = torch.isfinite(values)
        counts.append(finite.sum(-1, dtype=torch.float64))
        squares.append(values.where(finite, 0.0).square_().sum(-1))
    heads = 1 if partition.head_axis is None else y.shape[partition.head_axis]
    return LineGrid(
        rows=np.repeat(rows, per_row),
        inner=np.tile(np.arange(per_row), len(rows)),
        regions=np.repeat(np.repeat(np.arange(len(owners)), lengths), per_row),
        owners=owners,
        count=_joined(counts, heads),
        yy=_joined(squares, heads),
        per_row=per_row,
        vectors=inner == 1,
    )


def line_errors(x: Tensor, y: Tensor, partition: Partition, grid: LineGrid) -> LineErrors:
    """The errors of `x` against the exact result `y` on the lines of `grid`, which is that of `y`."""
    found: tuple[list[Tensor], ...] = ([], [], [], [])
    for block in _blocks(grid.rows[:: max(1, grid.per_row)], y):
        exact = _by_line(y[block].double(), partition.head_axis)
        d = _by_line(x[block].double(), partition.head_axis) - exact
        counts = torch.isfinite(d)
        d, exact = d.where(counts, 0.0), exact.where(counts, 0.0)
        product = d * exact
        peak = d.abs().amax(-1) if d.shape[-1] else d.sum(-1)
        parts = (d.square_().sum(-1), product.sum(-1), product.square_().sum(-1), peak)
        for parts_of_one, part in zip(found, parts, strict=True):
            parts_of_one.append(part)
    heads = grid.yy.shape[1]
    return LineErrors(*(_joined(parts, heads) for parts in found))


def _extents(shape: Sequence[int], head_axis: int | None) -> tuple[int, int, int, int]:
    """Elements of a row before the head axis, heads, between it and the last axis, and of the last axis."""
    if head_axis is None:
        return 1, 1, math.prod(shape[1:-1]), (shape[-1] if len(shape) > 1 else 1)
    after = shape[head_axis + 1 :]
    return math.prod(shape[1:head_axis]), shape[head_axis], math.prod(after[:-1]), (after[-1] if after else 1)


def _by_line(values: Tensor, head_axis: int | None) -> Tensor:
    """[rows, ...] as [lines, heads, last]."""
    before, heads, inner, last = _extents(tuple(values.shape), head_axis)
    parts = values.reshape(len(values), before, heads, inner, last)
    return parts.transpose(2, 3).reshape(len(values) * before * inner, heads, last)


def _blocks(rows: np.ndarray, y: Tensor) -> list[Tensor]:
    """Row numbers, on the device of `y`, in blocks of BLOCK elements."""
    step = max(1, BLOCK // max(1, math.prod(y.shape[1:])))
    numbers = torch.from_numpy(np.ascontiguousarray(rows)).to(y.device)
    return [numbers[start : start + step] for start in range(0, len(rows), step)]


def _joined(parts: list[Tensor], heads: int) -> np.ndarray:
    if not parts:
        return np.zeros((0, heads))
    return np.asarray(torch.cat(parts).cpu().numpy())
