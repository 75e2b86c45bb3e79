# SPDX-License-Identifier: Apache-2.0
"""The zero-column mask descriptor of tcgen05.mma.ws: which columns of B count as zero, and where B begins.

PTX ISA 9.7.16.4.3 (table 45). The columns of D are in 128/M banks, and each bank has its own start. A bank's
mask repeats two spans, `use` columns of B and `skip` zeros, or the other way round if its first-span bit is
set; the first columns of the first span may be left out. The table and the examples exchange the names of the
spans: the descriptor's "skip span" counts zeros in every example, and so it does here.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.tcgen05_descriptor import bit_field
from gdnbench.sim.machine.tmem import LANES

NO_MASK = 0  # the descriptor's value if the operand is left out


@cache
def zero_columns(bits: int, m: int, n: int) -> npt.NDArray[np.bool_] | None:
    """Which of the N columns are zero, bool[n]; None if none is."""
    name = f"zero-column mask descriptor 0x{bits:016x}"
    if bit_field(bits, 36, 3) or bit_field(bits, 62, 2):
        raise KernelFault(FaultKind.DESCRIPTOR, f"{name}: bits 36..38 and 62..63 must be zero")
    if not bit_field(bits, 39, 1):
        return None
    skip, use = bit_field(bits, 40, 8) + 1, bit_field(bits, 48, 8) + 1
    banks = LANES // m
    found = np.zeros((banks, n // banks), bool)
    for bank, columns in enumerate(found):
        start, zeros_first = bit_field(bits, 8 * bank, 8), bit_field(bits, 32 + bank, 1)
        if start >= (skip if zeros_first else use):
            raise UnsupportedError(f"{name}: start count {start} of bank {bank} beyond its first span")
        position = (np.arange(len(columns)) + start) % (skip + use)
        columns[:] = position < skip if zeros_first else position >= use
    zeros = found.reshape(n)
    zeros.setflags(write=False)
    return zeros


def column_shift(bits: int, m: int) -> int:
    """How many columns of B come before the first that is used."""
    shift, most = bit_field(bits, 56, 6), 16 if m == 32 else 32
    if shift > most:
        raise KernelFault(
            FaultKind.DESCRIPTOR,
            f"zero-column mask descriptor 0x{bits:016x}: "
            f"a shift of {shift} columns; M = {m} has {most} at most",
        )
    return shift
