# SPDX-License-Identifier: Apache-2.0
"""The elements of multiplicands of tcgen05.mma: codes, one in each item of an array, from bytes of shared
memory or of TMEM."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gdnbench.sim.machine.tcgen05_operand import CHUNK

Codes = npt.NDArray[np.unsignedinteger]
Bytes = npt.NDArray[np.uint8]


def negated(codes: Codes, bits: int) -> Codes:
    """Codes of `bits` bits with the other sign."""
    return codes ^ codes.dtype.type(1 << bits - 1)


def unpack_padded(data: Bytes, bits: int) -> Bytes:
    """Codes of six or four bits: 16 of them lie contiguously at the start of 16 bytes (9.7.16.10.4.4)."""
    chunks = data.reshape(*data.shape[:-1], -1, CHUNK)
    stream = np.unpackbits(chunks[..., : 2 * bits], axis=-1, bitorder="little")
    codes = stream.reshape(*chunks.shape[:-1], CHUNK, bits)
    return np.packbits(codes, axis=-1, bitorder="little").reshape(data.shape)


def unpack_nibbles(data: Bytes) -> Bytes:
    """Codes of four bits, two in a byte, the first in the low half (9.7.16.10.4.5 and .6)."""
    low, high = data & np.uint8(0xF), data >> np.uint8(4)
    return np.stack((low, high), axis=-1).reshape(*data.shape[:-1], -1)


# Codes of less than a byte are in the middle of bytes of TMEM: bits 2..5 or 1..6 (9.7.16.10.4.3; CUTLASS
# `experimental/primitives/tcgen05/cp_narrow_a_to_tmem_mma.py` says which).
_CONTAINER_SHIFT = {4: np.uint8(2), 6: np.uint8(1)}


def from_containers(data: Bytes, bits: int) -> Bytes:
    """The codes of `bits` bits in bytes of TMEM."""
    return data >> _CONTAINER_SHIFT[bits] & np.uint8((1 << bits) - 1)


def to_containers(codes: Bytes, bits: int) -> Bytes:
    """The inverse of `from_containers`; the other bits are zero."""
    return codes << _CONTAINER_SHIFT[bits]
