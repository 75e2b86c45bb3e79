# SPDX-License-Identifier: Apache-2.0
"""Shadows: beside each byte of a memory a cell that may say which number in double precision its element
stands for.

A cell has a value and a mark. The mark is a tag in its low byte and a copy of the shadowed byte in its high
byte. The tag says the format of the element and which of the element's bytes this is; 0 is no shadow. An
element has a shadow if all its bytes have the tags of its format and the bytes are still those that the marks
copied. So a write that moves no shadow ends the shadow, whoever makes it: a number is never read that belongs
to other bits. Cells are moved as bytes are, by the same indices.

A cell is a complex128, NumPy's number of 16 bytes: the real part is the value, the low 16 bits of the
imaginary part are the mark. Cells are moved, never computed with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.complex128]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

_TAG_BITS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """A format of elements that can have a shadow: its number, its bytes, NumPy's type of it."""

    number: int
    size: int
    dtype: Any

    def tag(self, byte: int) -> int:
        """The tag of this byte of an element."""
        return self.number << _TAG_BITS | byte

    @property
    def tags(self) -> npt.NDArray[np.uint16]:
        """The tags of all bytes of an element."""
        return _tags(self)

    def values(self, data: Bytes) -> Doubles:
        """The numbers that uint8[..., n * size] are, [..., n]."""
        found: Doubles = np.ascontiguousarray(data).view(self.dtype).astype(np.float64)
        return found


F32 = Shape(1, 4, np.float32)
F16 = Shape(2, 2, np.float16)
BF16 = Shape(3, 2, ml_dtypes.bfloat16)
E4M3 = Shape(4, 1, ml_dtypes.float8_e4m3fn)
E5M2 = Shape(5, 1, ml_dtypes.float8_e5m2)
F64 = Shape(6, 8, np.float64)

# tf32 operands are f32 in storage, of which the tensor core ignores low bits.
SHAPES: dict[str, Shape] = {
    "f32": F32, "tf32": F32, "f16": F16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2, "f64": F64,
}  # fmt: skip


@cache
def _tags(shape: Shape) -> npt.NDArray[np.uint16]:
    return np.array([shape.tag(byte) for byte in range(shape.size)], np.uint16)


def marks_of(cells: Cells) -> npt.NDArray[np.uint16]:
    """The marks of cells, as a view; the last axis must be contiguous."""
    return cells.view(np.uint16)[..., 4::8]


def current(cells: Cells, data: Bytes) -> Cells:
    """Cells with the shadows of bytes removed that are no longer `data`."""
    kept = cells.copy()
    marks = marks_of(kept)
    marks[(marks >> np.uint16(8)) != data] = 0
    return kept


def has_tags(cells: Cells) -> Bools:
    """Which cells belong to a shadow, whether or not their bytes have changed since."""
    found: Bools = (marks_of(cells) & np.uint16(0xFF)) != 0
    return found


def make_cells(values: Doubles, data: Bytes, shape: Shape, present: Bools | None = None) -> Cells:
    """Cells of elements f64[..., n] that are `data`, uint8[..., n * size]; none where not `present`."""
    wide = np.zeros(data.shape, np.complex128)
    wide.real = np.repeat(values, shape.size, axis=-1)
    marks = np.tile(shape.tags, data.shape[-1] // shape.size) | data.astype(np.uint16) << np.uint16(8)
    if present is not None:
        marks = np.where(np.repeat(present, shape.size, axis=-1), marks, np.uint16(0))
    marks_of(wide)[...] = marks
    return wide


def read_elements(cells: Cells, data: Bytes, shape: Shape) -> tuple[Doubles, Bools]:
    """The numbers of elements f64[..., n], of which `data`, uint8[..., n * size], are the bits; and which of
    them come from a shadow. An element without one is the number that its bits are.

    An f32 also takes the shadow of a bf16 that its upper half is, or of an f32 of which it has the upper
    half, where its lower half is zero. A bf16 takes the shadow of the f32 of which it is the upper half."""
    size, count = shape.size, data.shape[-1] // shape.size
    marks = marks_of(np.ascontiguousarray(cells))
    own = data.astype(np.uint16) << np.uint16(8)
    split = (*data.shape[:-1], count, size)
    present: Bools = (marks == (np.tile(shape.tags, count) | own)).reshape(split).all(axis=-1)
    shadow = cells.real.reshape(split)
    values = shadow[..., 0]
    if shape in (F32, BF16) and not present.all():
        found = marks.reshape(split)[..., -2:]
        keys = own.reshape(split)[..., -2:]
        upper = (found == (F32.tags[2:] | keys)).all(axis=-1)
        if shape is F32:
            upper |= (found == (BF16.tags | keys)).all(axis=-1)
            upper &= (data.reshape(split)[..., :2] == 0).all(axis=-1)
        upper &= ~present
        values = np.where(upper, shadow[..., -1], values)
        present = present | upper
    return np.where(present, values, shape.values(data)), present


class GlobalCells:
    """The cells of global memory, by host address. They stay from launch to launch."""

    def __init__(self) -> None:
        self._starts = np.empty(0, np.uint64)
        self._stops = np.empty(0, np.uint64)
        self._pools: list[Cells] = []

    def cover(self, intervals: Iterable[tuple[int, int]]) -> None:
        """Have cells for the bytes [low, high) of each interval. Known cells stay."""
        for low, high in intervals:
            if not self.covers(low, high - low):
                self._add(low, high)

    def _add(self, low: int, high: int) -> None:
        """A new pool, which takes in those that it overlaps."""
        old = list(zip(self._starts.tolist(), self._stops.tolist(), self._pools, strict=True))
        touched = [one for one in old if one[0] < high and low < one[1]]
        low = min([low, *(one[0] for one in touched)])
        high = max([high, *(one[1] for one in touched)])
        pool = np.zeros(high - low, np.complex128)
        for start, stop, cells in touched:
            pool[start - low : stop - low] = cells
        kept = [one for one in old if not (one[0] < high and low < one[1])]
        kept = sorted([*kept, (low, high, pool)], key=lambda one: one[0])
        self._starts = np.array([one[0] for one in kept], np.uint64)
        self._stops = np.array([one[1] for one in kept], np.uint64)
        self._pools = [one[2] for one in kept]

    def covers(self, address: int, size: int) -> bool:
        """Whether there are cells for all of these bytes."""
        at = self._at(address)
        return at >= 0 and address + size <= int(self._stops[at])

    def _at(self, address: int) -> int:
        return int(np.searchsorted(self._starts, np.uint64(address), side="right")) - 1

    def _pool(self, address: int) -> tuple[Cells, int]:
        at = self._at(address)
        return self._pools[at], address - int(self._starts[at])

    def gather(self, addresses: npt.NDArray[np.uint64], width: int) -> Cells:
        """The cells [n, width] from each of these addresses, which are in bounds."""
        found = np.zeros((len(addresses), width), np.complex128)
        for pool, chosen, where in self._parts(addresses, width):
            found[chosen] = pool[where]
        return found

    def scatter(self, addresses: npt.NDArray[np.uint64], cells: Cells) -> None:
        """Write cells [n, width] at these addresses, which are in bounds."""
        for pool, chosen, where in self._parts(addresses, cells.shape[1]):
            pool[where] = cells[chosen]

    def _parts(
        self, addresses: npt.NDArray[np.uint64], width: int
    ) -> Iterable[tuple[Cells, Bools, npt.NDArray[np.intp]]]:
        at = np.searchsorted(self._starts, addresses, side="right") - 1
        for number in np.unique(at).tolist():
            chosen = at == number
            first = (addresses[chosen] - self._starts[number]).astype(np.intp)
            yield self._pools[number], chosen, first[:, None] + np.arange(width)

    def strided(self, address: int, shape: Sequence[int], strides: Sequence[int]) -> Cells:
        """A view of cells of any shape, with strides in bytes of the memory."""
        pool, first = self._pool(address)
        return np.lib.stride_tricks.as_strided(
            pool[first:], tuple(shape), tuple(16 * stride for stride in strides)
        )

    def view(self, address: int, size: int) -> Cells:
        """The cells of contiguous bytes, as a view."""
        pool, first = self._pool(address)
        return pool[first : first + size]
