"""The compiled engine's registers as wgmma reaches them: words of a warp's state.

A warp's state is in memory whenever Python runs, and a register keeps its place there for the whole kernel
(`layout`). Which registers are in flight is not kept here: a use too early computes with the token, a NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler.layout import Layout
from gdnbench.sim.errors import Place, UnsupportedError
from gdnbench.sim.machine.seam import LANES, RegisterList, Words
from gdnbench.sim.ptx.ir import Register

Table = slice | npt.NDArray[np.intp]


class CompiledRegisters:
    """One warp's registers. Seam: `RegisterAccess`."""

    def __init__(self, state: npt.NDArray[np.uint8], layout: Layout) -> None:
        self._words = state[: state.size // 4 * 4].view(np.uint32)
        self._layout = layout
        self._tables: dict[RegisterList, Table] = {}

    def _table(self, registers: RegisterList) -> Table:
        """Where the words lie: a slice if they follow each other, as registers declared together do."""
        found = self._tables.get(registers)
        if found is None:
            wide = [r.name for r in registers.registers if r.bits != 32]
            if wide:
                raise UnsupportedError(f"a fragment in {wide[0]}, no register of 32 bits")
            starts = np.array([self._layout.slots[r.index] // 4 for r in registers.registers], np.intp)
            if (np.diff(starts) == LANES).all():
                found = slice(int(starts[0]), int(starts[-1]) + LANES)
            else:
                found = starts[:, None] + np.arange(LANES, dtype=np.intp)
            self._tables[registers] = found
        return found

    def take(self, registers: RegisterList) -> Words:
        table = self._table(registers)
        if isinstance(table, slice):
            return self._words[table].reshape(-1, LANES).copy()
        return self._words.take(table)

    def put(self, registers: RegisterList, words: Words) -> None:
        table = self._table(registers)
        self._words[table] = words.reshape(-1) if isinstance(table, slice) else words

    def replace(self, register: Register, token: int, words: Words) -> None:
        slot = self._layout.slots.get(register.index)
        if slot is None:  # it lives inside one block, which does not contain the wait
            return
        width = register.bits // 32
        held = self._words[slot // 4 : slot // 4 + width * LANES].reshape(LANES, width)
        hit = held == np.uint32(token)
        if hit.any():
            held[hit] = np.broadcast_to(words[:, None], held.shape)[hit]

    def require(self, registers: RegisterList) -> None:
        """Whether a register was written is not kept."""

    def launch(self, registers: RegisterList, owner: object, place: Place) -> None:
        """Whether a register is in flight is not kept."""

    def settle(self, owner: object) -> None:
        """Whether a register is in flight is not kept."""
