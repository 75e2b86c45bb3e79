"""An instruction that a warp hands to the machine, as the checker is told of it."""

from __future__ import annotations

from typing import NamedTuple

from gdnbench.sim.machine.seam import Argument, Lanes, Warp
from gdnbench.sim.ptx.ir import Instruction


class Issued(NamedTuple):
    """`sources` as for `Cta.issue`."""

    warp: Warp
    ins: Instruction
    lanes: Lanes
    sources: tuple[Argument, ...]
