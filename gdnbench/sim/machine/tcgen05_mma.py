# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma: D[M,N] (+)= A[M,K] B[K,N] with A in shared memory or TMEM, B in shared memory, D in TMEM.

PTX ISA 9.7.16.10. The product is asynchronous: it reads its operands and D when it lands, in the order of
issue (`STREAM`). With .cta_group::2 both CTAs of a pair have parts of all matrices (`tcgen05_plan`). Each
element of D takes one column, f16 its low half (9.7.16.10.4.1). That the upper half becomes zero is not
documented.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import tcgen05_operand, tcgen05_scaled, tcgen05_shadows
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.footprint import TmemBlock
from gdnbench.sim.machine.operands import vector_operand
from gdnbench.sim.machine.tcgen05_descriptor import SUB_BYTE
from gdnbench.sim.machine.tcgen05_elements import from_containers, negated, unpack_padded
from gdnbench.sim.machine.tcgen05_issue import (
    Accesses,
    Group,
    check_pair_runs,
    cta_group,
    lane_value,
    single_issuer,
    submit,
)
from gdnbench.sim.machine.tcgen05_plan import A_COLUMNS, Matrix, Plan, plan_mma
from gdnbench.sim.machine.tcgen05_zero_columns import NO_MASK
from gdnbench.sim.machine.tmem import LANES, TensorMemory, Writer
from gdnbench.sim.ptx.ir import Address, Immediate, Instruction, Vector

Codes = npt.NDArray[np.unsignedinteger]
Enabled = npt.NDArray[np.bool_]

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
    """One product in flight, of the CTAs of `group`, issued by `cta`. In each it writes D where its `enabled`
    (bool[128]) is set, everywhere if that is None. `writers` are by CTA too."""

    cta: Cta
    group: Group
    warp: Warp
    issuers: Lanes
    ins: Instruction
    plan: Plan
    accumulate: bool
    scale: int
    enabled: tuple[Enabled | None, ...]
    writers: tuple[Writer, ...]

    def accesses(self) -> list[Accesses]:
        """What it reads and writes, by CTA."""
        work, found = self.plan, []
        for writer in self.writers:
            written = (TmemBlock(writer.lanes, work.first, work.last),)
            found.append(Accesses((*work.reads, *written) if self.accumulate else work.reads, written))
        return found

    def land(self) -> None:
        self.cta.land(self.warp, self.ins, self.issuers, self._land)

    def _land(self) -> None:
        work = self.plan
        check_pair_runs(self.ins, self.group)
        for cta, writer in zip(self.group, self.writers, strict=True):
            cta.tmem.end_write(writer)
            cta.tmem.require(work.first, work.last, "D")
        parts = [self._from_shared(cta, work.b) for cta in self.group]
        b = np.concatenate(parts) if len(parts) > 1 else parts[0]
        b = b[work.b.shift :][: work.descriptor.n]
        if work.zeros is not None:
            b = np.where(work.zeros[:, None], b.dtype.type(0), b)
        for cta, enabled in zip(self.group, self.enabled, strict=True):
            shadow = tcgen05_shadows.product(self, cta) if cta.launch.shadowed else None
            self._multiply(cta, b, enabled)
            if shadow is not None:
                tcgen05_shadows.write(self, cta, enabled, shadow)

    def _multiply(self, cta: Cta, b: Codes, enabled: Enabled | None) -> None:
        """The rows of one CTA."""
        work, tmem = self.plan, cta.tmem
        multiply = cta.config.multiply
        assert multiply is not None
        c = self._input(tmem, enabled)
        cells = work.rows.view(tmem.cells, work.first, work.last)
        in_place = cells if cells.ndim == 2 and enabled is None and work.product.d != "f16" else None
        if work.a.gather is not None:
            a = self._from_shared(cta, work.a)
            result = multiply(work.product, cta.config.mma, a, b, c, in_place)
        else:
            # Every bank of the columns of D has an A of its own.
            banks, width = self._from_tmem(tmem), work.last - work.first
            spans = [slice(start, start + width) for start in range(0, width * len(banks), width)]
            parts = [
                multiply(work.product, cta.config.mma, a, b[span], None if c is None else c[:, span])
                for a, span in zip(banks, spans, strict=True)
            ]
            result = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        rows = ... if enabled is None else self._enabled_rows(enabled)
        if result is not in_place:
            cells[rows] = result.reshape(cells.shape)[rows]
        if tmem.track:
            work.rows.view(tmem.valid, work.first, work.last)[rows] = True
        cta.counters.mma_macs += work.rows.m * work.descriptor.n * work.descriptor.k

    def _enabled_rows(self, enabled: Enabled) -> npt.NDArray[np.generic]:
        return self.plan.rows.view(enabled[:, None], 0, 1)[..., 0]

    def _input(self, tmem: TensorMemory, enabled: Enabled | None) -> Codes | None:
        """D as the accumulator's input; None if the product does not accumulate."""
        work = self.plan
        if not self.accumulate:
            return None
        if tmem.track:
            valid = work.rows.view(tmem.valid, work.first, work.last)
            if enabled is not None:
                valid = valid[self._enabled_rows(enabled)]
            if not valid.all():
                message = f"D in TMEM columns {work.first}..{work.last - 1} was never all written"
                tmem.skip(KernelFault(FaultKind.UNINITIALISED, message))
        shape = (work.rows.m, work.descriptor.n)
        c: Codes = work.rows.view(tmem.cells, work.first, work.last).reshape(shape).view(np.uint32)
        if work.product.d == "f16":
            return c.astype(np.uint16)
        if self.scale:
            # Exact, unless the scaled value is subnormal; then this rounds to nearest.
            return np.ldexp(c.view(np.float32), -self.scale).view(np.uint32)
        return c

    @staticmethod
    def _from_shared(cta: Cta, matrix: Matrix) -> Codes:
        assert matrix.gather is not None
        data = tcgen05_operand.read_chunks(cta.shared, matrix.gather, matrix.name)
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
        words = words.reshape(work.rows.m, work.rows.banks, A_COLUMNS).swapaxes(0, 1)
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
    group = cta_group(cta, ins)
    if ins.has("block_scale"):
        return tcgen05_scaled.issue(cta, group, warp, ins, lanes, sources)
    kind = _kind(ins.mods)
    lane = single_issuer(cta, ins, lanes, sources)
    d, a, b, idesc = (lane_value(source, lane) for source in sources[:4])
    stationary, a_in_tmem = ins.op == _STATIONARY, isinstance(ins.sources[1], Address)
    rest, scale = 4, 0
    enabled: tuple[Enabled | None, ...] = (None,) * len(group)
    if isinstance(ins.sources[rest], Vector):
        enabled = _enabled(sources[rest], lane, len(group))
        rest += 1
    if not 0 < len(sources) - rest <= 2:
        raise UnsupportedError(f"{ins.name} with {len(sources)} sources")
    accumulate = bool(lane_value(sources[rest], lane))
    if stationary:
        mask = lane_value(sources[rest + 1], lane) if len(sources) > rest + 1 else NO_MASK
        work = plan_mma(kind, idesc, d, a, a_in_tmem, b, mask)
    else:
        work = plan_mma(kind, idesc, d, a, a_in_tmem, b, ctas=len(group))
        scale = _scale(ins, sources[rest + 1 :], lane, work)
    writers: list[Writer] = []
    for member, where in zip(group, enabled, strict=True):
        tmem = member.tmem
        tmem.require(work.first, work.last, "D")
        for matrix in (work.a, work.b):
            if matrix.gather is None:
                tmem.require(matrix.column, matrix.column + A_COLUMNS, "A")
            else:
                tcgen05_operand.check_bounds(member.shared, matrix.gather, matrix.name)
        writer = Writer(work.lanes if where is None else work.lanes & where, work.first, work.last)
        writers.append(writer)
        tmem.begin_write(writer)
    product = _Mma(cta, group, warp, lanes.copy(), ins, work, accumulate, scale, enabled, tuple(writers))
    submit(cta, warp, group, ins, product.land, product.accesses)
    return ()


def _enabled(mask: Argument, lane: int, ctas: int) -> tuple[Enabled | None, ...]:
    """disable-output-lane as the TMEM lanes to write in each CTA; None means all. The ISA gives a pair eight
    registers and does not say which four are whose: they are taken in the order of the ranks."""
    registers = vector_operand(mask)
    if len(registers) != 4 * ctas:
        raise UnsupportedError(
            f"disable-output-lane of {len(registers)} registers; cta_group::{ctas} has {4 * ctas}"
        )
    words = [lane_value(word, lane) for word in registers]
    if not any(words):
        return (None,) * ctas
    bits = np.unpackbits(np.array(words, np.uint32).view(np.uint8), bitorder="little")
    return tuple(bits.reshape(ctas, LANES) == 0)


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
