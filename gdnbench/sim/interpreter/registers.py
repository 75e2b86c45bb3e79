"""The registers of one warp: a row of 32 lanes each, seen in the type that an instruction gives them.

A row holds zero-extended bits in 64 bits a lane. `views[kind][i]` is row i as `kind`: writing there writes
the register. Beside the bits lies a mask of the bytes that were written, so that a `mov` may carry a value
that is only partly there while any real use of it faults."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.seam import LANES, Lanes, Values
from gdnbench.sim.ptx.ir import Register

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


class RegisterFile:
    """All registers of one warp. `clean[i]` says that every lane of register i is completely written: the
    common case, which costs a reader one test."""

    __slots__ = ("bits", "clean", "exists", "registers", "views", "written")

    def __init__(self, registers: Sequence[Register], exists: Lanes) -> None:
        wide = [register for register in registers if register.bits > 64]
        if wide:
            raise UnsupportedError(f"registers of 128 bits ({wide[0].name})")
        self.registers = registers
        self.exists = exists
        self.bits: Values = np.zeros((max(len(registers), 1), LANES), np.uint64)
        self.written = np.zeros(self.bits.shape, np.uint8)
        self.clean = [False] * len(self.bits)
        self.views = {kind: view(self.bits, kind) for kind in (*_SCALARS, *_PACKED)}

    def there(self, index: int) -> Array:
        """Which bytes of a register were written, one mask a lane."""
        masks: Array = self.written[index]
        return masks

    def require(self, index: int, lanes: Lanes) -> None:
        """Fault if one of `lanes` reads a byte of the register that was never written."""
        need = whole(self.registers[index])
        missing = lanes & (self.written[index] & need != need)
        if missing.any():
            raise KernelFault(
                FaultKind.UNINITIALISED,
                f"register {self.registers[index].name} was never written in lane {int(missing.argmax())}",
            )

    def mark(self, index: int, lanes: Lanes) -> None:
        """Note a complete write of `lanes`."""
        need = whole(self.registers[index])
        self.written[index][lanes] = need
        self.clean[index] = bool((self.written[index] == need)[self.exists].all())

    def mark_bytes(self, index: int, lanes: Lanes, mask: Array) -> None:
        """Note a write that carries the bytes in `mask`, one mask a lane, and leaves the rest unwritten."""
        np.copyto(self.written[index], mask, where=lanes, casting="unsafe")
        need = whole(self.registers[index])
        self.clean[index] = bool((self.written[index] & need == need)[self.exists].all())
