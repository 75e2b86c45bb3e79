# SPDX-License-Identifier: Apache-2.0
"""The interpreter with value recording: its warps report every result, for the CTAs that are selected.

Other CTAs run on the engine that they would run on anyway. Steps are wrapped once for a kernel, and only if
something is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gdnbench.sim.interpreter.operation import Step, Thread
from gdnbench.sim.interpreter.program import Collective, Entry, Machine, Plain, Program, prepare
from gdnbench.sim.interpreter.warp import InterpretedWarp
from gdnbench.sim.machine.cta import Cta, Engine
from gdnbench.sim.machine.engine_interface import Lanes, Results, Warp, WarpEngine
from gdnbench.sim.ptx.ir import Instruction, Kernel
from gdnbench.sim.value_trace import Recorder, traced_registers


class TracingEngine:
    """Seam: `Engine`. The CTAs that `recorder` asks for are interpreted and recorded, the others are
    `other`'s."""

    def __init__(self, kernel: Kernel, recorder: Recorder, other: Engine) -> None:
        self._recorder = recorder
        self._other = other
        self._rows = {
            ins.pc: [register.index for register in traced_registers(ins)]
            for ins in kernel.instructions
            if recorder.selection.includes(ins) and traced_registers(ins)
        }
        self._plain = prepare(kernel)
        self._traced = replace(self._plain, entries=tuple(map(self._wrapped, self._plain.entries)))

    def warps(self, cta: Cta) -> Sequence[WarpEngine]:
        selection = self._recorder.selection
        if not selection.includes_cta(cta.index):
            return self._other.warps(cta)
        found: list[WarpEngine] = []
        for index in range(cta.launch.warps):
            if selection.includes_warp(index):
                found.append(_TracedWarp(self._traced, cta, cta.warp(index), self))
            else:
                found.append(InterpretedWarp(self._plain, cta, cta.warp(index)))
        return found

    def record(self, warp: _TracedWarp, ins: Instruction, lanes: Lanes) -> None:
        """`ins` has been executed by `lanes`."""
        rows = self._rows.get(ins.pc)
        if rows is None:
            return
        occurrence = warp.occurrences.get(ins.pc, 0)
        warp.occurrences[ins.pc] = occurrence + 1
        mask = int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")
        cta, index = warp.cta.index, warp.warp.index
        self._recorder.add_event(cta, index, ins.pc, occurrence, mask, warp.registers.bits[rows])

    def _wrapped(self, entry: Entry) -> Entry:
        if isinstance(entry, Plain | Collective) and entry.ins.pc in self._rows:
            return replace(entry, step=self._recorded(entry.ins, entry.step))
        return entry

    def _recorded(self, ins: Instruction, step: Step) -> Step:
        def traced(thread: Thread, lanes: Lanes) -> None:
            step(thread, lanes)
            assert isinstance(thread, _TracedWarp)
            self.record(thread, ins, lanes)

        return traced


class _TracedWarp(InterpretedWarp):
    """Records what the machine delivers too. Results of a wgmma come with its wait: they are seen where they
    are used."""

    def __init__(self, program: Program, cta: Cta, warp: Warp, engine: TracingEngine) -> None:
        super().__init__(program, cta, warp)
        self.occurrences: dict[int, int] = {}  # by pc; they end with the warp
        self._engine = engine

    def _write(self, entry: Machine, lanes: Lanes, results: Results) -> None:
        super()._write(entry, lanes, results)
        self._engine.record(self, entry.ins, lanes)
