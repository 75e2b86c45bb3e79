# SPDX-License-Identifier: Apache-2.0
"""wgmma's access to the compiled engine's registers, which are words of a warp's state.

A warp's state is in memory whenever Python runs, and a register has a fixed offset there (`layout`). Without
a checker nothing records which registers are in flight: an instruction that uses one too early computes with
the token, a NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler.compiled_warp import CompiledWarp
from gdnbench.sim.compiler.layout import Layout
from gdnbench.sim.compiler.register_watch import RegisterWatch
from gdnbench.sim.compiler.runtime_calls import Service
from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.engine_interface import LANES, Lanes, RegisterList, Words
from gdnbench.sim.machine.wgmma import issue
from gdnbench.sim.machine.wgmma_fragment import put_for_token
from gdnbench.sim.machine.wgmma_state import Operands
from gdnbench.sim.ptx.ir import Instruction, Register, Vector

Table = slice | npt.NDArray[np.intp]


class CompiledRegisters:
    """The registers of one warp. Implements `RegisterAccess`."""

    def __init__(
        self, state: npt.NDArray[np.uint8], layout: Layout, watch: RegisterWatch | None = None
    ) -> None:
        self._words = state[: state.size // 4 * 4].view(np.uint32)
        self._layout = layout
        self._watch = watch
        self._tables: dict[RegisterList, Table] = {}

    def _table(self, registers: RegisterList) -> Table:
        """The indices of the words: a slice if they are contiguous, as registers declared together are."""
        found = self._tables.get(registers)
        if found is None:
            wide = [r.name for r in registers.registers if r.bits != 32]
            if wide:
                raise UnsupportedError(f"a fragment in {wide[0]}, no register of 32 bits")
            starts = np.array([self._layout.slots[r.index] // 4 for r in registers.registers], np.intp)
            if len(starts) and (np.diff(starts) == LANES).all():
                found = slice(int(starts[0]), int(starts[-1]) + LANES)
            else:
                found = starts[:, None] + np.arange(LANES, dtype=np.intp)
            self._tables[registers] = found
        return found

    def read_words(self, registers: RegisterList) -> Words:
        table = self._table(registers)
        if isinstance(table, slice):
            return self._words[table].reshape(-1, LANES).copy()
        return self._words.take(table)

    def write_words(self, registers: RegisterList, words: Words) -> None:
        table = self._table(registers)
        self._words[table] = words.reshape(-1) if isinstance(table, slice) else words

    def replace_token(self, register: Register, token: int, words: Words, halves: bool) -> None:
        slot = self._layout.slots.get(register.index)
        if slot is None:  # it is live only inside one block, which does not contain the wait
            return
        # 32 lanes of n bits are n words.
        put_for_token(self._words[slot // 4 : slot // 4 + register.bits], token, words, halves)

    def require_written(self, registers: RegisterList) -> None:
        if self._watch is not None:
            self._watch.require_written(registers)

    def mark_in_flight(self, registers: RegisterList, owner: object, ins: Instruction) -> None:
        if self._watch is not None:
            self._watch.mark_in_flight(registers, owner, ins)

    def mark_landed(self, owner: object) -> None:
        if self._watch is not None:
            self._watch.mark_landed(owner)


@dataclass(frozen=True, slots=True, eq=False)
class Issue:
    """wgmma.mma_async by the state offsets of its operands. `a` is -1 if A is in registers."""

    ins: Instruction
    a: int
    b: int
    scale_d: int

    def execute(self, warp: CompiledWarp, lanes: Lanes) -> None:
        try:
            a = 0 if self.a < 0 else _uniform(warp, self.a, "the descriptor of A")
            b = _uniform(warp, self.b, "the descriptor of B")
            mask = warp.cells[self.scale_d // 4]
            if mask not in (0, 0xFFFF_FFFF):
                raise KernelFault(FaultKind.DIVERGENCE, "scale-d differs between the lanes of a warp")
            issue(warp.cta, warp.warp, self.ins, Operands(a, b, bool(mask)))
        except KernelFault as fault:
            if fault.place is None:
                fault.place, fault.thread = self.ins.place, warp.cta.thread(warp.warp, lanes)
            raise


def _uniform(warp: CompiledWarp, slot: int, what: str) -> int:
    """A register of 64 bits that must be equal in all lanes."""
    data = warp.state[slot : slot + 8 * LANES].tobytes()
    if data != data[:8] * LANES:
        raise KernelFault(FaultKind.DIVERGENCE, f"{what} differs between the lanes of a warp")
    return int.from_bytes(data[:8], "little")


def direct(service: Service) -> Issue | None:
    """None unless all operands are registers, as compilers write them."""
    in_registers = isinstance(service.ins.sources[0], Vector)
    found = service.registers[in_registers:3]
    if [tuple(bits for _, bits in each) for each in found] != [(64,), (64,), (1,)][in_registers:]:
        return None
    slots = [each[0][0] for each in found]
    return Issue(service.ins, -1 if in_registers else slots[0], slots[-2], slots[-1])
