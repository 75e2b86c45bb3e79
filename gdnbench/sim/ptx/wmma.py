# SPDX-License-Identifier: Apache-2.0
"""The operands of `wmma` (PTX ISA, "wmma.load", "wmma.store", "wmma.mma"): their extents, their registers,
and which of their elements lie together in memory.

The ISA leaves open which elements a register holds. Here they are those of an H100, which a kernel that looks
at single elements of a fragment relies on: the operands of one or more `mma.sync` side by side. For m8n32k16
these are the operands of D^T = B^T A^T. f16 operands A and B fill eight registers, by repeating themselves.
"""

from __future__ import annotations

from gdnbench.sim.ptx.ir import Instruction
from gdnbench.sim.ptx.literals import width_of

SHAPES = {
    "m16n16k16": (16, 16, 16),
    "m32n8k16": (32, 8, 16),
    "m8n32k16": (8, 32, 16),
    "m16n16k8": (16, 16, 8),
    "m8n8k4": (8, 8, 4),
}
"""M, N and K of each shape."""

_HALF_REGISTERS = 8  # of A and B of f16


def shape_of(ins: Instruction) -> tuple[int, int, int]:
    """M, N and K."""
    return SHAPES[ins.choice(*SHAPES)]


def is_transposed(shape: tuple[int, int, int]) -> bool:
    """Whether the tensor core multiplies the transposes, because M is less than 16 rows."""
    return shape[:2] == (8, 32)


def operand_of(ins: Instruction) -> str:
    """The operand that a load or a store moves: "a", "b" or "c", which D is like."""
    return ins.choice("a", "b", default="c")


def extent(operand: str, shape: tuple[int, int, int]) -> tuple[int, int]:
    """Rows and columns of an operand."""
    m, n, k = shape
    return {"a": (m, k), "b": (k, n), "c": (m, n)}[operand]


def element_bytes(type_name: str) -> int:
    """Bytes of an element in memory; tf32 is stored as f32."""
    return width_of(type_name) // 8 if type_name != "tf32" else 4


def per_register(type_name: str) -> int:
    """The elements of a register."""
    return max(4 // element_bytes(type_name), 1)


def distinct_registers(operand: str, shape: tuple[int, int, int], type_name: str) -> int:
    """The registers of an operand without repetitions."""
    rows, columns = extent(operand, shape)
    return rows * columns // (32 * per_register(type_name))


def registers(operand: str, shape: tuple[int, int, int], type_name: str) -> int:
    """The registers of an operand."""
    distinct = distinct_registers(operand, shape, type_name)
    return _HALF_REGISTERS if type_name == "f16" and operand != "c" else distinct


def together(ins: Instruction) -> int:
    """The elements of a register that are neighbours in memory, so that a load or store moves them as one:
    all of them if the matrix is stored in the direction in which registers hold it, else one."""
    along = {"a": "row", "b": "col", "c": "col" if is_transposed(shape_of(ins)) else "row"}
    return per_register(ins.types[0]) if ins.has(along[operand_of(ins)]) else 1


def unit_bytes(ins: Instruction) -> int:
    """Bytes that a lane accesses at once."""
    return together(ins) * element_bytes(ins.types[0])


def accesses(ins: Instruction) -> int:
    """How often a lane accesses memory."""
    operand, kind = operand_of(ins), ins.types[0]
    return distinct_registers(operand, shape_of(ins), kind) * per_register(kind) // together(ins)


def default_stride(ins: Instruction) -> int:
    """The distance of rows (or columns, if `.col`) in elements where the instruction names none."""
    rows, columns = extent(operand_of(ins), shape_of(ins))
    return columns if ins.has("row") else rows
