# SPDX-License-Identifier: Apache-2.0
"""Which TMEM cell each register of each thread holds in `tcgen05.ld` and `tcgen05.st`.

PTX ISA 9.7.16.2.3.1 draws the fragments and 9.7.16.8.2 the packing; CUTLASS's `copy_traits_sm100.hpp` has the
same numbers (DstLayout of SM100_TMEM_LOAD_*). Lanes count from the first lane that the instruction accesses,
columns from the column of its address. For thread t and register r:

    32x32b    lane t                     column r
    16x64b    lane 8 (t%2) + t/4         column 2 r + (t/2)%2
    16x128b   lane t/4 + 8 (r%2)         column 4 (r/2) + t%4
    16x256b   lane t/4 + 8 ((r/2)%2)     column 8 (r/4) + 2 (t%4) + r%2
    16x32bx2  lane t%16                  column r, threads 16-31 in the second half at address + offset

`.pack::16b` and `.unpack::16b` widen every column c to the low halves of columns 2c (low) and 2c + 1 (high).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.engine_interface import LANES

Table = npt.NDArray[np.intp]

# Registers of a thread and columns of TMEM, per repeat.
REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
_COLUMNS = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}
MAX_REGISTERS = 128


@dataclass(frozen=True, slots=True)
class Fragment:
    """`lane` and `column` are [32 threads, registers]; `second` marks the second half of 16x32bx2.

    `lanes` and `columns` are the extents of one half.
    """

    lane: Table
    column: Table
    second: npt.NDArray[np.bool_]
    lanes: int
    columns: int

    @property
    def registers(self) -> int:
        return int(self.lane.shape[1])


@cache
def fragment(shape: str, repeat: int) -> Fragment:
    """The cells of `tcgen05.{ld,st}.<shape>.x<repeat>`, without packing. Raises UnsupportedError for a repeat
    that the PTX ISA does not list for the shape."""
    registers = REGISTERS[shape] * repeat
    if not 1 <= registers <= MAX_REGISTERS:
        raise UnsupportedError(
            f".{shape}.x{repeat}, which needs {registers} registers; {MAX_REGISTERS} are possible"
        )
    t, r = np.meshgrid(np.arange(LANES), np.arange(registers), indexing="ij")
    second = np.zeros(t.shape, bool)
    match shape:
        case "32x32b":
            lane, column = t, r
        case "16x64b":
            lane, column = 8 * (t % 2) + t // 4, 2 * r + t // 2 % 2
        case "16x128b":
            lane, column = t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4
        case "16x256b":
            lane, column = t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2
        case _:
            lane, column, second = t % 16, r, t >= 16
    for table in (lane, column, second):
        table.setflags(write=False)
    return Fragment(lane, column, second, int(lane.max()) + 1, _COLUMNS[shape] * repeat)
