# SPDX-License-Identifier: Apache-2.0
"""The errors of one tensor by (sequence, chunk) and head, with the worst element of each: the data of a
heatmap.

Grids are kept on request only: a tensor's metrics are a few numbers, but its grid grows with chunks and
heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gdnbench.judge.block_stats import Peak
from gdnbench.judge.metrics import Comparison
from gdnbench.judge.row_source import RowSource
from gdnbench_kernels.contract import Partition, Region

MOST_CELLS = 1 << 16
"""Largest grid: 65,536 tokens in chunks of 64, times 64 heads. Of a larger one the regions with the largest
errors are kept, and `left_out` counts the others."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Errors by region and head; R regions, H heads (1 for a tensor without a head axis).

    - rms, rms_reference, max_abs: fp32 [R, H], of x - y, of y, and the largest |x - y|, over elements finite
      on both sides
    - torch_rms: the same as rms for the same-dtype torch kernel, or None
    - nonfinite: int32 [R, H], elements that are finite on one side only, or infinities of different signs
    - worst: int32 [R, H, ndim], coordinates of the first of those, else of the largest |x - y|, with rows as
      the caller numbers them; -1 if no element counts
    - x, y: fp32 [R, H], the two values at `worst`
    - left_out: number of regions not kept, see MOST_CELLS
    - of_limit: fp32 [R, H], error / limit of each cell, over 1 where the cell exceeds its limit; None where
      no limit has a size, and in a grid that was read back
    """

    regions: tuple[Region, ...]
    axes: tuple[str, ...]
    rms: np.ndarray
    rms_reference: np.ndarray
    torch_rms: np.ndarray | None
    max_abs: np.ndarray
    nonfinite: np.ndarray
    worst: np.ndarray
    x: np.ndarray
    y: np.ndarray
    left_out: int = 0
    of_limit: np.ndarray | None = None

    @property
    def heads(self) -> int:
        return int(self.rms.shape[1])


def grid_of(
    x: RowSource,
    y: RowSource,
    own: Comparison,
    torchs: Comparison | None,
    partition: Partition,
    axes: Sequence[str],
    rows: Sequence[int] | None,
    of_limit: np.ndarray | None = None,
) -> Grid:
    """The grid of `own`, the comparison of `x` with `y` over `partition`; `torchs` is the comparison of
    torch's kernel.

    `rows`: the caller's row numbers, if they are not the positions. `of_limit`: error / limit by region and
    head.
    """
    groups = own.groups
    rms = groups.rms()
    ranks = np.where(groups.nonfinite() > 0, np.inf, rms)
    kept = _furthest_off(ranks, max(1, MOST_CELLS // max(1, rms.shape[1])))
    cells = [_cells(x, y, groups.regions[number], partition.head_axis) for number in kept]
    worst = np.stack([cell.worst for cell in cells]) if cells else np.zeros((0, 1, len(x.shape)), np.int32)
    if rows is not None:
        slots = np.asarray(rows, dtype=np.int32)
        worst[..., 0] = np.where(worst[..., 0] < 0, -1, slots[worst[..., 0]])
    pairs = _single(np.stack([cell.values for cell in cells])) if cells else np.zeros((0, 2, 1), np.float32)
    return Grid(
        regions=tuple(groups.regions[number] for number in kept),
        axes=tuple(axes),
        rms=_single(rms[kept]),
        rms_reference=_single(groups.rms_reference()[kept]),
        torch_rms=None if torchs is None else _single(torchs.groups.rms()[kept]),
        max_abs=_single(groups.peaks[Peak.ABS][kept]),
        nonfinite=np.stack([cell.nonfinite for cell in cells]) if cells else np.zeros((0, 1), np.int32),
        worst=worst,
        x=pairs[:, 0],
        y=pairs[:, 1],
        left_out=len(groups.regions) - len(kept),
        of_limit=None if of_limit is None else _single(of_limit[kept]),
    )


def _single(values: np.ndarray) -> np.ndarray:
    """As fp32; values beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _furthest_off(ranks: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the `most` regions with the largest ranks of a head, ascending."""
    if len(ranks) <= most:
        return np.arange(len(ranks))
    return np.sort(np.argsort(-ranks.max(axis=1), kind="stable")[:most])


@dataclass(frozen=True, slots=True)
class _Cells:
    """The heads of one region: nonfinite int32 [H], worst int32 [H, ndim], values fp64 [2, H]."""

    nonfinite: np.ndarray
    worst: np.ndarray
    values: np.ndarray


def _cells(x: RowSource, y: RowSource, region: Region, head_axis: int | None) -> _Cells:
    pair = torch.stack([side.read_rows(region.start, region.stop).double() for side in (x, y)])
    lines = pair.unsqueeze(1) if head_axis is None else pair.movedim(head_axis + 1, 1)  # [2, H, rows, ...]
    if region.tokens is not None:  # [1, Hv, C, ...]: tokens past the last do not count
        lines = lines[:, :, :, : region.tokens]
    heads, inner = lines.shape[1], tuple(lines.shape[2:])
    a, b = flat = lines.reshape(2, heads, math.prod(inner))
    ndim = len(inner) + (head_axis is not None)
    if not flat.numel():
        return _Cells(
            np.zeros(heads, np.int32), np.full((heads, ndim), -1, np.int32), np.full((2, heads), np.nan)
        )
    finite_a, finite_b = torch.isfinite(a), torch.isfinite(b)
    alone = (finite_a != finite_b) | (torch.isinf(a) & torch.isinf(b) & (a != b))
    off = torch.where(alone, torch.inf, torch.where(finite_a & finite_b, (a - b).abs(), -1.0))
    at = off.argmax(dim=1)
    index = np.stack(np.unravel_index(at.numpy(), inner), axis=1).astype(np.int32)
    index[:, 0] += region.start
    if head_axis is not None:
        index = np.insert(index, head_axis, np.arange(heads), axis=1)
    index[(off.amax(dim=1) < 0).numpy()] = -1
    values = flat.gather(2, at.expand(2, heads).unsqueeze(2)).squeeze(2).numpy()
    return _Cells(alone.sum(dim=1).numpy().astype(np.int32), index, values)
