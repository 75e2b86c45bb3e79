"""mma.sync for the compiled engine (placeholder until the fragments are in)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.seam import Argument, Lanes, Results
from gdnbench.sim.ptx.ir import Instruction

if TYPE_CHECKING:
    from gdnbench.sim.compiler.engine import CompiledWarp


def execute(warp: CompiledWarp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> Results:
    raise UnsupportedError(ins.name, ins.place)
