"""tcgen05.mma: D[M,N] (+)= A[M,K] B[K,N] with A in shared memory or TMEM, B in shared memory, D in TMEM.

PTX ISA 9.7.16.10. The product is asynchronous: it reads its operands and D when it lands, in the order of
issue (`STREAM`). Each element of D takes one column, f16 its low half (9.7.16.10.4.1). That the upper half
becomes zero is not documented.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import tcgen05_operand, tcgen05_scaled
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.footprint import TmemBlock, moved_to
from gdnbench.sim.machine.operands import vector_operand
from gdnbench.sim.machine.tcgen05_descriptor import SUB_BYTE
from gdnbench.sim.machine.tcgen05_elements import from_containers, negated, unpack_padded
from gdnbench.sim.machine.tcgen05_issue import STREAM, lane_value, refuse_pairs, single_issuer
from gdnbench.sim.machine.tcgen05_plan import A_COLUMNS, Matrix, Plan, plan_mma
from gdnbench.sim.machine.tcgen05_zero_columns import NO_MASK
from gdnbench.sim.machine.tmem import TensorMemory, Writer
from gdnbench.sim.ptx.ir import Address, Immediate, Instruction, Vector

Codes = npt.NDArray[np.unsignedinteger]

_KINDS = ("f16", "tf32", "f8f6f4", "i8")
_STATIONARY = "tcgen05.mma.ws"


@cache
def _kind(mods: tuple[str, ...]) -> str:
    """The kind in the opcode. Raises UnsupportedError if it or another suffix is not modelled."""
    kind = next((mod.removeprefix("kind::") for mod in mods if mod.startswith("kind::")), "")
    if "ashift" in mods or kind not in _KINDS:
        raise UnsupportedError(f"tcgen05.mma.{'ashift' if 'ashift' in mods else f'kind::{kind}'}")
    return kind


@dataclass(eq=False, slots=True)
class _Mma:
    """One product in flight. It writes D where `enabled` (bool[128]) is set, everywhere if that is None."""

    cta: Cta
    warp: Warp
    issuers: Lanes
    ins: Instruction
    plan: Plan
    accumulate: bool
    scale: int
    enabled: npt.NDArray[np.bool_] | None
    writer: Writer

    def land(self) -> None:
        self.cta.land(self.warp, self.ins, self.issuers, self._multiply)

    def _multiply(self) -> None:
        cta, work = self.cta, self.plan
        tmem = cta.tmem
        tmem.end_write(self.writer)
        tmem.require(work.first, work.last, "D")
        multiply = cta.config.multiply
        assert multiply is not None
        b = self._from_shared(work.b)[work.b.shift :][: work.descriptor.n]
        if work.zeros is not None:
            b = np.where(work.zeros[:, None], b.dtype.type(0), b)
        c = self._input(tmem)
        if work.a.gather is not None:
            self._write(tmem, multiply(work.product, cta.config.mma, self._from_shared(work.a), b, c))
        else:
            # Every bank of the columns of D has an A of its own.
            banks, width = self._from_tmem(tmem), work.last - work.first
            spans = [slice(start, start + width) for start in range(0, width * len(banks), width)]
            parts = [
                multiply(work.product, cta.config.mma, a, b[span], None if c is None else c[:, span])
                for a, span in zip(banks, spans, strict=True)
            ]
            self._write(tmem, parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))
        cta.counters.mma_macs += work.descriptor.m * work.descriptor.n * work.descriptor.k

    def _write(self, tmem: TensorMemory, result: Codes) -> None:
        work = self.plan
        cells = work.rows.view(tmem.cells, work.first, work.last)
        result = result.reshape(cells.shape)
        if self.enabled is None:
            cells[...] = result
            if tmem.track:
                work.rows.view(tmem.valid, work.first, work.last)[...] = True
        else:
            rows = self._enabled_rows(self.enabled)
            cells[rows] = result[rows]
            work.rows.view(tmem.valid, work.first, work.last)[rows] = True

    def _enabled_rows(self, enabled: npt.NDArray[np.bool_]) -> npt.NDArray[np.generic]:
        return self.plan.rows.view(enabled[:, None], 0, 1)[..., 0]

    def _input(self, tmem: TensorMemory) -> Codes | None:
        """D as the accumulator's input; None if the product does not accumulate."""
        work = self.plan
        if not self.accumulate:
            return None
        if tmem.track:
            valid = work.rows.view(tmem.valid, work.first, work.last)
            if self.enabled is not None:
                valid = valid[self._enabled_rows(self.enabled)]
            if not valid.all():
                message = f"D in TMEM columns {work.first}..{work.last - 1} was never all written"
                tmem.skip(KernelFault(FaultKind.UNINITIALISED, message))
        shape = (work.descriptor.m, work.descriptor.n)
        c = work.rows.view(tmem.cells, work.first, work.last).reshape(shape)
        if work.product.d == "f16":
            return c.astype(np.uint16)
        if self.scale:
            # Exact, unless the scaled value is subnormal; then this rounds to nearest.
            return np.ldexp(c.view(np.float32), -self.scale).view(np.uint32)
        return np.ascontiguousarray(c, np.uint32)

    def _from_shared(self, matrix: Matrix) -> Codes:
        assert matrix.gather is not None
        data = tcgen05_operand.read_chunks(self.cta.shared, matrix.gather, matrix.name)
        if matrix.format.name in SUB_BYTE:
            return _flip(unpack_padded(data, matrix.format.bits), matrix)
        codes = data.view(matrix.format.storage)
        return _flip(np.ascontiguousarray(codes.T) if matrix.mn_major else codes, matrix)

    def _from_tmem(self, tmem: TensorMemory) -> Codes:
        """A in TMEM, [banks, M, K]."""
        work, matrix = self.plan, self.plan.a
        first, last = matrix.column, matrix.column + A_COLUMNS
        tmem.require(first, last, "A")
        if tmem.track and not work.rows.view(tmem.valid, first, last).all():
            message = f"A in TMEM columns {first}..{last - 1} was never all written"
            tmem.skip(KernelFault(FaultKind.UNINITIALISED, message))
        words = work.rows.view(tmem.cells, first, last)
        words = words.reshape(work.descriptor.m, work.rows.banks, A_COLUMNS).swapaxes(0, 1)
        codes = np.ascontiguousarray(words).view(matrix.format.storage)
        if matrix.format.name in SUB_BYTE:
            codes = from_containers(codes, matrix.format.bits)
        return _flip(codes, matrix)


def _flip(codes: Codes, matrix: Matrix) -> Codes:
    if not matrix.negate:
        return codes
    return negated(codes, matrix.format.bits)


def _issue(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """Operands: [d], a-desc or [a], b-desc, idesc, {disable-output-lane}?, enable-input-d, scale-input-d?; of
    .ws: [d], a-desc or [a], b-desc, idesc, enable-input-d, zero-column-mask-desc?. Collectors keep B between
    products: they change no value."""
    refuse_pairs(ins)
    if ins.has("block_scale"):
        return tcgen05_scaled.issue(cta, warp, ins, lanes, sources)
    kind = _kind(ins.mods)
    lane = single_issuer(cta, ins, lanes, sources)
    d, a, b, idesc = (lane_value(source, lane) for source in sources[:4])
    stationary, a_in_tmem = ins.op == _STATIONARY, isinstance(ins.sources[1], Address)
    rest, enabled, scale = 4, None, 0
    if isinstance(ins.sources[rest], Vector):
        enabled = _enabled(sources[rest], lane)
        rest += 1
    if not 0 < len(sources) - rest <= 2:
        raise UnsupportedError(f"{ins.name} with {len(sources)} sources")
    accumulate = bool(lane_value(sources[rest], lane))
    if stationary:
        mask = lane_value(sources[rest + 1], lane) if len(sources) > rest + 1 else NO_MASK
        work = plan_mma(kind, idesc, d, a, a_in_tmem, b, mask)
    else:
        work = plan_mma(kind, idesc, d, a, a_in_tmem, b)
        scale = _scale(ins, sources[rest + 1 :], lane, work)
    cta.tmem.require(work.first, work.last, "D")
    for matrix in (work.a, work.b):
        if matrix.gather is None:
            cta.tmem.require(matrix.column, matrix.column + A_COLUMNS, "A")
        else:
            tcgen05_operand.check_bounds(cta.shared, matrix.gather, matrix.name)
    writer = Writer(work.lanes if enabled is None else work.lanes & enabled, work.first, work.last)
    product = _Mma(cta, warp, lanes.copy(), ins, work, accumulate, scale, enabled, writer)
    cta.tmem.begin_write(writer)
    writes = work.writes if enabled is None else (TmemBlock(writer.lanes, work.first, work.last),)
    reads = moved_to(cta.shared.origin, (*work.reads, *writes) if accumulate else work.reads)
    cta.queue.submit(AsyncOperation(ins.op, product.land, stream=STREAM, reads=reads, writes=writes))
    return ()


def _enabled(mask: Argument, lane: int) -> npt.NDArray[np.bool_] | None:
    """disable-output-lane as the TMEM lanes to write; None means all."""
    registers = vector_operand(mask)
    if len(registers) != 4:
        raise UnsupportedError(f"disable-output-lane of {len(registers)} registers; cta_group::1 has 4")
    words = [lane_value(word, lane) for word in registers]
    if not any(words):
        return None
    enabled: npt.NDArray[np.bool_] = (
        np.unpackbits(np.array(words, np.uint32).view(np.uint8), bitorder="little") == 0
    )
    return enabled


def _scale(ins: Instruction, sources: tuple[Argument, ...], lane: int, work: Plan) -> int:
    """scale-input-d: D is multiplied by 2^-scale before the addition."""
    if not sources:
        return 0
    if not isinstance(ins.sources[-1], Immediate):
        raise UnsupportedError(f"{ins.name} with scale-input-d in a register")
    scale = lane_value(sources[0], lane)
    if work.descriptor.element_bytes == 1 or not 0 <= scale <= 15:
        raise KernelFault(
            FaultKind.DESCRIPTOR, f"scale-input-d {scale} of {work.product}: 0..15, for f16 and tf32 kinds"
        )
    if scale and work.product.d == "f16":
        raise UnsupportedError("scale-input-d of an f16 accumulator")
    return scale


HANDLERS: dict[str, Handler] = {"tcgen05.mma": _issue, _STATIONARY: _issue}
