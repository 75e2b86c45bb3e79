# SPDX-License-Identifier: Apache-2.0
"""Block-scaled tcgen05.mma: D[M,N] (+)= (A scale_A) (B scale_B), with the scales in TMEM.

PTX ISA 9.0, 9.7.16.10.7. The places of the matrices are those of other products of one CTA or a pair
(`tcgen05_plan`), and everything is read when the product lands, in the order of issue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import tcgen05_operand
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Warp
from gdnbench.sim.machine.footprint import Footprint, TmemBlock
from gdnbench.sim.machine.tcgen05_descriptor import SUB_BYTE, check_majorness, decode_matrix
from gdnbench.sim.machine.tcgen05_elements import (
    Bytes,
    Codes,
    from_containers,
    negated,
    unpack_nibbles,
    unpack_padded,
)
from gdnbench.sim.machine.tcgen05_issue import (
    Accesses,
    Group,
    check_pair_runs,
    lane_value,
    single_issuer,
    submit,
)
from gdnbench.sim.machine.tcgen05_operand import CHUNK
from gdnbench.sim.machine.tcgen05_plan import A_COLUMNS, Matrix, Rows
from gdnbench.sim.machine.tcgen05_scale_vector import ScaleVector, scale_vector
from gdnbench.sim.machine.tcgen05_scaled_descriptor import ScaledDescriptor, block_of, decode_scaled
from gdnbench.sim.machine.tmem import LANES, TensorMemory, Writer, column_of, lane_of
from gdnbench.sim.ptx.ir import Address, Instruction
from gdnbench.sim.tensorcore.formats import Format

_ALL_LANES = np.ones(LANES, bool)
_ALL_LANES.setflags(write=False)
_SOURCES = 7
# Of a row of A or B: K times the width of an element.
_ROW_BYTES = 32


@dataclass(frozen=True, slots=True)
class ScaledPlan:
    """One product, or a CTA's part of it. D has columns [first, last) of all lanes."""

    descriptor: ScaledDescriptor
    rows: Rows
    first: int
    last: int
    a: Matrix
    b: Matrix
    a_scales: ScaleVector
    b_scales: ScaleVector
    reads: tuple[Footprint, ...]
    writes: tuple[Footprint, ...]


@lru_cache(maxsize=1 << 16)
def plan_scaled(
    mods: tuple[str, ...],
    idesc: int,
    d: int,
    a: int,
    a_in_tmem: bool,
    b: int,
    scale_a: int,
    scale_b: int,
    ctas: int = 1,
) -> ScaledPlan:
    """The product of these suffixes, descriptors and addresses, of one CTA or of a pair. Raises KernelFault
    if one of them is illegal."""
    descriptor = decode_scaled(idesc, *block_of(mods), ctas)
    product, m = descriptor.product, descriptor.m // ctas
    rows = Rows(m, 0, LANES // m)
    if lane_of(d):
        raise KernelFault(
            FaultKind.MISALIGNED, f"D of {descriptor.m} rows starts at lane {lane_of(d)} of TMEM"
        )
    left = (
        _in_tmem(a, descriptor)
        if a_in_tmem
        else _in_shared("A", a, product.a, descriptor.negate_a, descriptor.a_mn_major, m, descriptor)
    )
    right = _in_shared(
        "B", b, product.b, descriptor.negate_b, descriptor.b_mn_major, descriptor.n // ctas, descriptor
    )
    width = descriptor.n // rows.banks
    a_scales = scale_vector("A", scale_a, descriptor.a_scale, m, product.scales)
    b_scales = scale_vector("B", scale_b, descriptor.b_scale, width, product.scales, rows.banks)
    first = column_of(d)
    last = first + width
    return ScaledPlan(
        descriptor,
        rows,
        first,
        last,
        left,
        right,
        a_scales,
        b_scales,
        (left.read(_ALL_LANES), right.read(_ALL_LANES), *a_scales.reads(), *b_scales.reads()),
        (TmemBlock(_ALL_LANES, first, last),),
    )


def _in_shared(
    name: str, bits: int, form: Format, negate: bool, mn_major: bool, rows: int, d: ScaledDescriptor
) -> Matrix:
    descriptor = decode_matrix(bits)
    check_majorness(descriptor.swizzle, mn_major, 1, name)
    if mn_major:
        gather = tcgen05_operand.chunks(descriptor, True, rows // CHUNK, d.product.k)
    else:
        # Sixteen elements of less than a byte are packed at the start of a chunk (9.7.16.10.4.4).
        used = 2 * form.bits if d.padded else CHUNK
        gather = tcgen05_operand.chunks(descriptor, False, rows, _ROW_BYTES // CHUNK, used)
    return Matrix(name, form, negate, mn_major, gather, 0)


def _in_tmem(address: int, d: ScaledDescriptor) -> Matrix:
    if d.a_mn_major:
        raise KernelFault(FaultKind.DESCRIPTOR, "A in TMEM cannot be transposed")
    if lane_of(address):
        raise KernelFault(FaultKind.MISALIGNED, f"A in TMEM starts at lane {lane_of(address)}, D at lane 0")
    return Matrix("A", d.product.a, d.negate_a, False, None, column_of(address))


@dataclass(eq=False, slots=True)
class _ScaledMma:
    """One product in flight, of the CTAs of `group`, issued by `cta`."""

    cta: Cta
    group: Group
    warp: Warp
    issuers: Lanes
    ins: Instruction
    plan: ScaledPlan
    accumulate: bool
    writer: Writer

    def land(self) -> None:
        self.cta.land(self.warp, self.ins, self.issuers, self._land)

    def _land(self) -> None:
        work = self.plan
        check_pair_runs(self.ins, self.group)
        for cta in self.group:
            cta.tmem.end_write(self.writer)
            cta.tmem.require(work.first, work.last, "D")
            work.a_scales.require(cta.tmem)
            work.b_scales.require(cta.tmem)
        parts = [self._from_shared(cta, work.b) for cta in self.group]
        b = np.concatenate(parts) if len(parts) > 1 else parts[0]
        for cta in self.group:
            self._multiply(cta, b)

    def _multiply(self, cta: Cta, b: Codes) -> None:
        """The rows of one CTA."""
        work, tmem = self.plan, cta.tmem
        product, rows = work.descriptor.product, work.rows
        multiply = cta.config.multiply_scaled
        assert multiply is not None
        # Every bank of the columns of D has an A of its own in TMEM.
        banks = [self._from_shared(cta, work.a)] if work.a.gather is not None else self._from_tmem(tmem)
        scale_a, scale_b = work.a_scales.read(tmem), work.b_scales.read(tmem)
        c = self._input(tmem) if self.accumulate else None
        width = work.descriptor.n // len(banks)
        parts = []
        for number, a in enumerate(banks):
            span = slice(width * number, width * (number + 1))
            before = None if c is None else c[:, span]
            parts.append(multiply(product, cta.config.mma, a, scale_a, b[span], scale_b[span], before))
        result = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        cells = rows.view(tmem.cells, work.first, work.last)
        cells[...] = result.reshape(cells.shape)
        tmem.valid[:, work.first : work.last] = True
        cta.counters.mma_macs += rows.m * work.descriptor.n * product.k

    def _input(self, tmem: TensorMemory) -> npt.NDArray[np.uint32]:
        """D as the accumulator's input."""
        work = self.plan
        if tmem.track and not tmem.valid[:, work.first : work.last].all():
            message = f"D in TMEM columns {work.first}..{work.last - 1} was never all written"
            tmem.skip(KernelFault(FaultKind.UNINITIALISED, message))
        cells = work.rows.view(tmem.cells, work.first, work.last)
        return np.ascontiguousarray(cells.reshape(work.rows.m, work.descriptor.n), np.uint32)

    def _from_shared(self, cta: Cta, matrix: Matrix) -> Codes:
        assert matrix.gather is not None
        data = tcgen05_operand.read_chunks(cta.shared, matrix.gather, matrix.name)
        if matrix.mn_major:
            return _signed(np.ascontiguousarray(data.T), matrix)
        if not self.plan.descriptor.padded:
            return _signed(unpack_nibbles(data), matrix)
        return _signed(unpack_padded(data, matrix.format.bits) if _is_sub_byte(matrix) else data, matrix)

    def _from_tmem(self, tmem: TensorMemory) -> list[Codes]:
        """A in TMEM, of each bank."""
        matrix, rows = self.plan.a, self.plan.rows
        first, last = matrix.column, matrix.column + A_COLUMNS
        tmem.require(first, last, "A")
        if tmem.track and not tmem.valid[:, first:last].all():
            message = f"A in TMEM columns {first}..{last - 1} was never all written"
            tmem.skip(KernelFault(FaultKind.UNINITIALISED, message))
        return [
            self._elements(np.ascontiguousarray(tmem.cells[lane : lane + rows.m, first:last]).view(np.uint8))
            for lane in range(0, LANES, rows.m)
        ]

    def _elements(self, data: Bytes) -> Codes:
        """Rows of A in TMEM as codes."""
        matrix = self.plan.a
        if not self.plan.descriptor.padded:
            return _signed(unpack_nibbles(data), matrix)
        return _signed(from_containers(data, matrix.format.bits) if _is_sub_byte(matrix) else data, matrix)


def _is_sub_byte(matrix: Matrix) -> bool:
    return matrix.format.name in SUB_BYTE


def _signed(codes: Codes, matrix: Matrix) -> Codes:
    return negated(codes, matrix.format.bits) if matrix.negate else codes


def issue(
    cta: Cta, group: Group, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> Results:
    """Operands: [d], a-desc or [a], b-desc, idesc, [scale-a], [scale-b], enable-input-d."""
    if len(sources) != _SOURCES:
        raise UnsupportedError(f"{ins.name} with {len(sources)} sources")
    lane = single_issuer(cta, ins, lanes, sources)
    d, a, b, idesc, scale_a, scale_b, accumulate = (lane_value(source, lane) for source in sources)
    if idesc >> 31 & 1 and cta.launch.module.target == "sm_103a":
        raise UnsupportedError(f"{ins.name} with K = 96 (instruction descriptor {idesc:#010x}, bit 31)")
    in_tmem = isinstance(ins.sources[1], Address)
    work = plan_scaled(ins.mods, idesc, d, a, in_tmem, b, scale_a, scale_b, len(group))
    writer = Writer(_ALL_LANES, work.first, work.last)
    for member in group:
        tmem = member.tmem
        tmem.require(work.first, work.last, "D")
        work.a_scales.require(tmem)
        work.b_scales.require(tmem)
        for matrix in (work.a, work.b):
            if matrix.gather is None:
                tmem.require(matrix.column, matrix.column + A_COLUMNS, "A")
            else:
                tcgen05_operand.check_bounds(member.shared, matrix.gather, matrix.name)
        tmem.begin_write(writer)
    product = _ScaledMma(cta, group, warp, lanes.copy(), ins, work, bool(accumulate), writer)
    accesses = Accesses((*work.reads, *work.writes) if accumulate else work.reads, work.writes)
    submit(cta, warp, group, ins, product.land, lambda: [accesses] * len(group))
    return ()
