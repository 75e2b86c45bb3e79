# SPDX-License-Identifier: Apache-2.0
"""The cells of an error heatmap: one number for each head and chunk, and its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gdnbench.bits import logical
from gdnbench.judge.grid import Grid
from gdnbench.judge.limits import unit_roundoff
from gdnbench_kernels.contract import Region


class Unit(StrEnum):
    """What the numbers of cells are."""

    LIMIT = "error / limit"
    TORCH = "RMS error / torch's"
    VALUE = "RMS error / RMS of the value"


TORCHS_LIMIT = 2.0
"""Of torch's error: the limit of the default rule without rounding."""


@dataclass(frozen=True, slots=True)
class Cells:
    """`values` fp64 [H, R], heads by regions: 0 for no error, infinite if an element is not finite on one
    side only.

    `limit`: up to where a value is no more than imprecise. 1 of errors over limits, 2 of errors over torch's;
    of errors over values the unit roundoff, which rounding alone may cost.
    """

    values: np.ndarray
    regions: tuple[Region, ...]
    unit: Unit
    limit: float
    left_out: int = 0

    @property
    def label(self) -> str:
        return str(self.unit)

    def place(self, head: int, column: int) -> str:
        """`sequence 0 chunk 3 head 1`."""
        region = self.regions[column]
        chunk = "" if region.chunk is None else f" chunk {region.chunk}"
        return f"sequence {region.sequence}{chunk} head {head}"

    def worst(self) -> tuple[int, int] | None:
        """Head and column of the largest value; None if there is no error."""
        if not self.values.size or not self.values.max() > 0:
            return None
        head, column = np.unravel_index(int(self.values.argmax()), self.values.shape)
        return int(head), int(column)

    @property
    def column(self) -> str:
        """What a column is: chunk or sequence."""
        return "sequence" if all(region.chunk is None for region in self.regions) else "chunk"

    @property
    def sequences(self) -> list[int]:
        """Columns at which a sequence begins."""
        return [
            column
            for column, region in enumerate(self.regions)
            if column == 0 or region.sequence != self.regions[column - 1].sequence
        ]


def cells_of(grid: Grid, dtype: str) -> Cells:
    """The cells of a tensor of the logical `dtype`; raises what `gdnbench.bits.logical` raises for an unknown
    dtype.

    Values are relative to the limits of the cells if the grid has them; else to torch's error if it is known
    and not zero everywhere; in cells where torch's error is zero, relative to the rounding error u rms(y),
    with unit roundoff u.
    """
    error, exact = grid.rms.astype(np.float64), grid.rms_reference.astype(np.float64)
    unit, _ = unit_roundoff(logical(dtype).torch_dtype)
    measure, limit = Unit.VALUE, unit
    with np.errstate(divide="ignore", invalid="ignore"):
        if grid.of_limit is not None:
            measure, limit = Unit.LIMIT, 1.0
            values = grid.of_limit.astype(np.float64)
        else:
            if grid.torch_rms is not None and (grid.torch_rms > 0).any():
                measure, limit = Unit.TORCH, TORCHS_LIMIT
                torchs = grid.torch_rms.astype(np.float64)
                exact = np.where(torchs > 0, torchs, unit * exact)
            values = np.where(error == 0, 0.0, error / exact)
    values[np.isnan(values) | (grid.nonfinite > 0)] = np.inf
    return Cells(values.T, grid.regions, measure, limit, grid.left_out)


def max_pooled(values: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, int, int]:
    """`values` [H, R] reduced by the maximum of blocks to at most `rows` x `columns`, and the block's rows
    and columns."""
    down, across = (
        max(1, -(-size // most)) for size, most in zip(values.shape, (rows, columns), strict=True)
    )
    padded = np.pad(
        values, [(0, -size % each) for size, each in zip(values.shape, (down, across), strict=True)]
    )
    blocks = padded.reshape(padded.shape[0] // down, down, padded.shape[1] // across, across)
    return blocks.max(axis=(1, 3)), down, across
