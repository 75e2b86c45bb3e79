# SPDX-License-Identifier: Apache-2.0
"""Warp-level products, and fragments between registers and tensor memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdnbench.sim.fp64.arithmetic import Rule
from gdnbench.sim.fp64.registers import Kind, RegisterShadows, reader, write_values
from gdnbench.sim.interpreter.matrix import operand_parts
from gdnbench.sim.interpreter.operation import Step, Thread
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import LANES, Argument, Lanes, Warp
from gdnbench.sim.machine.shadow_cells import F16, F32, SHAPES, Cells, Doubles, make_cells, read_elements
from gdnbench.sim.machine.tcgen05_access import LOAD_REDUCE, cells_of
from gdnbench.sim.machine.tmem import SHADOW_TYPE
from gdnbench.sim.ptx.ir import Instruction, Register


def mma(ins: Instruction) -> Rule | None:
    """`mma.sync` of f16, bf16, tf32 and fp8 with sums in f32 or f16."""
    d_type, a_type, b_type, _ = ins.types
    if a_type not in SHAPES or b_type not in SHAPES or a_type == "f64":
        return None
    a_kind, b_kind = (Kind(SHAPES[name], 4 // SHAPES[name].size) for name in (a_type, b_type))
    halves = d_type == "f16"
    c_kind = Kind(F16, 2) if halves else Kind(F32)
    kinds = (a_kind, b_kind, c_kind)
    reads = [
        [reader(ins, part, kind) for part in operand_parts(source)]
        for source, kind in zip(ins.sources, kinds, strict=True)
    ]
    dests = list(ins.written())

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        a, b, c = (np.stack([read(thread, shadows) for read in row]) for row in reads)
        total = _rows(a, 2) @ _rows(b, 1).T + _sums(c, halves)
        step(thread, lanes)
        for dest, values in zip(dests, _results(total, halves), strict=True):
            write_values(shadows, dest, c_kind, values, lanes)

    return rule


def _rows(registers: Doubles, row_blocks: int) -> Doubles:
    """f64[n, 32, per] of the registers of an operand -> [rows, k]."""
    blocks, per = len(registers) // row_blocks, registers.shape[2]
    whole = registers.reshape(blocks, row_blocks, 8, 4 * per)
    return whole.transpose(1, 2, 0, 3).reshape(8 * row_blocks, blocks * 4 * per)


def _sums(registers: Doubles, halves: bool) -> Doubles:
    if halves:
        return registers.reshape(16, 8)
    return registers.reshape(2, 2, 8, 4).transpose(0, 2, 3, 1).reshape(16, 8)


def _results(total: Doubles, halves: bool) -> Doubles:
    """[registers, 32, elements]."""
    if halves:
        return total.reshape(2, LANES, 2)
    return total.reshape(2, 8, 4, 2).transpose(0, 3, 1, 2).reshape(4, LANES, 1)


def tensor_load(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> list[Cells]:
    """The cells [32, 4] of each register of tcgen05.ld, without that of a reduction."""
    shadows, index = cta.tmem.shadows, cells_of(warp, ins, lanes, sources)
    assert shadows is not None
    found = shadows.reshape(-1)[index].view(np.complex128).reshape(-1, LANES, 4)
    if "pack::16b" in ins.mods:
        low, high = np.split(found, 2)
        found = np.concatenate([low[..., :2], high[..., :2]], axis=2)
    return list(found)


def write_loaded(shadows: RegisterShadows, ins: Instruction, lanes: Lanes, loaded: list[Cells]) -> None:
    """Write what `tensor_load` returned to the registers that the instruction has loaded."""
    dests = list(ins.written())
    for dest, cells in zip(dests, loaded, strict=False):
        if isinstance(dest, Register):
            shadows.write(dest.index, lanes, cells)
    if ins.op != LOAD_REDUCE:
        return
    last = dests[-1]
    if not isinstance(last, Register):
        return
    if ins.types != ("f32",):
        shadows.clear(last.index, lanes)
        return
    data = [shadows.bytes[dest.index, :, :4] for dest in dests[:-1] if isinstance(dest, Register)]
    values = np.stack([read_elements(*one, F32)[0] for one in zip(loaded, data, strict=True)])
    values = np.abs(values) if ins.has("abs") else values
    best: Any = np.fmax.reduce(values) if ins.has("max") else np.fmin.reduce(values)
    shadows.write(last.index, lanes, make_cells(best, shadows.bytes[last.index, :, :4], F32))


def tensor_store(
    cta: Cta,
    warp: Warp,
    ins: Instruction,
    lanes: Lanes,
    sources: tuple[Argument, ...],
    shadows: RegisterShadows,
) -> None:
    """Write the cells of the registers of tcgen05.st to tensor memory. If the store itself lands later, its
    bytes are others until then, and so have no shadow."""
    to, index = cta.tmem.shadows, cells_of(warp, ins, lanes, sources)
    assert to is not None
    cells = np.stack([shadows.moved(part)[:, :4] for part in operand_parts(ins.sources[-1])])
    if "unpack::16b" in ins.mods:
        parts = np.zeros((2, *cells.shape), np.complex128)
        parts[0, ..., :2], parts[1, ..., :2] = cells[..., :2], cells[..., 2:]
        cells = parts
    to.reshape(-1)[index] = np.ascontiguousarray(cells).view(SHADOW_TYPE).reshape(-1)
