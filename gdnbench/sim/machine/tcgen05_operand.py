# SPDX-License-Identifier: Apache-2.0
"""Matrices of the tensor core in shared memory: which 16-byte chunk has which elements.

PTX ISA 9.7.16.3.3 defines the canonical layouts, 9.7.16.10.6 the swizzle atoms. In every layout 16 aligned
bytes contain neighbours of one row (K-major) or of one column (MN-major), so a matrix is gathered by chunks.
In bytes, for row r, chunk c of a K-major row, chunk i along MN and column k of an MN-major matrix, atom width
W and height H:

    K-major   none       (r%8) 16 + (r/8) SBO + c LBO
              swizzled   (r%8) W + (r/8) SBO + 16 c
    MN-major  none       i SBO + (k%8) 16 + (k/8) LBO
              swizzled   (i%(W/16)) 16 + (i/(W/16)) LBO + (k%H) W + (k/H) SBO

The swizzle then XORs bits 7.. of the *absolute* address into bits 4.. (bits 5.. in 128B_BASE32B). With a base
offset the pattern starts at a 128-byte row other than 0 of its period (table 41), so the offset is subtracted
first.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.footprint import Chunks
from gdnbench.sim.machine.shared_memory import SharedMemory
from gdnbench.sim.machine.tcgen05_descriptor import PATTERNS, MatrixDescriptor, Pattern, Swizzle

CHUNK = 16
# Every swizzle repeats after this many bytes; addresses that differ by a multiple share a table.
_PERIOD = 1024

# NumPy's 16-byte type: chunks are moved, never computed with.
_CHUNK_TYPE = np.complex128


class Gather(NamedTuple):
    """The chunks of a matrix. `table[...]` are chunk numbers from shared address `origin`; `low` and `high`
    bound the bytes. Elements are in the first `used` bytes of each chunk; the others are padding. The
    addresses are those of a CTA of rank 0: a descriptor has no bits for the rank, and each CTA reads its own
    shared memory by it."""

    table: npt.NDArray[np.intp]
    origin: int
    low: int
    high: int
    used: int = CHUNK

    @property
    def footprint(self) -> Chunks:
        """The bytes of its elements."""
        if self.used == CHUNK:
            return Chunks(self.table, CHUNK, self.origin)
        inside = (slice(None), slice(None), slice(0, self.used))
        return Chunks(self.table, CHUNK, self.origin, (*self.table.shape, CHUNK), inside)


def chunks(
    descriptor: MatrixDescriptor, mn_major: bool, rows: int, columns: int, used: int = CHUNK
) -> Gather:
    """The table of a matrix: [rows, columns chunks] if K-major, [columns, rows chunks] if MN-major."""
    start = descriptor.start % _PERIOD
    origin = descriptor.start - start
    table, low, high = _chunks(
        descriptor.swizzle,
        descriptor.leading,
        descriptor.stride,
        descriptor.base_offset,
        start,
        mn_major,
        rows,
        columns,
    )
    return Gather(table, origin, origin + low, origin + high, used)


@cache
def _chunks(
    swizzle: Swizzle,
    leading: int,
    stride: int,
    base_offset: int,
    start: int,
    mn_major: bool,
    rows: int,
    columns: int,
) -> tuple[npt.NDArray[np.intp], int, int]:
    """The table of a matrix that starts within the first period, and the bounds of its bytes."""
    pattern = PATTERNS[swizzle]
    offset = (_mn_major if mn_major else _k_major)(pattern, leading, stride, rows, columns)
    address = start + offset
    row = (address >> (pattern.base + pattern.shift)) - base_offset
    address ^= (row & (1 << pattern.bits) - 1) << pattern.base
    table = address // CHUNK
    table.setflags(write=False)
    return table, int(address.min()), int(address.max()) + CHUNK


def _k_major(pattern: Pattern, leading: int, stride: int, rows: int, columns: int) -> npt.NDArray[np.intp]:
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    step = CHUNK if pattern.bits else leading
    return r % 8 * pattern.width + r // 8 * stride + c * step


def _mn_major(pattern: Pattern, leading: int, stride: int, rows: int, columns: int) -> npt.NDArray[np.intp]:
    k, i = np.meshgrid(np.arange(columns), np.arange(rows), indexing="ij")
    if not pattern.bits:
        return i * stride + k % 8 * CHUNK + k // 8 * leading
    across = pattern.width // CHUNK
    return (
        i % across * CHUNK
        + i // across * leading
        + k % pattern.rows * pattern.width
        + k // pattern.rows * stride
    )


def check_bounds(shared: SharedMemory, gather: Gather, what: str) -> None:
    """Raises KernelFault if a matrix is not inside shared memory."""
    low, high = shared.origin + gather.low, shared.origin + gather.high
    if low < shared.first or high > shared.end:
        raise KernelFault(
            FaultKind.OUT_OF_BOUNDS,
            f"{what} spans shared addresses {low:#x} to {high:#x}; "
            f"the CTA has {shared.first:#x} to {shared.end:#x}",
        )


def read_chunks(shared: SharedMemory, gather: Gather, what: str) -> npt.NDArray[np.uint8]:
    """The chunks' current bytes: one row of the result per row of the table."""
    origin = shared.origin + gather.origin
    if shared.track:
        valid = shared.valid[origin:].view(_CHUNK_TYPE).take(gather.table).view(np.bool_)
        if not valid.reshape(-1, CHUNK)[:, : gather.used].all():
            shared.skip(KernelFault(FaultKind.UNINITIALISED, _first_invalid(shared, gather, what)))
    return shared.bytes[origin:].view(_CHUNK_TYPE).take(gather.table).view(np.uint8)


def _first_invalid(shared: SharedMemory, gather: Gather, what: str) -> str:
    origin = shared.origin + gather.origin
    bytes_read = origin + (gather.table.reshape(-1, 1) * CHUNK + np.arange(gather.used)).ravel()
    missing = bytes_read[~shared.valid[bytes_read]]
    return f"{what}: {missing.size} bytes never written, the first at shared address {int(missing.min()):#x}"
