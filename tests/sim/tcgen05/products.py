# SPDX-License-Identifier: Apache-2.0
"""A whole product on the machine: operands laid out by CuTe, issued K by K, read back lane by lane."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.sim.tcgen05.cute_layouts import SharedLayout, accumulator_layout, tmem_operand_layout
from tests.sim.tcgen05.tensor_machine import Machine

KIND = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4"}
TYPE_CODE = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1}
STEP = {"f16": 16, "tf32": 8, "f8f6f4": 32}
LAYOUT_CODE = {(0, 4, 3): 0, (2, 5, 2): 1, (3, 4, 3): 2, (2, 4, 3): 4, (1, 4, 3): 6}
NUMPY = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "u8": np.uint8,
    "s8": np.int8,
}


def codes(name: str, values: np.ndarray) -> np.ndarray:
    """Numbers as the bits of an operand type."""
    data = values.astype(NUMPY[name])
    return data.view(np.dtype(f"u{data.itemsize}"))


def instruction_descriptor(
    a: str, b: str, m: int, n: int, *, d_f32: bool = True, a_mn: bool = False, b_mn: bool = False,
    negate_a: bool = False, negate_b: bool = False,
) -> int:  # fmt: skip
    """Table 42 of PTX ISA 9.7.16.4.2."""
    return (
        int(d_f32) << 4 | TYPE_CODE[a] << 7 | TYPE_CODE[b] << 10 | int(negate_a) << 13 | int(negate_b) << 14
        | int(a_mn) << 15 | int(b_mn) << 16 | n >> 3 << 17 | m >> 4 << 24
    )  # fmt: skip


def matrix_descriptor(start: int, leading: int, stride: int, layout: int, base_offset: int = 0) -> int:
    """Table 40 of PTX ISA 9.7.16.4.1."""
    return (
        start >> 4 & 0x3FFF | (leading >> 4 & 0x3FFF) << 16 | (stride >> 4 & 0x3FFF) << 32
        | 1 << 46 | base_offset << 49 | layout << 61
    )  # fmt: skip


@dataclass
class Operand:
    """A matrix in shared memory: its CuTe layout at `base`."""

    layout: SharedLayout
    base: int
    type: str

    def put(self, machine: Machine, values: np.ndarray) -> None:
        data = codes(self.type, values)
        address = machine.cta.shared.origin + self.layout.addresses(self.base)
        machine.cta.shared.bytes[address] = data[..., None].view(np.uint8)
        machine.cta.shared.valid[address] = True

    def descriptor(self, k: int) -> int:
        start = self.base + int(self.layout.offset[0, k])
        return matrix_descriptor(start, *self.layout.strides(), LAYOUT_CODE[self.layout.swizzle])


def put_tmem(
    machine: Machine, column: int, name: str, m: int, values: np.ndarray, lane: int = 0, ctas: int = 1
) -> None:
    """A into TMEM with tcgen05.st, where CuTe's A fragment has it: `values` are all its rows, or those of a
    CTA of a pair."""
    data = codes(name, values)
    per_column = 4 // data.itemsize
    offset = tmem_operand_layout(m, values.shape[1], "e4m3" if name in ("u8", "s8") else name, ctas)
    data = np.tile(data, (len(offset) // len(data), 1))
    lanes, element = np.divmod(offset, per_column << 16)
    columns = values.shape[1] // per_column
    image = np.zeros((128, columns * per_column), data.dtype)
    image[lanes + lane, element] = data
    words = image.view(np.uint32)
    for warp in range(4):
        quarter = words[32 * warp : 32 * warp + 32]
        for at in range(0, columns, 8):
            machine.store("32x32b", 8, column + at, quarter[:, at : at + 8], warp=warp)


def image(machine: Machine, column: int, n: int) -> np.ndarray:
    """Columns [column, column + n) of all 128 lanes, through 32x32b loads."""
    parts = []
    for warp in range(4):
        loads = [machine.load("32x32b", 8, column + at, warp=warp) for at in range(0, n, 8)]
        parts.append(np.concatenate(loads, axis=1))
    return np.concatenate(parts)


def result(machine: Machine, column: int, m: int, n: int, lane: int = 0, ctas: int = 1) -> np.ndarray:
    """D[m, n] as words, from where CuTe's accumulator has it; of a pair, the rows of the CTA."""
    address = accumulator_layout(m, n, ctas=ctas)
    machine.cta.tmem.track = False  # the other half of the lanes of an M = 64 product holds nothing
    columns = -(-int((address & 0xFFFF).max() + 1) // 8) * 8
    return image(machine, column, columns)[(address >> 16) + lane, address & 0xFFFF]
