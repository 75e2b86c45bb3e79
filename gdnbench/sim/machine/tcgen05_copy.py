# SPDX-License-Identifier: Apache-2.0
"""tcgen05.cp: a matrix in shared memory into TMEM (PTX ISA 9.7.16.9.2).

The source descriptor is that of a K-major operand: row r, 16-byte chunk c. A row of 128 or 256 bits fills
four or eight columns of one or several lanes (CUTLASS `copy_traits_sm100.hpp`, SM100_UTCCP_*):

    128x256b, 128x128b       lane r
    64x128b.warpx2::02_13    lanes r and r + 64
    64x128b.warpx2::01_23    lanes r and r + 32 for r < 32, r + 32 and r + 64 for the rest
    32x128b.warpx4           lanes r, r + 32, r + 64, r + 96
    4x256b                   lane 32 r, counted from the address's lane

With .cta_group::2 each CTA of the pair copies from its own shared memory into its own TMEM (CUTLASS
`2cta_mma_blockscale_m128.py`, where one instruction copies other scales in each).

With .b8x16.b6x16_p32 or .b4x16_p64, each chunk has 16 elements of six or four bits and padding, and each
element fills a byte of TMEM (9.7.16.9.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import tcgen05_operand, tcgen05_shadows
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.footprint import TmemBlock
from gdnbench.sim.machine.tcgen05_descriptor import check_majorness, decode_matrix
from gdnbench.sim.machine.tcgen05_elements import to_containers, unpack_padded
from gdnbench.sim.machine.tcgen05_issue import (
    Accesses,
    Group,
    check_pair_runs,
    cta_group,
    lane_value,
    single_issuer,
    submit,
)
from gdnbench.sim.machine.tcgen05_operand import CHUNK, Gather
from gdnbench.sim.machine.tmem import LANES, SHADOW_TYPE, Writer, column_of, lane_of
from gdnbench.sim.ptx.ir import Instruction

_SHAPES = ("128x256b", "4x256b", "128x128b", "64x128b", "32x128b")
_SOURCE_BITS = {"b6x16_p32": 6, "b4x16_p64": 4}


@dataclass(frozen=True, slots=True)
class Shape:
    """`lanes[copy, row]` is the lane of each row; `chunks` counts 16-byte chunks per row. `bits`: of an
    element that is decompressed to a byte; 0 if the bytes are copied."""

    lanes: npt.NDArray[np.intp]
    chunks: int
    bits: int

    @property
    def rows(self) -> int:
        return int(self.lanes.shape[1])


@cache
def shape_of(mods: tuple[str, ...]) -> Shape:
    """The shape, multicast and decompression of an opcode's suffixes."""
    bits = next((_SOURCE_BITS[mod] for mod in mods if mod in _SOURCE_BITS), 0)
    shape = next((mod for mod in mods if mod in _SHAPES), "")
    multicast = next((mod for mod in mods if mod.startswith("warpx")), "")
    lane = np.arange(LANES)
    match shape, multicast:
        case (("128x256b" | "128x128b"), ""):
            lanes = lane.reshape(1, LANES)
        case "64x128b", "warpx2::02_13":
            lanes = lane.reshape(2, 64)
        case "64x128b", "warpx2::01_23":
            lanes = lane.reshape(2, 2, 32).swapaxes(0, 1).reshape(2, 64)
        case "32x128b", "warpx4":
            lanes = lane.reshape(4, 32)
        case "4x256b", "":
            lanes = lane[::32].reshape(1, 4)
        case _:
            raise UnsupportedError(f"tcgen05.cp.{shape}.{multicast}")
    return Shape(lanes, 2 if shape.endswith("256b") else 1, bits)


@dataclass(eq=False, slots=True)
class _Copy:
    """One copy in flight, in each CTA of `group`; `lanes[copy, row]` are absolute."""

    cta: Cta
    group: Group
    warp: Warp
    issuers: Lanes
    ins: Instruction
    gather: Gather
    bits: int
    lanes: npt.NDArray[np.intp]
    column: int
    columns: int
    writer: Writer

    def land(self) -> None:
        self.cta.land(self.warp, self.ins, self.issuers, self._land)

    def _land(self) -> None:
        check_pair_runs(self.ins, self.group)
        for cta in self.group:
            tmem = cta.tmem
            tmem.end_write(self.writer)
            tmem.require(self.column, self.column + self.columns, self.ins.name)
            data = tcgen05_operand.read_chunks(cta.shared, self.gather, "the source")
            if self.bits:
                data = to_containers(unpack_padded(data, self.bits), self.bits)
            where = slice(self.column, self.column + self.columns)
            tmem.cells[self.lanes, where] = data.view(np.uint32)
            tmem.valid[self.lanes, where] = True
            if tmem.shadows is not None:
                cells = tcgen05_shadows.chunk_cells(cta, self.gather)
                empty = np.zeros_like(cells) if self.bits else cells
                tmem.shadows[self.lanes, where] = empty.view(SHADOW_TYPE)


def _issue(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    group = cta_group(cta, ins)
    shape = shape_of(ins.mods)
    lane = single_issuer(cta, ins, lanes, sources)
    address, source = lane_value(sources[0], lane), decode_matrix(lane_value(sources[1], lane))
    check_majorness(source.swizzle, False, 1, "the source")
    first, columns = column_of(address), 4 * shape.chunks
    offset = lane_of(address)
    if offset >= (32 if shape.rows == 4 else 1):
        raise KernelFault(FaultKind.MISALIGNED, f"{ins.name} starts at lane {offset} of TMEM")
    used = 2 * shape.bits if shape.bits else CHUNK
    gather = tcgen05_operand.chunks(source, False, shape.rows, shape.chunks, used)
    written = np.zeros(LANES, bool)
    written[shape.lanes + offset] = True
    writer = Writer(written, first, first + columns)
    copy = _Copy(
        cta, group, warp, lanes.copy(), ins, gather, shape.bits, shape.lanes + offset, first, columns, writer
    )
    for member in group:
        member.tmem.require(first, first + columns, ins.name)
        tcgen05_operand.check_bounds(member.shared, gather, "the source")
        member.tmem.begin_write(writer)
        if cta.config.profile:
            member.counters.traffic["shared to TMEM"] += 16 * shape.rows * shape.chunks
    accesses = Accesses((gather.footprint,), (TmemBlock(written, first, first + columns),))
    submit(cta, warp, group, ins, copy.land, lambda: [accesses] * len(group))
    return ()


HANDLERS: dict[str, Handler] = {"tcgen05.cp": _issue}
