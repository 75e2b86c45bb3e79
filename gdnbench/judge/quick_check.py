# SPDX-License-Identifier: Apache-2.0
"""Checks whether a tensor is within the bound on the device where it lies; computes nothing else.

The limits are those of `gdnbench.judge.tensor`. A full comparison computes every element's ULP distance on
the CPU, which takes minutes for the states of a few hundred sequences; timing only needs to know whether the
result is right. Tensors with NaN or infinity fall back to the full comparison.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gdnbench.judge.block_stats import Peak, Sum
from gdnbench.judge.location import locate
from gdnbench.judge.metrics import Comparison, Groups, NonFinite, Worst
from gdnbench_kernels.contract import Partition, Region

BLOCK = 1 << 25
"""Elements at once: their fp64 copies take a few hundred MB."""


def quick_errors(x: Tensor, y: Tensor, partition: Partition, axes: tuple[str, ...]) -> Comparison | None:
    """The errors of `x` against `y` (fp64) over the rows of `partition`; both on one device and of one shape.

    As `metrics.compare`, but ULP distances and unequal bits are 0. None if an element is not finite, or if
    the partition counts parts of rows.
    """
    if not x.is_floating_point() or any(region.tokens is not None for region in partition.regions):
        return None
    regions = tuple(sorted(partition.regions, key=lambda region: region.start))
    axis = partition.head_axis
    heads = 1 if axis is None else x.shape[axis]
    sums = np.zeros((len(Sum), len(regions), heads))
    peaks = np.zeros((len(Peak), len(regions), heads))
    farthest, worst = 0.0, None
    step = max(1, BLOCK // max(1, x[:1].numel()))
    owner = _owners(regions, len(x))
    for start in range(0, len(x), step):
        rows = slice(start, min(start + step, len(x)))
        exact = y[rows].double()
        d = x[rows].double() - exact
        if not bool(torch.isfinite(d).all()):
            return None
        magnitude = d.abs()
        others = [dim for dim in range(1, d.dim()) if dim != axis]
        parts = {Sum.ABS: magnitude, Sum.DD: d * d, Sum.YY: exact * exact, Sum.DY: d * exact}
        own = owner[rows]
        counted = own >= 0
        for name, values in parts.items():
            np.add.at(sums[name], own[counted], _by_head(values.sum(others), heads)[counted])
        most = _by_head(magnitude.amax(others) if others else magnitude, heads)
        for peak in (Peak.ABS, Peak.SCORE):
            np.maximum.at(peaks[peak], own[counted], most[counted])
        if counted.any() and (found := float(most[counted].max())) > farthest:
            farthest = found
            row = int(np.where(counted, most.max(1), -1.0).argmax())
            inner = [int(i) for i in np.unravel_index(int(magnitude[row].argmax()), tuple(d.shape[1:]))]
            at = (start + row, *inner)
            worst = Worst(locate(at, partition, axes), float(x[at].double()), float(y[at]), None)
    elements = x[:1].numel() * sum(region.stop - region.start for region in regions)
    lengths = np.array([region.stop - region.start for region in regions], dtype=np.float64)
    sums[Sum.COUNT] = (lengths * (x[:1].numel() // max(heads, 1)))[:, None]
    groups = Groups(regions, sums, peaks)
    return Comparison(elements, 0, groups.total(), groups, NonFinite(0, 0, 0, None), (), worst)


def largest_magnitude(y: Tensor, partition: Partition) -> float:
    """max |y| over the rows of `partition`."""
    parts = [y[region.start : region.stop] for region in partition.regions]
    return max((float(part.abs().max()) for part in parts if part.numel()), default=0.0)


def has_overflow(y: Tensor, dtype: torch.dtype) -> bool:
    """Whether an element of `y` (fp64) is not finite once rounded to `dtype`."""
    return not bool(torch.isfinite(y.to(dtype).double()).all())  # double: fp8 lacks isfinite


def _owners(regions: tuple[Region, ...], rows: int) -> np.ndarray:
    """The region of each row; -1 for padding."""
    owner = np.full(rows, -1)
    for index, region in enumerate(regions):
        owner[region.start : region.stop] = index
    return owner


def _by_head(values: Tensor, heads: int) -> np.ndarray:
    """[rows] or [rows, heads] as [rows, heads] on the CPU."""
    return np.asarray(values.reshape(-1, heads).cpu().numpy())
