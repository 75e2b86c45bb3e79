# SPDX-License-Identifier: Apache-2.0
"""wgmma's access to the registers of the interpreter, with marks for registers in flight."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gdnbench.sim.interpreter.registers import Flight, RegisterFile
from gdnbench.sim.machine.engine_interface import LANES, RegisterList, Words
from gdnbench.sim.machine.wgmma_fragment import put_for_token
from gdnbench.sim.ptx.ir import Instruction, Register


class InterpretedRegisters:
    """One warp's registers. Seam: `RegisterAccess`."""

    def __init__(self, file: RegisterFile) -> None:
        self._file = file
        # Low and high word of every lane.
        self._words = file.bits.view(np.uint32).reshape(*file.bits.shape, 2)
        self._indices: dict[RegisterList, npt.NDArray[np.intp]] = {}

    def _index(self, registers: RegisterList) -> npt.NDArray[np.intp]:
        found = self._indices.get(registers)
        if found is None:
            found = np.array([register.index for register in registers.registers], np.intp)
            self._indices[registers] = found
        return found

    def read_words(self, registers: RegisterList) -> Words:
        return np.ascontiguousarray(self._words[self._index(registers), :, 0])

    def write_words(self, registers: RegisterList, words: Words) -> None:
        self._words[self._index(registers), :, 0] = words

    def replace_token(self, register: Register, token: int, words: Words, halves: bool) -> None:
        put_for_token(self._words[register.index], token, words, halves)

    def require_written(self, registers: RegisterList) -> None:
        every = np.ones(LANES, np.bool_)
        for register in registers.registers:
            if not self._file.clean[register.index]:
                self._file.require(register.index, every)

    def mark_in_flight(self, registers: RegisterList, owner: object, ins: Instruction) -> None:
        every = np.ones(LANES, np.bool_)
        self._file.load([r.index for r in registers.registers], every, Flight(ins, owner=owner))

    def mark_landed(self, owner: object) -> None:
        self._file.deliver(owner)
