# SPDX-License-Identifier: Apache-2.0
"""The exact bytes that an operation accesses, for the checker; computed on demand.

`cells()` returns byte addresses in shared and global memory, and in tensor memory the numbers of 32-bit
cells, 512 lane + column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.machine.engine_interface import CLUSTER_STRIDE

Cells = npt.NDArray[np.int64]

TMEM_COLUMNS = 512


class Footprint(Protocol):
    """`space` is shared, global or tmem."""

    @property
    def space(self) -> str: ...

    def cells(self) -> Cells: ...


class Span(NamedTuple):
    """Contiguous bytes."""

    space: str
    address: int
    size: int

    def cells(self) -> Cells:
        return np.arange(self.address, self.address + self.size, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Strided:
    """Global bytes `address` + sum of index x stride, for indices below `counts`; none if a count is 0."""

    address: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    space: str = "global"

    def cells(self) -> Cells:
        found = np.array([self.address], np.int64)
        for count, stride in zip(self.counts, self.strides, strict=True):
            steps = np.arange(max(count, 0), dtype=np.int64) * stride
            found = (found[:, None] + steps).reshape(-1)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Shared memory in units of `size` bytes: unit u has the `size` bytes from `origin` + u `size`. If
    `shape` is given, the bytes of all units in order form a box of that shape, and only those in `inside`
    count."""

    units: npt.NDArray[np.intp]
    size: int
    origin: int = 0
    shape: tuple[int, ...] = ()
    inside: tuple[slice, ...] = ()
    space: str = "shared"

    def cells(self) -> Cells:
        starts = self.units.reshape(-1, 1).astype(np.int64) * self.size + self.origin
        found = (starts + np.arange(self.size)).reshape(-1)
        return found.reshape(self.shape)[self.inside].reshape(-1) if self.shape else found


def moved_to(origin: int, places: tuple[Footprint, ...]) -> tuple[Footprint, ...]:
    """The same footprints in the CTA of a cluster whose shared memory begins at `origin`, where descriptors
    and addresses of TMEM name no rank."""
    return tuple(_moved(where, origin) for where in places) if origin else places


def _moved(where: Footprint, origin: int) -> Footprint:
    if isinstance(where, Chunks):
        return replace(where, origin=where.origin + origin)
    if isinstance(where, TmemBlock):
        return replace(where, rank=origin // CLUSTER_STRIDE)
    return where


@dataclass(frozen=True, slots=True, eq=False)
class TmemBlock:
    """Columns [first, last) of the TMEM lanes in `lanes`, bool[128], of the CTA of `rank` in its cluster."""

    lanes: npt.NDArray[np.bool_]
    first: int
    last: int
    rank: int = 0
    space: str = "tmem"

    def cells(self) -> Cells:
        rows = np.flatnonzero(self.lanes).astype(np.int64)[:, None] * TMEM_COLUMNS
        return (rows + np.arange(self.first, self.last)).reshape(-1)
