# SPDX-License-Identifier: Apache-2.0
"""Shadows that copies carry: cp.async, bulk copies, boxes of tensors; reductions of floats update them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Lanes, Values
from gdnbench.sim.machine.shadow_cells import SHAPES, Bytes, Cells, make_cells, read_elements
from gdnbench.sim.machine.shared_memory import SharedMemory
from gdnbench.sim.machine.tensormap import TensorMap
from gdnbench.sim.ptx.ir import Instruction


class Box(Protocol):
    """A box of `tma`: the part inside the tensor, and where that is."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def inside(self) -> tuple[slice, ...]: ...

    @property
    def address(self) -> int: ...

    @property
    def strides(self) -> tuple[int, ...]: ...

    @property
    def counts(self) -> tuple[int, ...]: ...

    @property
    def empty(self) -> bool: ...


UNIT = 16
_SUMS: dict[str, np.ufunc] = {"add": np.add, "min": np.fmin, "max": np.fmax}


class CopiedLanes:
    """The cells of one cp.async, of the first `sizes` bytes of each lane; the rest becomes zero."""

    def __init__(self, cta: Cta, source: Values, target: Values, lanes: Lanes, sizes: Values) -> None:
        self._cta = cta
        self._source, self._target = source, target
        self._lanes, self._sizes = lanes, sizes
        self._cells: Cells = np.zeros((0, 0), np.complex128)

    def read(self, width: int) -> None:
        """Copy the cells of global memory."""
        self._cells = np.zeros((int(self._lanes.sum()), width), np.complex128)
        shadows = self._cta.memory.shadows
        assert shadows is not None
        for row, lane in enumerate(np.flatnonzero(self._lanes).tolist()):
            size = int(self._sizes[lane])
            if size:
                self._cells[row, :size] = shadows.view(int(self._source[lane]), size)

    def land(self) -> None:
        """Write them to shared memory."""
        to = self._cta.shared.shadows
        assert to is not None
        at = self._target[self._lanes].astype(np.intp)[:, None]
        to[at + np.arange(self._cells.shape[1])] = self._cells


class CopiedBytes:
    """The cells of one bulk copy or reduction of `size` bytes; `data` are the bytes that it has read."""

    def __init__(
        self,
        cta: Cta,
        ins: Instruction,
        source: tuple[str, int],
        target: tuple[str, int],
        size: int,
        data: Bytes,
    ) -> None:
        self._cta, self._ins = cta, ins
        self._source, self._target, self._size = source, target, size
        self._data = data
        self._cells: Cells = np.zeros(size, np.complex128)

    def _view(self, place: tuple[str, int]) -> Cells:
        space, address = place
        if space == "global":
            assert self._cta.memory.shadows is not None
            return self._cta.memory.shadows.view(address, self._size)
        assert self._cta.shared.shadows is not None
        return self._cta.shared.shadows[address : address + self._size]

    def read(self) -> None:
        """Copy the cells of the source."""
        self._cells[:] = self._view(self._source)

    def land(self, before: Bytes, after: Bytes) -> None:
        """Write them, or reduce into those of the destination, whose bytes were `before` and are `after`."""
        to = self._view(self._target)
        if self._ins.form.reduces:
            kind = self._ins.types[0]
            to[:] = reduced(self._ins, kind, (to, before), (self._cells, self._data), after)
        else:
            to[:] = self._cells


def reduced(
    ins: Instruction, dtype: str, memory: tuple[Cells, Bytes], source: tuple[Cells, Bytes], after: Bytes
) -> Cells:
    """The cells of memory that a reduction has changed; none if it is one of integers."""
    shape = SHAPES.get(dtype)
    update = next((_SUMS[mod] for mod in ins.mods if mod in _SUMS), None)
    if shape is None or update is None:
        return np.zeros(after.shape, np.complex128)
    old, new = (
        read_elements(np.ascontiguousarray(cells), np.ascontiguousarray(data), shape)[0]
        for cells, data in (memory, source)
    )
    return make_cells(update(old, new), np.ascontiguousarray(after), shape)


@dataclass(slots=True)
class CopiedBoxes:
    """The cells of one copy of tensor boxes; `order` are the 16-byte units of each box in `shared`. A tensor
    of elements of less than a byte has no shadows, nor one whose elements a load converts."""

    cta: Cta
    ins: Instruction
    tensor: TensorMap
    boxes: Sequence[Box]
    order: npt.NDArray[np.intp]
    shared: SharedMemory
    cells: Cells | None = None

    def _global(self, box: Box) -> Cells:
        assert self.cta.memory.shadows is not None
        return self.cta.memory.shadows.strided(box.address, box.counts, box.strides)

    def load(self) -> None:
        """Copy the cells of global memory; those outside the tensor are none."""
        self.cells = np.zeros((len(self.boxes), *self.boxes[0].shape), np.complex128)
        if self.tensor.packed is not None:
            return
        for into, box in zip(self.cells, self.boxes, strict=True):
            if not box.empty:
                into[box.inside] = self._global(box)

    def to_shared(self) -> None:
        """Write them to shared memory, or remove what was there."""
        assert self.cells is not None
        assert self.shared.shadows is not None
        units = self.shared.shadows.reshape(-1, UNIT)
        if self.tensor.packed is not None:
            units[self.order] = 0
            return
        units[self.order] = self.cells.reshape(*self.order.shape, UNIT)

    def from_shared(self) -> None:
        """Copy the cells of shared memory."""
        assert self.shared.shadows is not None
        units = self.shared.shadows.reshape(-1, UNIT)[self.order]
        shape = (len(self.boxes), *self.boxes[0].shape)
        self.cells = np.zeros(shape, np.complex128) if self.tensor.packed else units.reshape(shape)

    def store(self, box: Box, before: Bytes, part: Bytes, after: Bytes) -> None:
        """Write the cells of one box to global memory, whose bytes were `before` and are `after`; `part` are
        the bytes that were stored or reduced."""
        assert self.cells is not None
        number = next(i for i, one in enumerate(self.boxes) if one is box)
        cells, to = self.cells[number][box.inside], self._global(box)
        if self.ins.form.reduces:
            to[...] = reduced(self.ins, self.tensor.dtype, (to, before), (cells, part), after)
        else:
            to[...] = cells
