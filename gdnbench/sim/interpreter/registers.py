# SPDX-License-Identifier: Apache-2.0
"""The registers of one warp: a row of 32 lanes each, seen in the type that an instruction gives them.

A row holds zero-extended bits in 64 bits a lane. `views[kind][i]` is row i as `kind`: writing there writes
the register. Beside the bits lie marks of a register's bytes, so that a `mov` may carry a value that is only
partly there. Bits 0 to 7 say which bytes were written. Bits 8 to 15 say which are in flight: a tcgen05.ld
delivers them at the warp's next tcgen05.wait::ld or, since the PTX ISA orders such a use (9.7.16.6.4.5), when
one of them is used, a wgmma at the wgmma.wait_group that covers it. Bits 16 to 23 say which were computed
from a register without a value: they hold undefined bits, which is a fault only where they are stored, or
decide an address or a branch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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


def all_marks(mask: int) -> np.uint32:
    """A byte mask as marks of every sort: what a move of these bytes takes along."""
    return np.uint32(mask * 0x010101)


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """Why a register is in flight: `ins` writes it, for `owner` (None: tcgen05.ld). `number` counts the
    warp's tcgen05.ld before it."""

    ins: Instruction
    number: int = 0
    owner: object = None


Unready = Callable[[Register, Lanes, "Flight | None", bool], None]
"""Called when lanes use a register that is in flight or, without a flight, that was never written or (True)
was computed from such a register; may raise."""


class RegisterFile:
    """All registers of one warp. `clean[i]` says that every lane of register i is completely written: the
    common case, which costs a reader one test. `loads` has the registers that may be in flight, wholly or in
    part."""

    __slots__ = ("_unready", "bits", "clean", "exists", "loads", "marks", "registers", "views")

    def __init__(self, registers: Sequence[Register], exists: Lanes, unready: Unready) -> None:
        self.registers = registers
        self.exists = exists
        self._unready = unready
        self.bits: Values = np.zeros((max(len(registers), 1), LANES), np.uint64)
        self.marks = np.zeros(self.bits.shape, np.uint32)
        self.clean = [False] * len(self.bits)
        self.loads: dict[int, Flight] = {}
        self.views = {kind: view(self.bits, kind) for kind in (*_SCALARS, *_PACKED)}

    def moved(self, operand: object) -> Array:
        """The marks that a move of `operand` takes along, one a lane."""
        if isinstance(operand, Register):
            marks: Array = self.marks[operand.index]
            return marks
        return np.full(LANES, 0xFF, np.uint32)

    def require(self, index: int, lanes: Lanes) -> None:
        """Report if one of `lanes` uses a byte of the register that has no value."""
        self.require_delivered(index, lanes)
        unwritten = lanes & self._unwritten(index)
        if unwritten.any():
            self._unready(self.registers[index], unwritten, None, False)
        self.require_no_computed(index, lanes)

    def require_no_computed(self, index: int, lanes: Lanes) -> None:
        """Report if one of `lanes` uses a byte of the register that was computed from one without a value."""
        computed = lanes & self._computed(index)
        if computed.any():
            self._unready(self.registers[index], computed, None, True)

    def _unwritten(self, index: int) -> Lanes:
        need, marks = whole(self.registers[index]), self.marks[index]
        lacking: Lanes = (marks | marks >> np.uint32(8)) & need != need
        return lacking

    def _computed(self, index: int) -> Lanes:
        lacking: Lanes = self.marks[index] >> np.uint32(16) != 0
        return lacking

    def undefined(self, index: int, lanes: Lanes) -> Lanes:
        """Those of `lanes` in which a byte of the register has no value. A byte in flight is used by the
        instruction that asks."""
        self.require_delivered(index, lanes)
        return lanes & (self._unwritten(index) | self._computed(index))

    def undefined_bytes(self, index: int, lanes: Lanes) -> Array:
        """By lane the mask of the register's bytes that have no value; zero in other lanes. Bytes in
        flight are used by the instruction that asks."""
        self.require_delivered(index, lanes)
        need, marks = whole(self.registers[index]), self.marks[index]
        lacking: Array = (~(marks | marks >> np.uint32(8)) | marks >> np.uint32(16)) & np.uint32(need)
        return np.where(lanes, lacking, np.uint32(0))

    def require_delivered(self, index: int, lanes: Lanes) -> None:
        """Report if one of `lanes` reads a byte of the register in flight. A tcgen05.ld then is over."""
        flying = self.marks[index] & np.uint32(0xFF00) != 0
        if index in self.loads and flying[lanes].any():
            flight = self.loads[index]
            self._unready(self.registers[index], lanes & flying, flight, False)
            if flight.owner is None:
                self._deliver([i for i, other in self.loads.items() if other is flight])

    def note_choice(self, index: int, lanes: Lanes) -> None:
        """Report if one of `lanes` chooses between this register, which a tcgen05.ld loads, and another. The
        load is not over: a compiler may have placed the choice before the wait."""
        flight = self.loads.get(index)
        if flight is not None and flight.owner is None:
            flying = lanes & (self.marks[index] & np.uint32(0xFF00) != 0)
            if flying.any():
                self._unready(self.registers[index], flying, flight, False)

    def mark(self, index: int, lanes: Lanes) -> None:
        """Note a complete write of `lanes`."""
        need = whole(self.registers[index])
        self.marks[index][lanes] = need
        self.clean[index] = bool((self.marks[index] == need)[self.exists].all())

    def mark_moved(self, index: int, lanes: Lanes, marks: Array, sources: Sequence[object]) -> None:
        """Note a write that moves bytes of `sources` with these marks, one a lane."""
        need = whole(self.registers[index])
        np.copyto(self.marks[index], marks & all_marks(need), where=lanes)
        self.clean[index] = bool((self.marks[index] == need)[self.exists].all())
        if self.loads:
            loads = [self.loads.get(s.index) for s in sources if isinstance(s, Register)]
            flight = next((flight for flight in loads if flight is not None), None)
            if flight is not None:
                self.loads[index] = flight

    def mark_computed(self, index: int, lanes: Lanes) -> None:
        """Note that `lanes` have computed the register from one without a value."""
        if lanes.any():
            self.marks[index][lanes] |= np.uint32(whole(self.registers[index]) << 16)
            self.clean[index] = False

    def mark_computed_bytes(self, index: int, lacking: Array) -> None:
        """Note that the bytes `lacking`, a mask by lane, were computed from bytes without a value."""
        if lacking.any():
            self.marks[index] |= lacking << np.uint32(16)
            self.clean[index] = False

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
        need = np.array([[whole(self.registers[index])] for index in indices], np.uint32)
        before = self.marks[indices]
        marks = (before | before >> np.uint32(8)) & need | before & need << np.uint32(16)
        self.marks[indices] = marks
        for index, clean in zip(indices, (marks == need)[:, self.exists].all(axis=1).tolist(), strict=True):
            self.clean[index] = clean
            del self.loads[index]
