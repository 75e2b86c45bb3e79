# SPDX-License-Identifier: Apache-2.0
"""TMA told a second time, one byte after the other: what a box copy does, straight from its description.

The box is walked element by element, dimension 0 fastest. The swizzles are told as the PTX ISA draws them
("Swizzling modes"): rows of 128, 64 or 32 bytes hold chunks of 16, and the chunks of a row change places by
a number that counts lines of 128 bytes, here of the absolute shared address.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass

import numpy as np

CODES = {"u8": 0, "u32": 2, "f16": 6, "f32": 7, "bf16": 10, "b4x16": 11, "b4x16_p64": 12, "b6x16_p32": 13}
SIZES = {"u8": 1, "u32": 4, "f16": 2, "f32": 4, "bf16": 2}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
ATOMS = {16: 0, 32: 1, 64: 3}


@dataclass(frozen=True)
class Map:
    """A tensor map: dimension 0 first, strides in bytes of dimensions 1 and up."""

    address: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    steps: tuple[int, ...] = ()
    atom: int = 16

    @property
    def size(self) -> int:
        return SIZES[self.dtype]

    @property
    def box_bytes(self) -> int:
        """Bytes that are copied: every step-th element of the box, but all of dimension 0."""
        return len(range(self.box[0])) * self.size * int(np.prod([len(r) for r in self.ranges()[1:]]))

    def ranges(self) -> list[range]:
        steps = (1, *self.steps[1:]) if self.steps else (1,) * len(self.box)
        return [range(0, extent, step) for extent, step in zip(self.box, steps, strict=True)]

    def encode(self) -> bytes:
        """The descriptor, by the table of the fields in machine/tensormap.py; rubbish in the unused half."""
        rank = len(self.dims)
        flags = 2 | (rank - 1) << 4 | CODES[self.dtype] << 7 | SWIZZLES[self.swizzle] << 13 | 1 << 18
        flags |= ATOMS[self.atom] << 19
        units = [stride // 16 for stride in self.strides] + [0] * (4 - len(self.strides))
        high = sum((unit >> 32 & 15) << 4 * index for index, unit in enumerate(units))
        dims = [extent - 1 & 0xFFFF_FFFF for extent in self.dims] + [0] * (5 - rank)
        box = [extent - 1 for extent in self.box] + [0] * (5 - rank)
        head = struct.pack("<QI4II5I", self.address, flags, *(u & 0xFFFF_FFFF for u in units), high, *dims)
        packed = sum(step - 1 << 3 * index for index, step in enumerate(self.steps))
        return head + packed.to_bytes(3, "little") + bytes(box) + bytes(4) + b"\xa5" * 64

    def element(self, index: tuple[int, ...]) -> int:
        """The address of an element."""
        return self.address + index[0] * self.size + sum(map(int.__mul__, index[1:], self.strides))

    def walk(self, shared: int, corner: tuple[int, ...], *, store: bool = False):  # type: ignore[no-untyped-def]
        """(shared address, global address or None outside the tensor) of each byte of a box. A row starts at
        a multiple of the swizzle's span. A store takes the bytes of dimension 0 in units of 16."""
        at = shared
        row = -1
        unit = 16 // self.size if store else 1
        limits = (-(-self.dims[0] // unit) * unit, *self.dims[1:])
        for position in itertools.product(*self.ranges()[::-1]):
            if position[-1] == 0:
                row += 1
                at = shared + row * max(self.box[0] * self.size, self.swizzle)
            index = tuple(start + step for start, step in zip(corner, position[::-1], strict=True))
            inside = all(0 <= i < extent for i, extent in zip(index, limits, strict=True))
            for byte in range(self.size):
                yield swizzled(at, self.swizzle, self.atom), self.element(index) + byte if inside else None
                at += 1


def swizzled(address: int, span: int, atom: int = 16) -> int:
    """Where the byte that would lie at `address` lies under a swizzle that keeps `atom` bytes together."""
    if span == 0:
        return address
    line = address // 128
    row, inside = divmod(address, span)
    chunk, byte = divmod(inside, atom)
    chunks = span // atom
    return row * span + (chunk ^ line % chunks) * atom + byte
