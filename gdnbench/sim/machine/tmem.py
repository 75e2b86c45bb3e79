# SPDX-License-Identifier: Apache-2.0
"""Tensor memory of a CTA: 128 lanes by 512 columns of 32-bit cells, its allocations, and writes in flight.

PTX ISA 9.7.16.1 (addresses), 9.7.16.7 (allocation). `writers` has the destinations of products and copies in
flight. A load that overlaps one reads poison, because nothing ordered it after the write. The tensor core
itself works in issue order and reads the cells (9.7.16.6.2, pipelined instructions).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, Place
from gdnbench.sim.machine.memory import Skip, raise_fault

LANES = 128
COLUMNS = 512
QUARTER = 32
GRANULE = 32

Cells = npt.NDArray[np.uint32]

# Four `shadow_cells`, which are moved together.
SHADOW_TYPE = np.dtype("V64")

# NaN in f32, f16, bf16 and the fp8 formats.
POISON = 0xFFFF_FFFF


def lane_of(address: int) -> int:
    return address >> 16


def column_of(address: int) -> int:
    return address & 0xFFFF


@dataclass(eq=False, slots=True)
class Writer:
    """The cells that an operation in flight will write: `lanes` (bool[128]) by columns [first, last)."""

    lanes: npt.NDArray[np.bool_]
    first: int
    last: int


class TensorMemory:
    """The cells, and which of them are `valid`, that is written. `allocated` is by column. With `track`,
    reads of cells that were never written are faults (the interpreter's are). `stores` are, by warp, the
    tcgen05.st that no tcgen05.wait::st has waited for: flat cell numbers and values. `ending` are, by first
    column, the allocations that a warp waits to free, with the instructions that used them since."""

    def __init__(self, *, track: bool = False, skip: Skip | None = None, shadowed: bool = False) -> None:
        self.track = track
        self.keeps = skip is not None
        self.skip = raise_fault if skip is None else skip
        self.stores: dict[int, list[tuple[npt.NDArray[np.intp], Cells]]] = {}
        self.cells = np.full((LANES, COLUMNS), POISON, np.uint32)
        self.flat = self.cells.reshape(-1)
        # The `shadow_cells` of the four bytes of each cell.
        self.shadows = np.zeros((LANES, COLUMNS), SHADOW_TYPE) if shadowed else None
        self.valid = np.zeros((LANES, COLUMNS), bool)
        self.allocated = np.zeros(COLUMNS, bool)
        self.allocations: dict[int, int] = {}
        self.places: dict[int, Place | None] = {}  # by first column, of the last allocation there
        self.ending: dict[int, set[str]] = {}
        self.writers: list[Writer] = []
        self.permit = True
        self._smallest = COLUMNS
        self._required: set[tuple[int, int]] = set()  # columns that are allocated

    def find(self, columns: int, *others: TensorMemory) -> int | None:
        """The first column of the lowest range that is free here and in `others`, or None. Which range
        hardware takes is not documented."""
        for first in range(0, COLUMNS - columns + 1, GRANULE):
            if not any(one.allocated[first : first + columns].any() for one in (self, *others)):
                return first
        return None

    def check_request(self, columns: int) -> None:
        """Raises KernelFault if the CTA may not allocate this many columns."""
        check_size(columns)
        if not self.permit:
            message = "tcgen05.alloc after tcgen05.relinquish_alloc_permit of the CTA"
            self.skip(KernelFault(FaultKind.TMEM_ALLOCATION, message))
        if columns > self._smallest:
            message = f"{columns} columns after {self._smallest}: sizes must not increase within a CTA"
            self.skip(KernelFault(FaultKind.TMEM_ALLOCATION, message))

    def allocate(self, columns: int, place: Place | None = None) -> int | None:
        """Allocate a range of columns for the instruction at `place` and return its address; None while too
        few are free."""
        self.check_request(columns)
        first = self.find(columns)
        if first is not None:
            self.allocate_at(first, columns, place)
        return first

    def allocate_at(self, first: int, columns: int, place: Place | None) -> None:
        """Allocate these columns, which are free."""
        self._smallest = columns
        self.allocated[first : first + columns] = True
        self.allocations[first] = columns
        self.places[first] = place

    def check_allocation(self, address: int, columns: int) -> bool:
        """Raises KernelFault unless the range is exactly one allocation. After a skipped fault: whether it
        is."""
        check_size(columns)
        first = column_of(address)
        if lane_of(address) != 0 or self.allocations.get(first) != columns:
            message = (
                f"tcgen05.dealloc of {columns} columns at 0x{address:08x}, no allocation; "
                f"{self.describe_allocations()}"
            )
            self.skip(KernelFault(FaultKind.TMEM_ALLOCATION, message))
            return False
        return True

    def check_idle(self, first: int, columns: int) -> None:
        """Raises KernelFault if an operation in flight writes to a range."""
        if self.written_in_flight(first, first + columns):
            message = f"tcgen05.dealloc of columns {first}..{first + columns - 1} that are being written"
            self.skip(KernelFault(FaultKind.TMEM_ALLOCATION, message))

    def deallocate(self, address: int, columns: int) -> None:
        """Free a range. Its cells lose their contents, unless faults are skipped: hardware keeps them."""
        if not self.check_allocation(address, columns):
            return
        first = column_of(address)
        self.check_idle(first, columns)
        self.ending.pop(first, None)
        del self.allocations[first]
        self.allocated[first : first + columns] = False
        self._required.clear()
        if not self.keeps:
            self.valid[:, first : first + columns] = False
            self.cells[:, first : first + columns] = POISON

    def describe_allocations(self) -> str:
        """The allocations, for messages."""
        if not self.allocations:
            return "nothing is allocated"
        spans = ", ".join(f"{first}..{first + size - 1}" for first, size in sorted(self.allocations.items()))
        return f"allocated columns: {spans}"

    def require(self, first: int, last: int, what: str) -> None:
        """Raises KernelFault unless columns [first, last) are allocated. Columns that do not exist cannot be
        skipped."""
        if (first, last) in self._required and not self.ending:
            return
        if last <= COLUMNS and self.allocated[first:last].all():
            self._required.add((first, last))
        else:
            message = f"{what} of TMEM columns {first}..{last - 1}; {self.describe_allocations()}"
            (raise_fault if last > COLUMNS else self.skip)(KernelFault(FaultKind.TMEM_ACCESS, message))
        for start, used in self.ending.items():
            if start < last and first < start + self.allocations[start]:
                used.add(what)

    def begin_write(self, writer: Writer) -> None:
        """A write was issued: until `end_write`, loads of its cells read poison."""
        self.writers.append(writer)

    def end_write(self, writer: Writer) -> None:
        self.writers.remove(writer)

    def written_in_flight(self, first: int, last: int) -> bool:
        """Whether an operation in flight will write to columns [first, last)."""
        return any(writer.first < last and first < writer.last for writer in self.writers)

    def in_flight(self, lanes: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Which of the cells (lane, column) an operation in flight will write."""
        hit = np.zeros(lanes.shape, bool)
        for writer in self.writers:
            hit |= writer.lanes[lanes] & (columns >= writer.first) & (columns < writer.last)
        return hit

    def at_exit(self) -> None:
        """Raises KernelFault if columns are still allocated at exit (PTX ISA 9.7.16.1.2)."""
        if self.allocations:
            place = self.places[min(self.allocations)]
            message = f"the CTA exits without tcgen05.dealloc; {self.describe_allocations()}"
            self.skip(KernelFault(FaultKind.TMEM_LEAK, message, place))


def check_size(columns: int) -> None:
    """Raises KernelFault unless `columns` is a power of two in 32..512 (PTX ISA 9.7.16.7.1)."""
    if not GRANULE <= columns <= COLUMNS or columns & (columns - 1):
        raise KernelFault(
            FaultKind.TMEM_ALLOCATION, f"{columns} columns: a power of two from 32 to 512 is needed"
        )
