# SPDX-License-Identifier: Apache-2.0
"""Which lane of a warp holds which element of A, B and C of mma.m16n8k*, by the figures of the PTX ISA
("Matrix Fragments for mma.m16n8k8" and its siblings). Written apart from the simulator's own table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.generic]

LANE = np.arange(32)
GROUP, THREAD = LANE // 4, LANE % 4


def unpacked(registers: list[Codes], dtype: npt.DTypeLike) -> Codes:
    """(warps, lanes, registers, elements of a register), from one array of words per register."""
    words = np.stack(registers, axis=-1).astype(np.uint32)
    return words.view(dtype).reshape(-1, 32, len(registers), 4 // np.dtype(dtype).itemsize)


def matrix_a(registers: list[Codes], dtype: npt.DTypeLike) -> Codes:
    """(warps, 16, K): a register holds neighbours in K; registers alternate between upper and lower rows."""
    held = unpacked(registers, dtype)
    warps, _, count, each = held.shape
    a = np.zeros((warps, 16, 8 * count * each // 4), dtype)
    for register in range(count):
        for element in range(each):
            k = each * THREAD + 4 * each * (register // 2) + element
            a[:, GROUP + 8 * (register % 2), k] = held[:, :, register, element]
    return a


def matrix_b(registers: list[Codes], dtype: npt.DTypeLike) -> Codes:
    """(warps, 8, K): column n of B as row n."""
    held = unpacked(registers, dtype)
    warps, _, count, each = held.shape
    b = np.zeros((warps, 8, 4 * count * each), dtype)
    for register in range(count):
        for element in range(each):
            b[:, GROUP, each * THREAD + 4 * each * register + element] = held[:, :, register, element]
    return b


def matrix_c(registers: list[Codes], dtype: npt.DTypeLike) -> Codes:
    """(warps, 16, 8): two neighbours in N, of the upper and then of the lower rows."""
    held = unpacked(registers, dtype).reshape(-1, 32, 4)
    c = np.zeros((held.shape[0], 16, 8), dtype)
    for i in range(4):
        c[:, GROUP + 8 * (i // 2), 2 * THREAD + i % 2] = held[:, :, i]
    return c
