"""An instruction that a warp hands to the machine, as the checker is told of it."""

from __future__ import annotations

from typing import NamedTuple

from gdnbench.sim.checker.lanes import Part, lane_of, part_of
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Warp
from gdnbench.sim.ptx.ir import Instruction


class Issued(NamedTuple):
    """`sources` as for `Cta.issue`."""

    warp: Warp
    ins: Instruction
    lanes: Lanes
    sources: tuple[Argument, ...]

    @property
    def part(self) -> Part:
        return part_of(self.lanes, self.warp.exists)

    @property
    def lane(self) -> int:
        return lane_of(self.lanes)
