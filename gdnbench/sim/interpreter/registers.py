"""The registers of one warp: a row of 32 lanes each, seen in the type that an instruction gives them.

A row holds zero-extended bits in 64 bits a lane. `views[kind][i]` is row i as `kind`: writing there writes
the register. Beside the bits lie marks of a register's bytes, so that a `mov` may carry a value that is only
partly there while any real use of it faults: bits 0 to 7 say which were written, bits 8 to 15 which are in
flight: a tcgen05.ld delivers them at the warp's next tcgen05.wait::ld or, since the PTX ISA orders such a use
(9.7.16.6.4.5), when one of them is used, a wgmma at the wgmma.wait_group that covers it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Values
from gdnbench.sim.ptx.ir import Instruction, Register

Array = npt.NDArray[Any]

assert sys.byteorder == "little"  # the views take the low bytes of each lane

_SCALARS: dict[str, type[np.generic]] = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "pred": np.bool_,
}  # fmt: skip
_PACKED: dict[str, type[np.generic]] = {"u16x2": np.uint16, "s16x2": np.int16, "u32x2": np.uint32}

WIDTHS = {name: 1 if name == "pred" else 8 * np.dtype(kind).itemsize for name, kind in _SCALARS.items()}
WIDTHS |= {name: 16 * np.dtype(kind).itemsize for name, kind in _PACKED.items()}


def view(bits: Values, kind: str) -> Array:
    """uint64[..., 32] as `kind`: [..., 32], or [..., 32, 2] for a packed kind, low element first."""
    if kind in _PACKED:
        dtype = np.dtype(_PACKED[kind])
        whole = bits.view(dtype).reshape(*bits.shape, 8 // dtype.itemsize)
        return whole[..., :2]
    dtype = np.dtype(_SCALARS[kind])
    return bits.view(dtype)[..., :: 8 // dtype.itemsize]


def whole(register: Register) -> int:
    """The byte mask of a register that is completely written."""
    return (1 << max(register.bits // 8, 1)) - 1


def both(mask: int) -> np.uint16:
    """A byte mask as marks of either sort: what a move of these bytes takes along."""
    return np.uint16(mask * 0x0101)


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """Why a register is in flight: `ins` writes it, for `owner` (None: tcgen05.ld). `number` counts the
    warp's tcgen05.ld before it."""

    ins: Instruction
    number: int = 0
    owner: object = None


Unready = Callable[[Register, Lanes, "Flight | None"], None]
"""Called when lanes use a register that was never written (None) or is in flight; may raise."""


class RegisterFile:
    """All registers of one warp. `clean[i]` says that every lane of register i is completely written: the
    common case, which costs a reader one test. `loads` has the registers that may be in flight, wholly or in
    part."""

    __slots__ = ("_unready", "bits", "clean", "exists", "loads", "marks", "registers", "views")

    def __init__(self, registers: Sequence[Register], exists: Lanes, unready: Unready) -> None:
        wide = [register for register in registers if register.bits > 64]
        if wide:
            raise UnsupportedError(f"registers of 128 bits ({wide[0].name})")
        self.registers = registers
        self.exists = exists
        self._unready = unready
        self.bits: Values = np.zeros((max(len(registers), 1), LANES), np.uint64)
        self.marks = np.zeros(self.bits.shape, np.uint16)
        self.clean = [False] * len(self.bits)
        self.loads: dict[int, Flight] = {}
        self.views = {kind: view(self.bits, kind) for kind in (*_SCALARS, *_PACKED)}

    def moved(self, operand: object) -> Array:
        """The marks that a move of `operand` takes along, one a lane."""
        if isinstance(operand, Register):
            marks: Array = self.marks[operand.index]
            return marks
        return np.full(LANES, 0xFF, np.uint16)

    def require(self, index: int, lanes: Lanes) -> None:
        """Say so if one of `lanes` reads a byte of the register that is not there."""
        self.require_delivered(index, lanes)
        need = whole(self.registers[index])
        marks = self.marks[index]
        missing = lanes & ((marks | marks >> np.uint16(8)) & need != need)
        if missing.any():
            self._unready(self.registers[index], missing, None)

    def require_delivered(self, index: int, lanes: Lanes) -> None:
        """Say so if one of `lanes` reads a byte of the register in flight. A tcgen05.ld then is over."""
        if index in self.loads and (self.marks[index][lanes] >> 8).any():
            flight = self.loads[index]
            self._unready(self.registers[index], lanes & (self.marks[index] >> 8 != 0), flight)
            if flight.owner is None:
                self._deliver([i for i, other in self.loads.items() if other is flight])

    def mark(self, index: int, lanes: Lanes) -> None:
        """Note a complete write of `lanes`."""
        need = whole(self.registers[index])
        self.marks[index][lanes] = need
        self.clean[index] = bool((self.marks[index] == need)[self.exists].all())

    def mark_moved(self, index: int, lanes: Lanes, marks: Array, sources: Sequence[object]) -> None:
        """Note a write that moves bytes of `sources` with these marks, one a lane."""
        need = whole(self.registers[index])
        np.copyto(self.marks[index], marks & both(need), where=lanes)
        self.clean[index] = bool((self.marks[index] == need)[self.exists].all())
        if self.loads:
            loads = [self.loads.get(s.index) for s in sources if isinstance(s, Register)]
            flight = next((flight for flight in loads if flight is not None), None)
            if flight is not None:
                self.loads[index] = flight

    def load(self, indices: Sequence[int], lanes: Lanes, flight: Flight) -> None:
        """These registers are in flight."""
        for index in indices:
            self.marks[index][lanes] = whole(self.registers[index]) << 8
            self.clean[index] = False
            self.loads[index] = flight

    def deliver(self, owner: object = None) -> None:
        """The warp has waited for `owner`: what it wrote is there, wherever it was moved."""
        indices = [index for index, flight in self.loads.items() if flight.owner is owner]
        if indices:
            self._deliver(indices)

    def _deliver(self, indices: list[int]) -> None:
        need = np.array([[whole(self.registers[index])] for index in indices], np.uint16)
        marks = (self.marks[indices] | self.marks[indices] >> np.uint16(8)) & need
        self.marks[indices] = marks
        for index, clean in zip(indices, (marks == need)[:, self.exists].all(axis=1).tolist(), strict=True):
            self.clean[index] = clean
            del self.loads[index]
