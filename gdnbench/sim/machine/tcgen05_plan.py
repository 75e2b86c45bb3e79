# SPDX-License-Identifier: Apache-2.0
"""The memory that one tcgen05.mma reads and writes, computed from its descriptors and addresses.

PTX ISA 9.7.16.10. Layout D (M = 128): lane = row. Layout F (M = 64): lane = 32 (row/16) + row%16, plus 16 if
the address has lane 16; A in TMEM has the same layout (9.7.16.10.5 and 9.7.16.10.8.5, CUTLASS
`mma_traits_sm100_frag.hpp`). Operands are packed: one K takes 8 columns or 32 bytes of shared memory.

tcgen05.mma.ws with M = 64 (layout E) and 32 (layout G) uses all lanes: the columns of D are in two or four
banks of M lanes, lane = row + M bank. Each bank reads A in TMEM from its own lanes.

Of the product of a pair of CTAs, each CTA has half of the rows of A and D and half of the columns of B, the
even CTA the first halves (CUTLASS `mma_traits_sm100.hpp`). They are where one descriptor or address says, in
the CTA's own memory. With M = 256 (layout A) the 128 rows of a CTA are as in layout D. With M = 128 (layout
B) its 64 rows are in two banks, as in layout E: lanes 64 on have the second half of the columns of D, and A
in TMEM again (`TmemAllocMode::Duplicated`). A plan is that of one CTA; both have the same.

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
    SUB_BYTE,
    InstructionDescriptor,
    check_majorness,
    decode_instruction,
    decode_matrix,
)
from gdnbench.sim.machine.tcgen05_operand import CHUNK, Gather
from gdnbench.sim.machine.tcgen05_zero_columns import column_shift, zero_columns
from gdnbench.sim.machine.tmem import LANES, QUARTER, column_of, lane_of
from gdnbench.sim.tensorcore.formats import FORMATS, INTEGER_FORMATS, Format, IntegerFormat
from gdnbench.sim.tensorcore.product import IntegerProduct, Product

_OPERANDS: dict[str, Format | IntegerFormat] = {**FORMATS, **INTEGER_FORMATS}
# TMEM columns of one K of A: 32 bytes.
A_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Rows:
    """The TMEM lanes of the rows of D and of A in TMEM: all lanes, or 16 of every quarter from `lane` on, or
    banks of `m` lanes."""

    m: int
    lane: int
    banks: int = 1

    def view(self, cells: npt.NDArray[np.generic], first: int, last: int) -> npt.NDArray[np.generic]:
        """A view of the rows of columns [first, last); its last axis is the columns, that before it the
        banks if there are several."""
        if self.banks > 1:
            return cells[:, first:last].reshape(self.banks, self.m, -1).swapaxes(0, 1)
        if self.m == LANES:
            return cells[:, first:last]
        return cells.reshape(4, QUARTER, -1)[:, self.lane : self.lane + 16, first:last]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A multiplicand: its chunks in shared memory, or its first column in TMEM. The product leaves out its
    first `shift` rows, columns of B."""

    name: str
    format: Format | IntegerFormat
    negate: bool
    mn_major: bool
    gather: Gather | None
    column: int
    shift: int = 0

    def read(self, lanes: npt.NDArray[np.bool_]) -> Footprint:
        """The memory that a product in these TMEM lanes reads."""
        if self.gather is None:
            return TmemBlock(lanes, self.column, self.column + A_COLUMNS)
        return self.gather.footprint


@dataclass(frozen=True, slots=True)
class Plan:
    """One product, or a CTA's part of it. D has columns [first, last) of `lanes`. `zeros`, bool[N], are
    columns of B that count as zero."""

    descriptor: InstructionDescriptor
    product: Product | IntegerProduct
    rows: Rows
    lanes: npt.NDArray[np.bool_]
    first: int
    last: int
    a: Matrix
    b: Matrix
    reads: tuple[Footprint, ...]
    zeros: npt.NDArray[np.bool_] | None = None


@lru_cache(maxsize=1 << 16)
def plan_mma(
    kind: str,
    idesc: int,
    d: int,
    a: int,
    a_in_tmem: bool,
    b: int,
    column_mask: int | None = None,
    ctas: int = 1,
) -> Plan:
    """The product of these descriptors and addresses, of one CTA or of a pair; `column_mask` is the
    zero-column mask descriptor of a tcgen05.mma.ws. Raises KernelFault if one of them is illegal."""
    stationary = column_mask is not None
    descriptor = decode_instruction(idesc, kind, stationary, ctas)
    m = descriptor.m // ctas
    lane = lane_of(d)
    if lane not in ((0, 16) if descriptor.m == 64 and not stationary else (0,)):
        raise KernelFault(FaultKind.MISALIGNED, f"D of {descriptor.m} rows starts at lane {lane} of TMEM")
    left = _in_tmem(a, lane, descriptor) if a_in_tmem else _in_shared(a, descriptor, "A")
    zeros, shift = None, 0
    banks = LANES // m if stationary or ctas == 2 else 1
    if column_mask is not None:
        zeros = zero_columns(column_mask, descriptor.m, descriptor.n)
        shift = column_shift(column_mask, descriptor.m)
    right = _in_shared(b, descriptor, "B", shift)
    first = column_of(d)
    last = first + descriptor.n // banks
    rows = Rows(m, lane, banks)
    lanes = _lanes_of(rows)
    return Plan(
        descriptor,
        _product(descriptor),
        rows,
        lanes,
        first,
        last,
        left,
        right,
        (left.read(lanes), right.read(lanes)),
        zeros,
    )


def _in_shared(bits: int, d: InstructionDescriptor, name: str, shift: int = 0) -> Matrix:
    """A matrix in shared memory. Of B, the first `shift` columns are left out and as many more read."""
    descriptor = decode_matrix(bits)
    if name == "A":
        code, negate, mn_major, rows = d.a, d.negate_a, d.a_mn_major, d.m // d.ctas
    else:
        code, negate, mn_major, rows = d.b, d.negate_b, d.b_mn_major, d.n // d.ctas + shift
    check_majorness(descriptor.swizzle, mn_major, d.element_bytes, name)
    if mn_major:
        gather = tcgen05_operand.chunks(descriptor, True, -(-rows * d.element_bytes // CHUNK), d.k)
    else:
        # Sixteen elements of less than a byte are packed at the start of a chunk (9.7.16.10.4.4).
        used = 2 * FORMATS[code].bits if code in SUB_BYTE else CHUNK
        gather = tcgen05_operand.chunks(descriptor, False, rows, d.k * d.element_bytes // CHUNK, used)
    return Matrix(name, _OPERANDS[code], negate, mn_major, gather, 0, shift)


def _in_tmem(address: int, lane: int, d: InstructionDescriptor) -> Matrix:
    if d.a_mn_major:
        raise KernelFault(FaultKind.DESCRIPTOR, "A in TMEM cannot be transposed")
    if lane_of(address) != lane:
        raise KernelFault(
            FaultKind.MISALIGNED, f"A in TMEM starts at lane {lane_of(address)}, D at lane {lane}"
        )
    return Matrix("A", _OPERANDS[d.a], d.negate_a, False, None, column_of(address))


@cache
def _lanes_of(rows: Rows) -> npt.NDArray[np.bool_]:
    mask = np.zeros(LANES, bool)
    rows.view(mask[:, None], 0, 1)[...] = True
    mask.setflags(write=False)
    return mask


@cache
def _product(d: InstructionDescriptor) -> Product | IntegerProduct:
    if d.d == "s32":
        return IntegerProduct(INTEGER_FORMATS[d.a], INTEGER_FORMATS[d.b], d.k, d.saturate)
    return Product(FORMATS[d.a], FORMATS[d.b], "f16" if d.d == "f16" else "f32", d.k, "tcgen05")
