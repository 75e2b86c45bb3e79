# SPDX-License-Identifier: Apache-2.0
"""wgmma's fragments: which register and lane hold which element of A and D, and A and B in shared memory.

PTX ISA 9.7.15.5.1. Warp w of a warpgroup has rows 16 w to 16 w + 15. In a warp, lane = 4 * group + t. A
register of A has e = 4 / (element size) elements: columns e t .. e t + e - 1 of row `group`, from row
8 (r % 2) and column 4 e (r / 2) on for register r. D has, for every 8 columns, row `group` and then row
group + 8, columns 2 t and 2 t + 1 each: two registers of f32 or one of two halves.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import tcgen05_operand
from gdnbench.sim.machine.engine_interface import LANES, Words
from gdnbench.sim.machine.shared_memory import SharedMemory
from gdnbench.sim.machine.tcgen05_descriptor import MatrixDescriptor, Swizzle, bit_field
from gdnbench.sim.machine.tcgen05_operand import CHUNK, Gather
from gdnbench.sim.tensorcore.formats import Format

Codes = npt.NDArray[np.unsignedinteger]
WARPS = 4
ROWS = 16  # of one warp

# Bits 62 and 63 of a descriptor; tcgen05 uses other numbers.
_SWIZZLES = {0: Swizzle.NONE, 1: Swizzle.B128, 2: Swizzle.B64, 3: Swizzle.B32}


def a_matrix(words: Words, form: Format) -> Codes:
    """A[64, k] from the registers of the four warps, uint32[4, 4, 32]."""
    per = 4 // form.storage.itemsize
    # warp, block of columns, block of rows, row, column
    parts = np.ascontiguousarray(words).view(form.storage).reshape(WARPS, 2, 2, 8, 4 * per)
    return np.ascontiguousarray(parts.transpose(0, 2, 3, 1, 4)).reshape(WARPS * ROWS, 8 * per)


def d_rows(words: Words, halves: bool) -> Codes:
    """One warp's 16 rows of D as codes, from its registers uint32[registers, 32]."""
    if halves:
        # block of columns, block of rows, row, column
        packed = np.ascontiguousarray(words).view(np.uint16).reshape(-1, 2, 8, 8)
        return packed.transpose(1, 2, 0, 3).reshape(ROWS, -1)
    # block of columns, block of rows, column % 2, row, column / 2
    return words.reshape(-1, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(ROWS, -1)


def d_words(rows: Codes) -> Words:
    """The registers of one warp, uint32[registers, 32], from its 16 rows of D."""
    n = rows.shape[1]
    if rows.dtype == np.uint16:
        parts = rows.reshape(2, 8, n // 8, 8).transpose(2, 0, 1, 3)
        return np.ascontiguousarray(parts).view(np.uint32).reshape(-1, LANES)
    pairs = rows.reshape(2, 8, n // 8, 4, 2).transpose(2, 0, 4, 1, 3)
    return np.ascontiguousarray(pairs).reshape(-1, LANES)


@lru_cache(maxsize=1 << 16)
def decode_matrix(bits: int) -> MatrixDescriptor:
    """Decode a shared-memory matrix descriptor of sm_90 (PTX ISA 9.7.15.5.1.2.2, "Matrix Descriptor Format").

    Bits that the table leaves out must be zero; what hardware does with them is not known.
    """
    for low, width in ((14, 2), (30, 2), (46, 3), (52, 10)):
        if bit_field(bits, low, width):
            raise KernelFault(
                FaultKind.DESCRIPTOR,
                f"matrix descriptor 0x{bits:016x}: bits {low}..{low + width - 1} must be zero for wgmma",
            )
    swizzle = _SWIZZLES[bit_field(bits, 62, 2)]
    base_offset = bit_field(bits, 49, 3)
    if base_offset and swizzle is Swizzle.NONE:
        raise KernelFault(
            FaultKind.DESCRIPTOR,
            f"matrix descriptor 0x{bits:016x}: base offset {base_offset} without a swizzle",
        )
    return MatrixDescriptor(
        bit_field(bits, 0, 14) << 4,
        bit_field(bits, 16, 14) << 4,
        bit_field(bits, 32, 14) << 4,
        base_offset,
        swizzle,
    )


@lru_cache(maxsize=1 << 16)
def locate(bits: int, mn_major: bool, rows: int, k: int, element: int) -> Gather:
    """The chunks of a matrix [rows, k] with `element` bytes per element. The layouts are those of tcgen05
    (CUTLASS `mma_sm90_desc.hpp`, `mma_sm100_desc.hpp`)."""
    descriptor = decode_matrix(bits)
    if mn_major and element != 2:
        raise UnsupportedError(f"a transposed matrix of {8 * element}-bit elements")
    if mn_major:
        return tcgen05_operand.chunks(descriptor, True, rows * element // CHUNK, k)
    return tcgen05_operand.chunks(descriptor, False, rows, k * element // CHUNK)


def read_matrix(shared: SharedMemory, gather: Gather, mn_major: bool, form: Format, what: str) -> Codes:
    """The matrix [rows, k] with the current contents of shared memory."""
    codes: Codes = tcgen05_operand.read_chunks(shared, gather, what).view(form.storage)
    return np.ascontiguousarray(codes.T) if mn_major else codes


def put_for_token(held: Words, token: int, words: Words, halves: bool) -> None:
    """In one register of 32 lanes, replace the token by the lane's word; with `halves`, also half by half."""
    bits = 16 if halves else 32
    kind = np.uint16 if halves else np.uint32
    parts = held.reshape(-1).view(kind).reshape(LANES, -1)
    hits = [parts == kind(token >> shift & (1 << bits) - 1) for shift in range(0, 32, bits)]
    for shift, hit in zip(range(0, 32, bits), hits, strict=True):
        if hit.any():
            parts[hit] = np.broadcast_to((words >> shift).astype(kind)[:, None], parts.shape)[hit]


def negated(codes: Codes, form: Format) -> Codes:
    """imm-scale -1: flip the sign."""
    return codes ^ form.storage.type(1 << form.bits - 1)
