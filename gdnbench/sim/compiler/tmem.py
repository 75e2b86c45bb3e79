"""tcgen05.ld and tcgen05.st of a whole warp, whose registers lie side by side in the state: one copy each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler.service import Read, Service
from gdnbench.sim.errors import KernelFault
from gdnbench.sim.machine.operands import uniform
from gdnbench.sim.machine.seam import LANES, Lanes
from gdnbench.sim.machine.tcgen05_access import load_words, store_words
from gdnbench.sim.ptx.ir import Instruction

if TYPE_CHECKING:
    from gdnbench.sim.compiler.engine import CompiledWarp

_ROW = 4 * LANES  # bytes of a 32-bit register


@dataclass(frozen=True, slots=True)
class TmemAccess:
    """A fragment in `count` registers from `slot` on."""

    ins: Instruction
    address: Read
    slot: int
    count: int
    loads: bool

    def execute(self, warp: CompiledWarp, lanes: Lanes) -> None:
        """What the machine's handler does, without a detour through 64-bit values."""
        state = warp.state
        stop = self.slot + self.count * _ROW
        words: npt.NDArray[np.uint32] = state[self.slot : stop].view(np.uint32).reshape(self.count, LANES)
        try:
            address = uniform(self.address(state), lanes, f"the address of {self.ins.name}")
            if self.loads:
                fresh = load_words(warp.cta, warp.warp, self.ins, address)
                np.copyto(words, fresh, where=lanes)
            else:
                store_words(warp.cta, warp.warp, self.ins, address, words.copy())
        except KernelFault as fault:
            if fault.place is None:
                fault.place, fault.thread = self.ins.place, warp.cta.thread(warp.warp, lanes)
            raise


def tmem_access(service: Service) -> TmemAccess | None:
    """The access, if `service` is one whose registers are 32 bits wide and lie side by side."""
    ins = service.ins
    if ins.op not in ("tcgen05.ld", "tcgen05.st") or ins.has("16x32bx2"):
        return None
    loads = ins.op == "tcgen05.ld"
    slots = service.slots if loads else service.vector
    if not slots or any(slot != slots[0][0] + i * _ROW or bits != 32 for i, (slot, bits) in enumerate(slots)):
        return None
    return TmemAccess(ins, service.address, slots[0][0], len(slots), loads)
