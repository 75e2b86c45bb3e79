# SPDX-License-Identifier: Apache-2.0
"""Runtime calls: instructions that Python executes for the compiled engine, that is machine instructions and
`mma`.

`enter_service` is the native side: it returns to Python, unless no lane executes. `Service`, one per
instruction, is the Python side: it reads the sources from a warp's state, in the form of
`machine.engine_interface`, and writes back the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler.emit import const
from gdnbench.sim.compiler.exits import Exit
from gdnbench.sim.compiler.layout import HEADER, SCALARS, Layout
from gdnbench.sim.compiler.native_machine_ops import try_native
from gdnbench.sim.compiler.translator import Translator
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.engine_interface import LANES, SHARED_BASE, Argument, Values, window_of_variable
from gdnbench.sim.machine.operands import same_in_all_lanes
from gdnbench.sim.ptx.ir import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)

State = npt.NDArray[np.uint8]
Read = Callable[[State], Values]
Gather = Callable[[State], Argument]
Words = memoryview  # the state as integers of 32 bits
ReadLane = Callable[[Words, int], int]
GatherLane = Callable[[State, Words, int], Argument]

_LANES = np.arange(LANES, dtype=np.uint64)
_BITS = np.uint32(1) << np.arange(LANES, dtype=np.uint32)


def enter_service(t: Translator, ins: Instruction) -> None:
    """Return to Python. If a guard disables all lanes, native code skips the instruction."""
    code = t.code
    if ins.form.aligned:
        t.gather(ins, const("i32", -1))
    if ins.guard is not None:
        python, skip = code.new_label("python"), code.new_label("skip")
        code.branch(code.any(t.active), python, skip)
        code.start_block(skip)
        t.leave(t.next_block(ins.pc + 1))
        code.start_block(python)
    last = code.new_label("machine")
    before = len(code.lines)
    try_native(t, ins, last)
    if len(code.lines) > before:
        code.start_block(last)
    t.ret(const("i32", Exit.SERVICE))


@lru_cache(4096)
def mask_lanes(mask: int) -> npt.NDArray[np.bool_]:
    """A 32-bit mask as 32 booleans, read-only."""
    lanes: npt.NDArray[np.bool_] = (np.uint32(mask) & _BITS) != 0
    lanes.flags.writeable = False
    return lanes


def lanes_mask(lanes: npt.NDArray[np.bool_]) -> int:
    """The inverse of `mask_lanes`."""
    return int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")


def _register(layout: Layout, register: Register) -> Read:
    slot = layout.slots[register.index]
    if register.bits == 1:
        return lambda state: mask_lanes(int(state[slot : slot + 4].view(np.uint32)[0])).astype(np.uint64)
    dtype = np.dtype(f"u{register.bits // 8}")
    stop = slot + LANES * dtype.itemsize
    if register.bits == 64:
        return lambda state: state[slot:stop].view(np.uint64).copy()
    return lambda state: state[slot:stop].view(dtype).astype(np.uint64)


def _register_lane(layout: Layout, register: Register) -> ReadLane | None:
    """`_register` for one lane."""
    at = layout.slots[register.index] // 4
    if register.bits == 1:
        return lambda words, lane: words[at] >> lane & 1
    if register.bits == 32:
        return lambda words, lane: words[at + lane]
    if register.bits == 64:
        return lambda words, lane: words[at + 2 * lane] | words[at + 2 * lane + 1] << 32
    return None


_in_all_lanes = lru_cache(1 << 12)(same_in_all_lanes)


def _constant(value: int) -> Read:
    array = np.full(LANES, value & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
    array.flags.writeable = False
    return lambda state: array


def _special(ins: Instruction, name: str) -> Read:
    if name in SCALARS:
        at = HEADER[name]
        return lambda state: np.full(LANES, state[at : at + 4].view(np.uint32)[0], np.uint64)
    if name.startswith("tid."):
        at = HEADER[name]
        return lambda state: state[at : at + 128].view(np.uint32).astype(np.uint64)
    if name == "laneid":
        return lambda state: _LANES
    raise UnsupportedError(f"%{name} as an operand of {ins.name}", ins.place)


def _parts(operand: Operand) -> tuple[Operand, ...] | None:
    """The scalars of an operand that has several values."""
    if isinstance(operand, Vector):
        return operand.elements
    if isinstance(operand, TensorAddress):
        return (operand.descriptor, *operand.coordinates)
    return None


@dataclass(frozen=True, slots=True)
class Service:
    """One instruction that Python executes."""

    ins: Instruction
    gathers: tuple[Gather, ...]
    lane_gathers: tuple[GatherLane, ...]
    guard: Read | None
    slots: tuple[tuple[int, int], ...]  # (slot, bits) of each written register; slot -1 for `_`
    address: Read  # the first source, unless it is a vector
    registers: tuple[tuple[tuple[int, int], ...], ...]  # the same of each source; () if it is not registers

    def sources(self, state: State) -> tuple[Argument, ...]:
        return tuple([gather(state) for gather in self.gathers])

    def sources_of_lane(self, state: State, words: Words, lane: int) -> tuple[Argument, ...]:
        """`sources` if only this lane is active: the values in other lanes are undefined."""
        return tuple([gather(state, words, lane) for gather in self.lane_gathers])

    def write(self, state: State, lanes: npt.NDArray[np.bool_], results: Sequence[Values]) -> None:
        """Write the results to the active lanes' registers."""
        for (slot, bits), value in zip(self.slots, results, strict=True):
            if slot < 0:
                continue
            if bits == 1:
                word = state[slot : slot + 4].view(np.uint32)
                mask = lanes_mask(lanes)
                word[0] = (int(word[0]) & ~mask) | (lanes_mask(value != 0) & mask)
            else:
                row = state[slot : slot + LANES * bits // 8].view(np.dtype(f"u{bits // 8}"))
                np.copyto(row, value, casting="unsafe", where=lanes)


class ServiceMaker:
    """Makes the services of one kernel. `symbols` maps module variables to the state offsets of their
    addresses. `clustered`: shared variables have other addresses in each CTA of a cluster."""

    def __init__(
        self, kernel: Kernel, layout: Layout, symbols: dict[str, int], *, clustered: bool = False
    ) -> None:
        self.kernel = kernel
        self.layout = layout
        self.symbols = symbols
        self.clustered = clustered

    def make(self, ins: Instruction) -> Service:
        written = tuple(
            (-1, 0) if isinstance(r, Sink) else (self.layout.slots[r.index], r.bits) for r in ins.written()
        )
        guard = None
        if ins.guard is not None:
            read, negated = _register(self.layout, ins.guard.register), ins.guard.negated

            def guard(state: State) -> Values:
                return read(state) ^ np.uint64(negated)

        gathers = tuple(self._gather(ins, source) for source in ins.sources)
        lane_gathers = tuple(self._gather_lane(ins, source) for source in ins.sources)
        scalar = bool(ins.sources) and not isinstance(ins.sources[0], Vector | TensorAddress)
        address = self._scalar(ins, ins.sources[0]) if scalar else _constant(0)
        registers = tuple(self._registers(source) for source in ins.sources)
        return Service(ins, gathers, lane_gathers, guard, written, address, registers)

    def _registers(self, operand: Operand) -> tuple[tuple[int, int], ...]:
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        registers = [element for element in elements if isinstance(element, Register)]
        if len(registers) != len(elements):
            return ()
        return tuple((self.layout.slots[register.index], register.bits) for register in registers)

    def value(self, ins: Instruction, operand: Operand) -> Read:
        """The reader of one scalar operand."""
        return self._scalar(ins, operand)

    def _gather(self, ins: Instruction, operand: Operand) -> Gather:
        parts = _parts(operand)
        if parts is None:
            return self._scalar(ins, operand)
        reads = [self._scalar(ins, part) for part in parts]
        return lambda state: tuple([read(state) for read in reads])

    def _gather_lane(self, ins: Instruction, operand: Operand) -> GatherLane:
        parts = _parts(operand)
        if parts is None:
            return self._scalar_lane(ins, operand)
        reads = [self._scalar_lane(ins, part) for part in parts]
        return lambda state, words, lane: tuple([read(state, words, lane) for read in reads])

    def _scalar_lane(self, ins: Instruction, operand: Operand) -> Callable[[State, Words, int], Values]:
        """Reads a scalar operand of one lane into all lanes: several times as fast as `_scalar`."""
        base, offset, bits = operand, 0, 64
        if isinstance(operand, Address) and isinstance(operand.base, Register):
            base, offset, bits = operand.base, operand.offset, 32 if operand.base.bits == 32 else 64
        read = _register_lane(self.layout, base) if isinstance(base, Register) else None
        if read is None:
            all_lanes = self._scalar(ins, operand)
            return lambda state, words, lane: all_lanes(state)
        if not offset:
            return lambda state, words, lane: _in_all_lanes(read(words, lane))
        mask = (1 << bits) - 1
        return lambda state, words, lane: _in_all_lanes(read(words, lane) + offset & mask)

    def _scalar(self, ins: Instruction, operand: Operand) -> Read:
        if isinstance(operand, Register):
            return _register(self.layout, operand)
        if isinstance(operand, Immediate):
            return _constant(operand.bits)
        if isinstance(operand, Special):
            return _special(ins, operand.name)
        if isinstance(operand, Negated):
            read = _register(self.layout, operand.register)
            return lambda state: read(state) ^ np.uint64(1)
        if isinstance(operand, Symbol):
            return self._symbol(operand)
        if isinstance(operand, Address):
            return self._address(ins, operand)
        raise UnsupportedError(f"operand {type(operand).__name__.lower()} of {ins.name}", ins.place)

    def _symbol(self, symbol: Symbol) -> Read:
        variable = symbol.variable
        if variable.space in ("global", "const"):
            at = self.symbols[variable.name]

            def address(state: State) -> Values:
                start = int(state[at : at + 8].view(np.uint64)[0])
                return np.full(LANES, (start + symbol.offset) & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)

            return address
        offset = variable.offset
        if variable.space == "shared":
            offset = self.kernel.shared_offset(variable)
            if self.clustered:
                at, more = HEADER["shared_first"], np.uint64(offset + symbol.offset & 0xFFFF_FFFF_FFFF_FFFF)
                return lambda state: np.full(LANES, state[at : at + 8].view(np.uint64)[0] + more, np.uint64)
            offset += SHARED_BASE
        return _constant(offset + symbol.offset)

    def _address(self, ins: Instruction, address: Address) -> Read:
        """The effective address; a 32-bit base wraps at 4 GiB."""
        total = address.offset
        if isinstance(address.base, Symbol):
            total += window_of_variable(ins, address.base.variable)
        offset = np.uint64(total & 0xFFFF_FFFF_FFFF_FFFF)
        if address.base is None:
            return _constant(address.offset)
        base = self._scalar(ins, address.base)
        if isinstance(address.base, Register) and address.base.bits == 32:
            return lambda state: (base(state) + offset) & np.uint64(0xFFFF_FFFF)
        if not total:
            return base
        return lambda state: base(state) + offset
