# SPDX-License-Identifier: Apache-2.0
"""Instruction classes by which a profile sums its counts."""

from __future__ import annotations

from gdnbench.sim.ptx import isa
from gdnbench.sim.ptx.forms import OTHER
from gdnbench.sim.ptx.instructions import ROWS


def counter_class(counted: str) -> str:
    """The class of a counter name of `machine.counters.counted_as`: an opcode, with its first type where the
    type decides the class. "other" for hints, launch control and unknown opcodes."""
    op, types = isa.split(counted)
    fitting = [row for row in ROWS.get(op, ()) if not types or (row.types and types[0] in row.types[0])]
    return fitting[0].traits.cls if fitting else OTHER
