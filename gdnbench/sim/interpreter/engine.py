# SPDX-License-Identifier: Apache-2.0
"""The plain engine: the readable definition of every instruction, in NumPy, 32 lanes wide."""

from __future__ import annotations

from collections.abc import Sequence

from gdnbench.sim.interpreter.program import prepare as prepare_program
from gdnbench.sim.interpreter.warp import InterpretedWarp
from gdnbench.sim.machine.cta import Cta, MachineConfig
from gdnbench.sim.machine.engine_interface import WarpEngine
from gdnbench.sim.ptx.ir import Kernel, Module


class Interpreter:
    """A kernel made ready to run. Seam: `Engine`."""

    def __init__(self, kernel: Kernel) -> None:
        self.program = prepare_program(kernel)

    def warps(self, cta: Cta) -> Sequence[WarpEngine]:
        """The warps of one CTA, at their first instruction."""
        return [InterpretedWarp(self.program, cta, cta.warp(index)) for index in range(cta.launch.warps)]


def prepare(module: Module, kernel: Kernel, config: MachineConfig) -> Interpreter:
    """What `run_ptx` calls."""
    return Interpreter(kernel)
