# SPDX-License-Identifier: Apache-2.0
"""The scales of a block-scaled tcgen05.mma in TMEM.

PTX ISA 9.0, 9.7.16.10.7: the scales of a row are in one 32-bit cell, from the byte that the instruction
descriptor names on. Row r is in column r / 32 after the first and in lane r % 32 of each of the four
partitions of 32 lanes: the scales are duplicated to all partitions (CUTLASS `sm100_blockscaled_layout.hpp`,
`SfAtom`, and copies 32x128b.warpx4).

Each CTA of a pair has the scales of its own rows of A, and those of all columns of B. Where D is in two banks
(M = 128), the scales of B are too: of the first half of the columns in lanes 0 to 63, of the second in 64 to
127, duplicated to the two partitions of the bank (CUTLASS `mma_traits_sm100_frag.hpp`,
`ScaleFactorDuplicated2by2`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.footprint import Footprint, TmemBlock
from gdnbench.sim.machine.tmem import COLUMNS, LANES, QUARTER, TensorMemory, column_of, lane_of

# CUTLASS writes the scale factor id to the upper two bits of the address too.
_ID_SHIFT = 30
_LANE_MASK = (1 << _ID_SHIFT - 16) - 1


@dataclass(frozen=True, slots=True)
class ScaleVector:
    """The scales of `rows` rows of matrix `name`, `count` a row, from `byte` of the cells from column `first`
    on, in each of `banks` banks of lanes."""

    name: str
    rows: int
    count: int
    first: int
    byte: int
    banks: int = 1

    @property
    def last(self) -> int:
        """The column after the last."""
        return self.first - -self.rows // QUARTER

    def reads(self) -> tuple[Footprint, ...]:
        """The memory that a product reads."""
        full, rest = divmod(self.rows, QUARTER)
        blocks = [TmemBlock(_lanes(QUARTER), self.first, self.first + full)] if full else []
        if rest:
            blocks.append(TmemBlock(_lanes(rest), self.first + full, self.last))
        return tuple(blocks)

    def require(self, tmem: TensorMemory) -> None:
        """Raises KernelFault unless its columns are allocated."""
        tmem.require(self.first, self.last, f"the scales of {self.name}")

    def read(self, tmem: TensorMemory) -> npt.NDArray[np.uint8]:
        """The codes, [banks x rows, count]."""
        cells = _cells(self.rows, self.banks) + self.first
        if tmem.track and not tmem.valid.reshape(-1).take(cells).all():
            columns = f"{self.first}..{self.last - 1}"
            message = f"the scales of {self.name} in TMEM columns {columns} were never all written"
            tmem.skip(KernelFault(FaultKind.UNINITIALISED, message))
        words = tmem.flat.take(cells)
        codes: npt.NDArray[np.uint8] = words.view(np.uint8).reshape(*words.shape, 4)[
            ..., self.byte : self.byte + self.count
        ]
        found: npt.NDArray[np.uint8] = codes[0]
        if (codes != found).any():
            partition, row, _ = np.argwhere(codes != found)[0].tolist()
            lanes = cells[[0, partition], row] // COLUMNS
            message = (
                f"the scales of {self.name}, row {row}, differ between TMEM lanes {lanes[0]} and "
                f"{lanes[1]}: each partition of {QUARTER} lanes needs them all"
            )
            raise KernelFault(FaultKind.DESCRIPTOR, message)
        return found


def scale_vector(name: str, address: int, byte: int, rows: int, count: int, banks: int = 1) -> ScaleVector:
    """The scales at a TMEM address, of `rows` rows in each bank. Raises KernelFault if it is illegal."""
    lane, upper = lane_of(address) & _LANE_MASK, address >> _ID_SHIFT
    if lane:
        raise KernelFault(
            FaultKind.MISALIGNED, f"the scales of {name} start at lane {lane} of TMEM, not at 0"
        )
    if upper not in (0, byte):
        raise KernelFault(
            FaultKind.DESCRIPTOR,
            f"the upper bits of the address of the scales of {name} give scale factor id {upper}, the "
            f"instruction descriptor {byte}",
        )
    return ScaleVector(name, rows, count, column_of(address), byte, banks)


@cache
def _cells(rows: int, banks: int) -> npt.NDArray[np.intp]:
    """The cells of every row of every bank from column 0 on, [partitions of a bank, banks x rows]."""
    bank, row = np.divmod(np.arange(banks * rows), rows)
    lanes = np.arange(0, LANES // banks, QUARTER)[:, None] + LANES // banks * bank + row % QUARTER
    cells: npt.NDArray[np.intp] = lanes * COLUMNS + row // QUARTER
    cells.setflags(write=False)
    return cells


@cache
def _lanes(rows: int) -> npt.NDArray[np.bool_]:
    """The lanes of the first `rows` rows of a column."""
    lanes = np.arange(LANES) % QUARTER < rows
    lanes.setflags(write=False)
    return lanes
