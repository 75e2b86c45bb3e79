# SPDX-License-Identifier: Apache-2.0
"""The shadows of one warp's registers, and how operands are read and results written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gdnbench.sim.fp64.constants import Constants
from gdnbench.sim.interpreter.operation import Thread, fetch
from gdnbench.sim.interpreter.registers import RegisterFile
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Words
from gdnbench.sim.machine.shadow_cells import (
    BF16,
    F16,
    F32,
    F64,
    Bools,
    Bytes,
    Cells,
    Doubles,
    Shape,
    make_cells,
    marks_of,
    read_elements,
)
from gdnbench.sim.ptx.ir import Immediate, Instruction, Register, Sink

ROOM = 8  # bytes of each register in the register file


@dataclass(frozen=True, slots=True)
class Kind:
    """A PTX type of floats: the format of its elements and how many a register has."""

    shape: Shape
    count: int = 1

    @property
    def size(self) -> int:
        """Bytes."""
        return self.shape.size * self.count


KINDS = {
    "f32": Kind(F32), "f32x2": Kind(F32, 2), "f16": Kind(F16), "f16x2": Kind(F16, 2), "tf32": Kind(F32),
    "bf16": Kind(BF16), "bf16x2": Kind(BF16, 2), "f64": Kind(F64),
}  # fmt: skip


class RegisterShadows:
    """Cells[register, lane, byte]. `shadowed[i]` is False if register i has no shadow in any lane."""

    def __init__(self, file: RegisterFile, constants: Constants) -> None:
        self.constants = constants
        self.cells: Cells = np.zeros((*file.bits.shape, ROOM), np.complex128)
        self._marks = self.cells.view(np.uint16)[..., 4::8]
        self.bytes: Bytes = file.bits.view(np.uint8).reshape(*file.bits.shape, ROOM)
        self.shadowed = [False] * len(file.bits)

    def clear(self, index: int, lanes: Lanes) -> None:
        """Remove the register's shadow in these lanes."""
        if self.shadowed[index]:
            self._marks[index][lanes] = 0
            if lanes.all():
                self.shadowed[index] = False

    def write(self, index: int, lanes: Lanes, cells: Cells) -> None:
        """Write the cells [32, n] of the register's low n bytes; its other bytes get no shadow."""
        width = cells.shape[1]
        if not marks_of(cells)[lanes].any():
            self.clear(index, lanes)
            return
        if lanes.all():
            self.cells[index, :, :width] = cells
            self._marks[index, :, width:] = 0
        else:
            self.cells[index, lanes, :width] = cells[lanes]
            self._marks[index, lanes, width:] = 0
        self.shadowed[index] = True

    def put_f32(self, register: Register, words: Words, values: Doubles) -> None:
        """Write the shadows of an f32 in the lanes in which the register holds these words."""
        data = self.bytes[register.index, :, :4]
        same = np.ascontiguousarray(data).view(np.uint32)[:, 0] == words
        if register.bits == 32 and same.any():
            self.write(register.index, same, make_cells(values[:, None], data, F32))

    def live(self, index: int) -> Bools:
        """The bytes [32, 8] of the register that belong to a shadow."""
        marks = self._marks[index]
        found: Bools = (marks != 0) & (marks >> np.uint16(8) == self.bytes[index])
        return found

    def moved(self, operand: object) -> Cells:
        """A copy of an operand's cells [32, 8]."""
        if isinstance(operand, Register) and self.shadowed[operand.index]:
            moved: Cells = self.cells[operand.index].copy()
            return moved
        cells: Cells = np.zeros((LANES, ROOM), np.complex128)
        if isinstance(operand, Immediate) and self.constants.meant(operand.bits & 0xFFFF_FFFF) is not None:
            data = np.full((LANES, 1), operand.bits, np.uint32).view(np.uint8)
            meant = self.constants.cells(data)
            assert meant is not None
            cells[:, :4] = meant
        return cells


ReadDoubles = Callable[[Thread, RegisterShadows], Doubles]


def reader(ins: Instruction, operand: object, kind: Kind) -> ReadDoubles:
    """How an operand is read in double: f64[32, count]. Where it has no shadow, it is the number of its
    bits."""
    if isinstance(operand, Register):
        index, shape, size = operand.index, kind.shape, kind.size

        def read(thread: Thread, shadows: RegisterShadows) -> Doubles:
            data = shadows.bytes[index, :, :size]
            if not shadows.shadowed[index]:
                return shape.values(data)
            return read_elements(shadows.cells[index, :, :size], data, shape)[0]

        return read
    get = fetch(ins, operand, f"u{8 * kind.size}")

    def fixed(thread: Thread, shadows: RegisterShadows) -> Doubles:
        data = np.ascontiguousarray(get(thread)).view(np.uint8).reshape(LANES, kind.size)
        return kind.shape.values(data)

    if isinstance(operand, Immediate):
        known: list[Doubles] = []

        def constant(thread: Thread, shadows: RegisterShadows) -> Doubles:
            if not known:
                meant = shadows.constants.meant(operand.bits) if kind.shape is F32 else None
                known.append(np.full((LANES, 1), meant) if meant is not None else fixed(thread, shadows))
            return known[0]

        return constant
    return fixed


def kernel_reader(ins: Instruction, operand: object, kind: Kind) -> ReadDoubles:
    """How the kernel's own number of an operand is read, without its shadow: f64[32, count]."""
    get = fetch(ins, operand, f"u{8 * kind.size}")

    def read(thread: Thread, shadows: RegisterShadows) -> Doubles:
        data = np.ascontiguousarray(get(thread)).view(np.uint8).reshape(LANES, kind.size)
        return kind.shape.values(data)

    return read


def write_values(
    shadows: RegisterShadows,
    dest: object,
    kind: Kind,
    values: Doubles,
    lanes: Lanes,
    present: Bools | None = None,
) -> None:
    """Write the shadows f64[32, count] of a result whose bits have just been written."""
    if isinstance(dest, Sink):
        return
    assert isinstance(dest, Register)
    data = shadows.bytes[dest.index, :, : kind.size]
    shadows.write(dest.index, lanes, make_cells(values, data, kind.shape, present))
