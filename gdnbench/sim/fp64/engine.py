# SPDX-License-Identifier: Apache-2.0
"""The interpreter with shadows: each step also writes those of its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.fp64.arithmetic import Rule
from gdnbench.sim.fp64.constants import Constants
from gdnbench.sim.fp64.registers import RegisterShadows
from gdnbench.sim.fp64.rules import is_refused, rule_of
from gdnbench.sim.fp64.tensor import tensor_load, tensor_store, write_loaded
from gdnbench.sim.interpreter.operation import Step, Thread
from gdnbench.sim.interpreter.program import Collective, Entry, Machine, Plain, Program, prepare
from gdnbench.sim.interpreter.warp import Group, InterpretedWarp
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Lanes, Results, Warp, WarpEngine
from gdnbench.sim.ptx.ir import Kernel, Register

_LOADS = ("tcgen05.ld", "tcgen05.ld.red")


class ShadowEngine:
    """Seam: `Engine`. Raises UnsupportedError for a kernel with products that have no rule."""

    def __init__(self, kernel: Kernel, constants: Constants) -> None:
        constants.begin_kernel(kernel)
        self._constants = constants
        for ins in kernel.instructions:
            if is_refused(ins):
                raise UnsupportedError(f"--precision fp64 of {ins.name}", ins.place)
        plain = prepare(kernel)
        self._program = replace(plain, entries=tuple(map(_shadowed, plain.entries)))

    def warps(self, cta: Cta) -> Sequence[WarpEngine]:
        return [
            ShadowWarp(self._program, cta, cta.warp(index), self._constants)
            for index in range(cta.launch.warps)
        ]


def _shadowed(entry: Entry) -> Entry:
    if not isinstance(entry, Plain | Collective):
        return entry
    rule = rule_of(entry.ins)
    return entry if rule is None else replace(entry, step=_with_shadows(rule, entry.step))


def _with_shadows(rule: Rule, step: Step) -> Step:
    def shadowed(thread: Thread, lanes: Lanes) -> None:
        assert isinstance(thread, ShadowWarp)
        rule(thread, thread.shadows, lanes, step)

    return shadowed


class ShadowWarp(InterpretedWarp):
    """A warp whose registers have shadows."""

    def __init__(self, program: Program, cta: Cta, warp: Warp, constants: Constants) -> None:
        super().__init__(program, cta, warp)
        self.shadows = RegisterShadows(self.registers, constants)
        warp.shadows = self.shadows

    def _issue(self, group: Group, entry: Machine, active: Lanes) -> None:
        op = entry.ins.op
        if op == "tcgen05.st":
            sources = entry.arguments(self)
            super()._issue(group, entry, active)
            tensor_store(self.cta, self.warp, entry.ins, active, sources, self.shadows)
        elif op in _LOADS:
            sources = entry.arguments(self)
            super()._issue(group, entry, active)
            loaded = tensor_load(self.cta, self.warp, entry.ins, active, sources)
            write_loaded(self.shadows, entry.ins, active, loaded)
        else:
            super()._issue(group, entry, active)

    def _write(self, entry: Machine, lanes: Lanes, results: Results) -> None:
        super()._write(entry, lanes, results)
        for dest in entry.dests:
            if isinstance(dest, Register):
                self.shadows.clear(dest.index, lanes)
