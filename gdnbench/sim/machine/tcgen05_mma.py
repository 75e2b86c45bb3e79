"""tcgen05.mma: D[M,N] (+)= A[M,K] B[K,N] with A in shared memory or TMEM, B in shared memory, D in TMEM.

PTX ISA 9.7.16.10. Layout D (M = 128): lane = row. Layout F (M = 64): lane = 32 (row/16) + row%16, plus 16 if
the address says so; A in TMEM lies alike (9.7.16.10.5 and 9.7.16.10.8.5, CUTLASS
`mma_traits_sm100_frag.hpp`). A result takes one column an element, f16 in the low half (9.7.16.10.4.1); the
upper half is written zero, which no document says. Operands are packed: 8 columns or 32 bytes of shared
memory hold one K.

The product is asynchronous: it reads its operands and D when it lands, in the order of issue (`STREAM`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import tcgen05_operand
from gdnbench.sim.machine.async_queue import AsyncOperation, Span
from gdnbench.sim.machine.seam import Argument, Handler, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.tcgen05_descriptor import (
    SUB_BYTE,
    InstructionDescriptor,
    MatrixDescriptor,
    check_majorness,
    decode_instruction,
    decode_matrix,
)
from gdnbench.sim.machine.tcgen05_issue import STREAM, refuse_pairs, single_issuer, value
from gdnbench.sim.machine.tcgen05_operand import CHUNK, Gather
from gdnbench.sim.machine.tmem import LANES, QUARTER, TensorMemory, Writer, column_of, lane_of
from gdnbench.sim.ptx.ir import Address, Immediate, Instruction, Vector
from gdnbench.sim.tensorcore.formats import FORMATS, Format
from gdnbench.sim.tensorcore.product import Product

if TYPE_CHECKING:
    from gdnbench.sim.machine.cta import Cta

# Columns of TMEM that one K of A takes: 32 bytes.
_A_COLUMNS = 8
_KINDS = ("f16", "tf32", "f8f6f4")

Cells = npt.NDArray[np.uint32]


@cache
def _kind(mods: tuple[str, ...]) -> str:
    """The kind that an opcode names, if it and all other suffixes are modelled."""
    kind = next((mod.removeprefix("kind::") for mod in mods if mod.startswith("kind::")), "")
    refused = [
        mod for mod in mods if mod in ("ashift", "block_scale") or mod.startswith(("scale_vec", "block"))
    ]
    if refused or kind not in _KINDS:
        raise UnsupportedError(f"tcgen05.mma.{'.'.join(refused) or f'kind::{kind}'}")
    return kind


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A multiplicand: its descriptor and chunks in shared memory, or its address in TMEM."""

    format: Format
    negate: bool
    mn_major: bool
    rows: int
    descriptor: MatrixDescriptor | None
    gather: Gather | None
    address: int = 0


@dataclass(frozen=True, slots=True)
class _Rows:
    """The TMEM lanes of the rows of D and A: all, or 16 of every quarter from `lane` on."""

    m: int
    lane: int

    def of(self, cells: npt.NDArray[np.generic], first: int, last: int) -> npt.NDArray[np.generic]:
        """The rows of columns [first, last) as a view whose last axis is the columns."""
        if self.m == LANES:
            return cells[:, first:last]
        return cells.reshape(4, QUARTER, -1)[:, self.lane : self.lane + 16, first:last]


@cache
def _lanes_of(m: int, lane: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(LANES, bool)
    _Rows(m, lane).of(mask[:, None], 0, 1)[...] = True
    mask.setflags(write=False)
    return mask


@dataclass(eq=False, slots=True)
class _Mma:
    """One product in flight."""

    cta: Cta
    warp: Warp
    issuers: Lanes
    ins: Instruction
    descriptor: InstructionDescriptor
    a: _Matrix
    b: _Matrix
    rows: _Rows
    column: int
    accumulate: bool
    scale: int
    enabled: npt.NDArray[np.bool_] | None  # bool[128], None if all lanes are
    writer: Writer

    def land(self) -> None:
        try:
            self._multiply()
        except KernelFault as fault:
            if fault.place is None:
                fault.place = self.ins.place
                fault.thread = self.cta.thread(self.warp, self.issuers)
            raise

    def _multiply(self) -> None:
        cta, d = self.cta, self.descriptor
        tmem = cta.tmem
        tmem.end_write(self.writer)
        tmem.require(self.column, self.column + d.n, "D")
        a = self._from_shared(self.a) if self.a.descriptor is not None else self._from_tmem(tmem)
        b = self._from_shared(self.b)
        assert cta.config.multiply is not None
        result = cta.config.multiply(_product(d), cta.config.mma, a, b, self._input(tmem))
        where = self.rows.of(tmem.cells, self.column, self.column + d.n)
        valid = self.rows.of(tmem.valid, self.column, self.column + d.n)
        result = result.reshape(where.shape)
        if self.enabled is None:
            where[...] = result
            valid[...] = True
        else:
            rows = self.rows.of(self.enabled[:, None], 0, 1)[..., 0]
            where[rows] = result[rows]
            valid[rows] = True
        if cta.config.profile:
            cta.counters.mma_macs += d.m * d.n * d.k

    def _input(self, tmem: TensorMemory) -> npt.NDArray[np.unsignedinteger] | None:
        """D as the accumulator's input, or None without one."""
        d = self.descriptor
        if not self.accumulate:
            return None
        if tmem.track:
            valid = self.rows.of(tmem.valid, self.column, self.column + d.n)
            if self.enabled is not None:
                valid = valid[self.rows.of(self.enabled[:, None], 0, 1)[..., 0]]
            if not valid.all():
                raise KernelFault(
                    FaultKind.UNINITIALISED,
                    f"D in TMEM columns {self.column}..{self.column + d.n - 1} was never all written",
                )
        c = self.rows.of(tmem.cells, self.column, self.column + d.n).reshape(d.m, d.n)
        if d.d == "f16":
            return c.astype(np.uint16)
        if self.scale:
            # Exact unless the scaled value is subnormal, where this rounds to nearest.
            return np.ldexp(c.view(np.float32), -self.scale).view(np.uint32)
        return np.ascontiguousarray(c, np.uint32)

    def _from_shared(self, matrix: _Matrix) -> npt.NDArray[np.unsignedinteger]:
        assert matrix.descriptor is not None
        assert matrix.gather is not None
        what = "A" if matrix is self.a else "B"
        data = tcgen05_operand.read(self.cta.shared, matrix.descriptor, matrix.gather, what)
        if matrix.format.name in SUB_BYTE:
            return _flip(_unpack(data, matrix.format.bits), matrix)
        codes = data.view(matrix.format.storage)
        return _flip(np.ascontiguousarray(codes.T) if matrix.mn_major else codes, matrix)

    def _from_tmem(self, tmem: TensorMemory) -> npt.NDArray[np.unsignedinteger]:
        first = self.a.address
        tmem.require(first, first + _A_COLUMNS, "A")
        if tmem.track and not self.rows.of(tmem.valid, first, first + _A_COLUMNS).all():
            raise KernelFault(
                FaultKind.UNINITIALISED,
                f"A in TMEM columns {first}..{first + _A_COLUMNS - 1} was never all written",
            )
        words = self.rows.of(tmem.cells, first, first + _A_COLUMNS).reshape(self.descriptor.m, _A_COLUMNS)
        codes = np.ascontiguousarray(words).view(self.a.format.storage)
        if self.a.format.name in SUB_BYTE:
            # Containers of eight bits: four-bit codes in bits 2..5, six-bit codes in bits 0..5
            # (9.7.16.10.4.3).
            codes = codes >> 2 & 0xF if self.a.format.bits == 4 else codes & 0x3F
        return _flip(codes, self.a)


@cache
def _product(d: InstructionDescriptor) -> Product:
    return Product(FORMATS[d.a], FORMATS[d.b], "f16" if d.d == "f16" else "f32", d.k, "tcgen05")


def _flip(codes: npt.NDArray[np.unsignedinteger], matrix: _Matrix) -> npt.NDArray[np.unsignedinteger]:
    if not matrix.negate:
        return codes
    return codes ^ matrix.format.storage.type(1 << matrix.format.bits - 1)


def _unpack(data: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Codes of six or four bits: 16 of them lie contiguously at the start of 16 bytes (9.7.16.10.4.4)."""
    chunks = data.reshape(*data.shape[:-1], -1, CHUNK)
    stream = np.unpackbits(chunks[..., : 2 * bits], axis=-1, bitorder="little")
    codes = stream.reshape(*chunks.shape[:-1], CHUNK, bits)
    return np.packbits(codes, axis=-1, bitorder="little").reshape(data.shape)


def _shared_matrix(cta: Cta, bits: int, d: InstructionDescriptor, operand: str) -> _Matrix:
    descriptor = decode_matrix(bits)
    is_a = operand == "A"
    mn_major, rows = (d.a_mn_major, d.m) if is_a else (d.b_mn_major, d.n)
    check_majorness(descriptor.swizzle, mn_major, d.element_bytes, operand)
    if mn_major:
        gather = tcgen05_operand.chunks(descriptor, True, rows * d.element_bytes // CHUNK, d.k)
    else:
        gather = tcgen05_operand.chunks(descriptor, False, rows, d.k * d.element_bytes // CHUNK)
    tcgen05_operand.check_bounds(cta.shared, descriptor, gather, operand)
    return _Matrix(
        FORMATS[d.a if is_a else d.b], d.negate_a if is_a else d.negate_b, mn_major, rows, descriptor, gather
    )


def _tmem_matrix(cta: Cta, address: int, rows: _Rows, d: InstructionDescriptor) -> _Matrix:
    if d.a_mn_major:
        raise KernelFault(FaultKind.DESCRIPTOR, "A in TMEM cannot be transposed")
    if lane_of(address) != rows.lane:
        raise KernelFault(
            FaultKind.MISALIGNED, f"A in TMEM starts at lane {lane_of(address)}, D at lane {rows.lane}"
        )
    first = column_of(address)
    cta.tmem.require(first, first + _A_COLUMNS, "A")
    return _Matrix(FORMATS[d.a], d.negate_a, False, d.m, None, None, first)


def _output_rows(address: int, d: InstructionDescriptor) -> _Rows:
    lane = lane_of(address)
    if lane not in ((0,) if d.m == LANES else (0, 16)):
        raise KernelFault(FaultKind.MISALIGNED, f"D of {d.m} rows starts at lane {lane} of TMEM")
    return _Rows(d.m, lane)


def _disabled(mask: tuple[npt.NDArray[np.uint64], ...], lane: int) -> npt.NDArray[np.bool_] | None:
    """disable-output-lane as the lanes that are written, None if that is all of them."""
    if len(mask) != 4:
        raise UnsupportedError(f"disable-output-lane of {len(mask)} registers; cta_group::1 has 4")
    words = np.array([word[lane] for word in mask], np.uint32)
    if not words.any():
        return None
    enabled: npt.NDArray[np.bool_] = np.unpackbits(words.view(np.uint8), bitorder="little") == 0
    return enabled


def _issue(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """Operands: [d], a-desc or [a], b-desc, idesc, {disable-output-lane}?, enable-input-d, scale-input-d?."""
    refuse_pairs(ins)
    kind = _kind(ins.mods)
    lane = single_issuer(cta, ins, lanes, sources)
    d = decode_instruction(value(sources[3], lane), kind)
    address = value(sources[0], lane)
    rows, first = _output_rows(address, d), column_of(address)
    cta.tmem.require(first, first + d.n, "D")
    if isinstance(ins.sources[1], Address):
        a = _tmem_matrix(cta, value(sources[1], lane), rows, d)
    else:
        a = _shared_matrix(cta, value(sources[1], lane), d, "A")
    b = _shared_matrix(cta, value(sources[2], lane), d, "B")
    rest = 4
    enabled = None
    if isinstance(ins.sources[rest], Vector):
        mask = sources[rest]
        assert isinstance(mask, tuple)
        enabled = _disabled(mask, lane)
        rest += 1
    accumulate = bool(value(sources[rest], lane))
    scale = _scale(ins, sources[rest + 1 :], lane, d, kind)
    writer = Writer(
        _lanes_of(d.m, rows.lane) if enabled is None else _lanes_of(d.m, rows.lane) & enabled,
        first,
        first + d.n,
    )
    product = _Mma(cta, warp, lanes, ins, d, a, b, rows, first, accumulate, scale, enabled, writer)
    cta.tmem.begin_write(writer)
    cta.queue.submit(
        AsyncOperation(
            ins.op, product.land, stream=STREAM, reads=_reads(a, b), writes=(Span("tmem", address, d.n),)
        )
    )
    return ()


def _scale(
    ins: Instruction, sources: tuple[Argument, ...], lane: int, d: InstructionDescriptor, kind: str
) -> int:
    """scale-input-d: D is multiplied by 2^-scale before it is added to."""
    if not sources:
        return 0
    assert isinstance(ins.sources[-1], Immediate)
    scale = value(sources[0], lane)
    if kind == "f8f6f4" or not 0 <= scale <= 15:
        raise KernelFault(
            FaultKind.DESCRIPTOR, f"scale-input-d {scale} of kind::{kind}: 0..15, for f16 and tf32 only"
        )
    if scale and d.d == "f16":
        raise UnsupportedError("scale-input-d of an f16 accumulator")
    return scale


def _reads(*matrices: _Matrix) -> tuple[Span, ...]:
    spans = []
    for matrix in matrices:
        if matrix.descriptor is None or matrix.gather is None:
            spans.append(Span("tmem", matrix.address, _A_COLUMNS))
        else:
            origin = matrix.descriptor.start // 1024 * 1024
            spans.append(Span("shared", origin + matrix.gather.low, matrix.gather.high - matrix.gather.low))
    return tuple(spans)


HANDLERS: dict[str, Handler] = {"tcgen05.mma": _issue}
