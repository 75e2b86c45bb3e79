# SPDX-License-Identifier: Apache-2.0
"""Reports to a CTA's checker which registers a warp's compiled code used before they had their value.

Compiled code notes such uses in its records (`shadow_registers`). For instructions that Python executes this
module checks the sources, and tracks the registers that they write at once or later.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler.compiled_warp import CompiledWarp
from gdnbench.sim.compiler.layout import slot_bytes
from gdnbench.sim.compiler.runtime_calls import lanes_mask
from gdnbench.sim.compiler.shadow_registers import RECORD, Shadows
from gdnbench.sim.compiler.uninitialized_analysis import Lack
from gdnbench.sim.machine.engine_interface import LANES, Lanes, RegisterList
from gdnbench.sim.machine.observer import Checker, Writer
from gdnbench.sim.ptx.forms import Until
from gdnbench.sim.ptx.ir import Instruction, Register

Bytes = npt.NDArray[np.uint8]

_FIRST, _LAST = 128, 255  # numbers of flights: bit 7 is set, so prmt's copy of a sign stays nonzero


class RegisterWatch:
    """The watch of one warp. `flights` are the operations in flight by number; `owners` are those of
    wgmma."""

    def __init__(self, shadows: Shadows, warp: CompiledWarp, checker: Checker) -> None:
        self._shadows = shadows
        self._warp = warp.warp
        self._checker = checker
        self._cells = warp.cells
        self._notes = shadows.notes // 4
        size = len(shadows.uses) * RECORD.itemsize
        self._records = warp.state[shadows.records : shadows.records + size].view(RECORD)
        self._flying = warp.state[slice(*shadows.flying)]
        slots = warp.layout.slots
        self._rows: dict[tuple[int, Lack], Bytes] = {
            (index, lack): warp.state[slots[shadow.index] : slots[shadow.index] + slot_bytes(shadow)]
            for lack, of in shadows.of.items()
            for index, shadow in of.items()
        }
        self._flights: dict[int, Writer] = {}
        self._owners: dict[object, int] = {}
        self._next = _FIRST
        self._loads = 0
        self._present: Instruction | None = None

    def report_uses(self) -> None:
        """Report the uses that compiled code has noted, in order."""
        if not self._cells[self._notes]:
            return
        self._cells[self._notes] = 0
        noted = np.flatnonzero(self._records["when"])
        noted = noted[np.argsort(self._records["when"][noted], kind="stable")]
        for index in noted.tolist():
            use = self._shadows.uses[index]
            self._tell(use.ins, use.register, use.lack, int(self._records["flight"][index]))
        self._records[noted] = 0

    def _tell(self, ins: Instruction, register: Register, lack: Lack, flight: int) -> None:
        if lack is not Lack.FLYING:
            computed = lack is Lack.COMPUTED
            self._checker.on_register_use(self._warp, ins, register, None, computed=computed)
            return
        number = max(flight.to_bytes(8, "little"))
        writer = self._flights.get(number)
        if writer is None:  # an earlier use has ended it
            return
        loads = writer.ins.form.until is Until.TENSOR_LOAD
        if loads or not ins.form.chooses:
            self._checker.on_register_use(self._warp, ins, register, writer)
        if loads and not ins.form.chooses:
            self._deliver(number)

    # Instructions that Python executes

    def check_sources(self, ins: Instruction, lanes: Lanes) -> None:
        """Python is about to execute a service: check its sources."""
        self._present = ins
        for use in self._shadows.by_pc.get(ins.pc, ()):
            if ins.form.until is not Until.WGMMA_GROUP or use.register not in ins.written():
                self._look(use.register, use.lack, lanes)

    def _look(self, register: Register, lack: Lack, lanes: Lanes) -> None:
        assert self._present is not None
        row = self._rows.get((register.index, lack))
        if row is None:
            return
        if register.bits == 1:
            word = int(row.view(np.uint32)[0])
            lacking = bool(lanes_mask(lanes) & (~word if lack is Lack.UNWRITTEN else word))
            values = row[:0]
        else:
            values = row.reshape(LANES, -1)[lanes]
            lacking = bool((values != (0xFF if lack is Lack.UNWRITTEN else 0)).any())
        if lacking:
            flight = int(values.max()) if lack is Lack.FLYING else 0
            self._tell(self._present, register, lack, flight)

    def mark_results(self, ins: Instruction, lanes: Lanes) -> None:
        """Python has executed a service: mark its destinations."""
        if ins.form.until is Until.WGMMA_GROUP:
            return  # see `mark_in_flight`
        number = 0
        if ins.form.until is Until.TENSOR_LOAD:
            number = self._fly(Writer(ins, self._loads))
            self._loads += 1
        elif ins.form.ends is Until.TENSOR_LOAD:
            for other in [
                n for n, writer in self._flights.items() if writer.ins.form.until is Until.TENSOR_LOAD
            ]:
                self._deliver(other)
        for register in ins.written():
            if isinstance(register, Register):
                self._set(register, lanes, number)

    def _set(self, register: Register, lanes: Lanes, number: int) -> None:
        """Mark a register as written, or as to be written by a flight."""
        for lack, byte in ((Lack.UNWRITTEN, 0xFF), (Lack.COMPUTED, 0), (Lack.FLYING, number)):
            row = self._rows.get((register.index, lack))
            if row is None:
                continue
            if register.bits == 1:
                word, mask = row.view(np.uint32), lanes_mask(lanes)
                word[0] = int(word[0]) & ~mask | (mask if byte else 0)
            else:
                row.reshape(LANES, -1)[lanes] = byte

    def _fly(self, writer: Writer) -> int:
        """A number for a flight; if none is free, the oldest flight's."""
        number = self._next
        self._next = _FIRST if number == _LAST else number + 1
        if number in self._flights:
            self._deliver(number)
        self._flights[number] = writer
        return number

    def _deliver(self, number: int) -> None:
        del self._flights[number]
        self._flying[self._flying == number] = 0

    # wgmma, see `RegisterAccess`

    def require_written(self, registers: RegisterList) -> None:
        every = np.ones(LANES, np.bool_)
        for register in registers.registers:
            self._look(register, Lack.UNWRITTEN, every)
            self._look(register, Lack.COMPUTED, every)

    def mark_in_flight(self, registers: RegisterList, owner: object, ins: Instruction) -> None:
        if owner not in self._owners:
            self._owners[owner] = self._fly(Writer(ins))
        every = np.ones(LANES, np.bool_)
        for register in registers.registers:
            self._set(register, every, self._owners[owner])

    def mark_landed(self, owner: object) -> None:
        number = self._owners.pop(owner, None)
        if number in self._flights:
            self._deliver(number)
