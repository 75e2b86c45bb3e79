# SPDX-License-Identifier: Apache-2.0
"""Executes tcgen05.ld, tcgen05.st and mma.sync directly on a warp's state.

The generic path moves 64-bit values register by register. Here one indexed copy moves the 32-bit words of all
registers of an operand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler import mma, warpgroup
from gdnbench.sim.compiler.compiled_warp import CompiledWarp
from gdnbench.sim.compiler.runtime_calls import Read, Service
from gdnbench.sim.errors import KernelFault, UnsupportedError
from gdnbench.sim.machine.engine_interface import LANES, Lanes
from gdnbench.sim.machine.operands import uniform_value
from gdnbench.sim.machine.tcgen05_access import (
    LOAD_REDUCE,
    access_cells,
    load_words,
    reduce_words,
    store_words,
)
from gdnbench.sim.ptx.forms import Until
from gdnbench.sim.ptx.ir import Immediate, Instruction

Words = npt.NDArray[np.intp]  # [registers, lanes]: indices of 32-bit words in a warp's state


class Direct(Protocol):
    """An instruction that all lanes of its warp execute together."""

    def execute(self, warp: CompiledWarp, lanes: Lanes) -> None:
        """Do what the generic path does, faults included; `lanes` are the existing lanes of the warp."""
        ...


def direct(service: Service) -> Direct | None:
    """The object that executes `service` on the state, or None if only the generic path can."""
    if not service.ins.form.by_machine:
        return _mma_sync(service)
    if service.ins.form.until in (Until.TENSOR_LOAD, Until.TENSOR_STORE):
        return _tmem_access(service)
    if service.ins.form.until is Until.WGMMA_GROUP:
        return warpgroup.direct(service)
    return None


def _words(slots: tuple[tuple[int, int], ...]) -> Words | None:
    """The words of these registers; None unless all are registers of 32 bits."""
    if not slots or any(bits != 32 or slot < 0 for slot, bits in slots):
        return None
    return np.array([slot // 4 for slot, _ in slots], np.intp)[:, None] + np.arange(LANES, dtype=np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class TmemAccess:
    """tcgen05.ld, tcgen05.ld.red or tcgen05.st; `split` is immHalfSplitoff. `reduced` is the register of the
    reduction, [1, lanes]."""

    ins: Instruction
    address: Read
    words: Words
    split: int
    loads: bool
    reduced: Words | None

    def execute(self, warp: CompiledWarp, lanes: Lanes) -> None:
        state = warp.state.view(np.uint32)
        try:
            address = uniform_value(self.address(warp.state), lanes, f"the address of {self.ins.name}")
            if self.loads:
                loaded = load_words(warp.cta, warp.warp, self.ins, address, self.split)
                _put(state, self.words, loaded, lanes)
                if self.reduced is not None:
                    _put(state, self.reduced, reduce_words(self.ins, loaded)[None], lanes)
            else:
                store_words(warp.cta, warp.warp, self.ins, address, state.take(self.words), self.split)
        except KernelFault as fault:
            if fault.place is None:
                fault.place, fault.thread = self.ins.place, warp.cta.thread(warp.warp, lanes)
            raise


def _put(state: npt.NDArray[np.uint32], words: Words, values: npt.NDArray[np.uint32], lanes: Lanes) -> None:
    """Write the registers of the existing lanes."""
    if lanes.all():
        state[words] = values
    else:
        state[words[:, lanes]] = values[:, lanes]


def _tmem_access(service: Service) -> TmemAccess | None:
    ins = service.ins
    split = 0
    if ins.has("16x32bx2"):
        if len(ins.sources) < 2 or not isinstance(ins.sources[1], Immediate):
            return None
        split = ins.sources[1].bits
    loads = ins.form.until is Until.TENSOR_LOAD
    words, reduced = _words(service.slots if loads else service.registers[-1]), None
    if ins.op == LOAD_REDUCE and words is not None:
        words, reduced = words[:-1], words[-1:]
    try:
        registers = len(access_cells(ins.mods, split).flat)
    except UnsupportedError:
        return None  # the generic path refuses it and names the place
    if words is None or len(words) != registers:
        return None
    return TmemAccess(ins, service.address, words, split, loads, reduced)


@dataclass(frozen=True, slots=True, eq=False)
class MmaSync:
    """mma.sync by the registers of A, B, C and D."""

    plan: mma.Plan
    operands: tuple[Words, Words, Words]
    result: Words

    def execute(self, warp: CompiledWarp, lanes: Lanes) -> None:
        state = warp.state.view(np.uint32)
        a, b, c = (state.take(words) for words in self.operands)
        _put(state, self.result, mma.product(warp.cta, self.plan, a, b, c), lanes)


def _mma_sync(service: Service) -> MmaSync | None:
    if service.ins.types[0] == "s32" or service.ins.op == "wmma.mma":
        return None
    plan = mma.plan_of(service.ins)
    tables = [_words(registers) for registers in (*service.registers, service.slots)]
    found = [table for table in tables if table is not None]
    if tuple(len(table) for table in found) != (*plan.registers, plan.registers[2]):
        return None
    a, b, c, d = found
    return MmaSync(plan, (a, b, c), d)
