"""Block-scaled tcgen05.mma: D[128,N] (+)= (A scale_A) (B scale_B), with the scales in TMEM.

PTX ISA 9.0, 9.7.16.10.7. As in other products, D and A in TMEM have a row in each lane, and everything is
read when the product lands, in the order of issue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import tcgen05_operand
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Warp
from gdnbench.sim.machine.footprint import Footprint, TmemBlock, moved_to
from gdnbench.sim.machine.tcgen05_descriptor import SUB_BYTE, check_majorness, decode_matrix
from gdnbench.sim.machine.tcgen05_elements import (
    Bytes,
    Codes,
    from_containers,
    negated,
    unpack_nibbles,
    unpack_padded,
)
from gdnbench.sim.machine.tcgen05_issue import STREAM, lane_value, single_issuer
from gdnbench.sim.machine.tcgen05_operand import CHUNK
from gdnbench.sim.machine.tcgen05_plan import A_COLUMNS, Matrix
from gdnbench.sim.machine.tcgen05_scale_vector import ScaleVector, scale_vector
from gdnbench.sim.machine.tcgen05_scaled_descriptor import (
    SCALED_M,
    ScaledDescriptor,
    block_of,
    decode_scaled,
)
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
    """One product. D has columns [first, last) of all lanes."""

    descriptor: ScaledDescriptor
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
    mods: tuple[str, ...], idesc: int, d: int, a: int, a_in_tmem: bool, b: int, scale_a: int, scale_b: int
) -> ScaledPlan:
    """The product of these suffixes, descriptors and addresses. Raises KernelFault if one of them is
    illegal."""
    descriptor = decode_scaled(idesc, *block_of(mods))
    product = descriptor.product
    if lane_of(d):
        raise KernelFault(FaultKind.MISALIGNED, f"D of {SCALED_M} rows starts at lane {lane_of(d)} of TMEM")
    left = (
        _in_tmem(a, descriptor)
        if a_in_tmem
        else _in_shared("A", a, product.a, descriptor.negate_a, descriptor.a_mn_major, SCALED_M, descriptor)
    )
    right = _in_shared(
        "B", b, product.b, descriptor.negate_b, descriptor.b_mn_major, descriptor.n, descriptor
    )
    a_scales = scale_vector("A", scale_a, descriptor.a_scale, SCALED_M, product.scales)
    b_scales = scale_vector("B", scale_b, descriptor.b_scale, descriptor.n, product.scales)
    first = column_of(d)
    last = first + descriptor.n
    return ScaledPlan(
        descriptor,
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
    """One product in flight."""

    cta: Cta
    warp: Warp
    issuers: Lanes
    ins: Instruction
    plan: ScaledPlan
    accumulate: bool
    writer: Writer

    def land(self) -> None:
        self.cta.land(self.warp, self.ins, self.issuers, self._multiply)

    def _multiply(self) -> None:
        cta, work = self.cta, self.plan
        tmem, product = cta.tmem, work.descriptor.product
        tmem.end_write(self.writer)
        tmem.require(work.first, work.last, "D")
        work.a_scales.require(tmem)
        work.b_scales.require(tmem)
        multiply = cta.config.multiply_scaled
        assert multiply is not None
        a, b = (self._from_tmem(tmem) if m.gather is None else self._from_shared(m) for m in (work.a, work.b))
        scale_a, scale_b = work.a_scales.read(tmem), work.b_scales.read(tmem)
        c = self._input(tmem) if self.accumulate else None
        tmem.cells[:, work.first : work.last] = multiply(product, cta.config.mma, a, scale_a, b, scale_b, c)
        tmem.valid[:, work.first : work.last] = True
        cta.counters.mma_macs += SCALED_M * work.descriptor.n * product.k

    def _input(self, tmem: TensorMemory) -> npt.NDArray[np.uint32]:
        """D as the accumulator's input."""
        work = self.plan
        if tmem.track and not tmem.valid[:, work.first : work.last].all():
            message = f"D in TMEM columns {work.first}..{work.last - 1} was never all written"
            tmem.skip(KernelFault(FaultKind.UNINITIALISED, message))
        return np.ascontiguousarray(tmem.cells[:, work.first : work.last])

    def _from_shared(self, matrix: Matrix) -> Codes:
        assert matrix.gather is not None
        data = tcgen05_operand.read_chunks(self.cta.shared, matrix.gather, matrix.name)
        if matrix.mn_major:
            return _signed(np.ascontiguousarray(data.T), matrix)
        if not self.plan.descriptor.padded:
            return _signed(unpack_nibbles(data), matrix)
        return _signed(unpack_padded(data, matrix.format.bits) if _is_sub_byte(matrix) else data, matrix)

    def _from_tmem(self, tmem: TensorMemory) -> Codes:
        matrix = self.plan.a
        first, last = matrix.column, matrix.column + A_COLUMNS
        tmem.require(first, last, "A")
        if tmem.track and not tmem.valid[:, first:last].all():
            message = f"A in TMEM columns {first}..{last - 1} was never all written"
            tmem.skip(KernelFault(FaultKind.UNINITIALISED, message))
        data: Bytes = np.ascontiguousarray(tmem.cells[:, first:last]).view(np.uint8)
        if not self.plan.descriptor.padded:
            return _signed(unpack_nibbles(data), matrix)
        return _signed(from_containers(data, matrix.format.bits) if _is_sub_byte(matrix) else data, matrix)


def _is_sub_byte(matrix: Matrix) -> bool:
    return matrix.format.name in SUB_BYTE


def _signed(codes: Codes, matrix: Matrix) -> Codes:
    return negated(codes, matrix.format.bits) if matrix.negate else codes


def issue(cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> Results:
    """Operands: [d], a-desc or [a], b-desc, idesc, [scale-a], [scale-b], enable-input-d."""
    if len(sources) != _SOURCES:
        raise UnsupportedError(f"{ins.name} with {len(sources)} sources")
    lane = single_issuer(cta, ins, lanes, sources)
    d, a, b, idesc, scale_a, scale_b, accumulate = (lane_value(source, lane) for source in sources)
    work = plan_scaled(ins.mods, idesc, d, a, isinstance(ins.sources[1], Address), b, scale_a, scale_b)
    tmem = cta.tmem
    tmem.require(work.first, work.last, "D")
    work.a_scales.require(tmem)
    work.b_scales.require(tmem)
    for matrix in (work.a, work.b):
        if matrix.gather is None:
            tmem.require(matrix.column, matrix.column + A_COLUMNS, "A")
        else:
            tcgen05_operand.check_bounds(cta.shared, matrix.gather, matrix.name)
    writer = Writer(_ALL_LANES, work.first, work.last)
    product = _ScaledMma(cta, warp, lanes.copy(), ins, work, bool(accumulate), writer)
    tmem.begin_write(writer)
    reads = moved_to(cta.shared.origin, (*work.reads, *work.writes) if accumulate else work.reads)
    cta.queue.submit(AsyncOperation(ins.op, product.land, stream=STREAM, reads=reads, writes=work.writes))
    return ()
