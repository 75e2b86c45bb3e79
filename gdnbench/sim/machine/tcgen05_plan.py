"""The memory that one tcgen05.mma reads and writes, computed from its descriptors and addresses.

PTX ISA 9.7.16.10. Layout D (M = 128): lane = row. Layout F (M = 64): lane = 32 (row/16) + row%16, plus 16 if
the address has lane 16; A in TMEM has the same layout (9.7.16.10.5 and 9.7.16.10.8.5, CUTLASS
`mma_traits_sm100_frag.hpp`). Operands are packed: one K takes 8 columns or 32 bytes of shared memory.

A kernel issues the same few products repeatedly, so plans are cached; they contain no state of the CTA.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine import tcgen05_operand
from gdnbench.sim.machine.footprint import Footprint, TmemBlock
from gdnbench.sim.machine.tcgen05_descriptor import (
    InstructionDescriptor,
    check_majorness,
    decode_instruction,
    decode_matrix,
)
from gdnbench.sim.machine.tcgen05_operand import CHUNK, Gather
from gdnbench.sim.machine.tmem import LANES, QUARTER, column_of, lane_of
from gdnbench.sim.tensorcore.formats import FORMATS, Format
from gdnbench.sim.tensorcore.product import Product

# TMEM columns of one K of A: 32 bytes.
A_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Rows:
    """The TMEM lanes of the rows of D and of A in TMEM: all lanes, or 16 of every quarter from `lane` on."""

    m: int
    lane: int

    def view(self, cells: npt.NDArray[np.generic], first: int, last: int) -> npt.NDArray[np.generic]:
        """A view of the rows of columns [first, last); its last axis is the columns."""
        if self.m == LANES:
            return cells[:, first:last]
        return cells.reshape(4, QUARTER, -1)[:, self.lane : self.lane + 16, first:last]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A multiplicand: its chunks in shared memory, or its first column in TMEM."""

    name: str
    format: Format
    negate: bool
    mn_major: bool
    gather: Gather | None
    column: int

    def read(self, lanes: npt.NDArray[np.bool_]) -> Footprint:
        """The memory that a product in these TMEM lanes reads."""
        if self.gather is None:
            return TmemBlock(lanes, self.column, self.column + A_COLUMNS)
        return self.gather.footprint


@dataclass(frozen=True, slots=True)
class Plan:
    """One product. D has columns [first, last) of `lanes`."""

    descriptor: InstructionDescriptor
    product: Product
    rows: Rows
    lanes: npt.NDArray[np.bool_]
    first: int
    last: int
    a: Matrix
    b: Matrix
    reads: tuple[Footprint, ...]
    writes: tuple[Footprint, ...]


@lru_cache(maxsize=1 << 16)
def plan_mma(kind: str, idesc: int, d: int, a: int, a_in_tmem: bool, b: int) -> Plan:
    """The product of these descriptors and addresses. Raises KernelFault if one of them is illegal."""
    descriptor = decode_instruction(idesc, kind)
    lane = lane_of(d)
    if lane not in ((0,) if descriptor.m == LANES else (0, 16)):
        raise KernelFault(FaultKind.MISALIGNED, f"D of {descriptor.m} rows starts at lane {lane} of TMEM")
    left = _in_tmem(a, lane, descriptor) if a_in_tmem else _in_shared(a, descriptor, "A")
    right = _in_shared(b, descriptor, "B")
    first = column_of(d)
    last = first + descriptor.n
    lanes = _lanes_of(descriptor.m, lane)
    return Plan(
        descriptor,
        _product(descriptor),
        Rows(descriptor.m, lane),
        lanes,
        first,
        last,
        left,
        right,
        (left.read(lanes), right.read(lanes)),
        (TmemBlock(lanes, first, last),),
    )


def _in_shared(bits: int, d: InstructionDescriptor, name: str) -> Matrix:
    descriptor = decode_matrix(bits)
    if name == "A":
        code, negate, mn_major, rows = d.a, d.negate_a, d.a_mn_major, d.m
    else:
        code, negate, mn_major, rows = d.b, d.negate_b, d.b_mn_major, d.n
    check_majorness(descriptor.swizzle, mn_major, d.element_bytes, name)
    if mn_major:
        gather = tcgen05_operand.chunks(descriptor, True, rows * d.element_bytes // CHUNK, d.k)
    else:
        gather = tcgen05_operand.chunks(descriptor, False, rows, d.k * d.element_bytes // CHUNK)
    return Matrix(name, FORMATS[code], negate, mn_major, gather, 0)


def _in_tmem(address: int, lane: int, d: InstructionDescriptor) -> Matrix:
    if d.a_mn_major:
        raise KernelFault(FaultKind.DESCRIPTOR, "A in TMEM cannot be transposed")
    if lane_of(address) != lane:
        raise KernelFault(
            FaultKind.MISALIGNED, f"A in TMEM starts at lane {lane_of(address)}, D at lane {lane}"
        )
    return Matrix("A", FORMATS[d.a], d.negate_a, False, None, column_of(address))


@cache
def _lanes_of(m: int, lane: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(LANES, bool)
    Rows(m, lane).view(mask[:, None], 0, 1)[...] = True
    mask.setflags(write=False)
    return mask


@cache
def _product(d: InstructionDescriptor) -> Product:
    return Product(FORMATS[d.a], FORMATS[d.b], "f16" if d.d == "f16" else "f32", d.k, "tcgen05")
