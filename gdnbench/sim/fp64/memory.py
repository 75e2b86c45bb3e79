# SPDX-License-Identifier: Apache-2.0
"""Loads, stores, atomics and matrix accesses: cells between registers and memories."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gdnbench.sim.fp64.arithmetic import Rule
from gdnbench.sim.fp64.registers import KINDS, RegisterShadows, reader
from gdnbench.sim.interpreter.matrix import matrix_shape, operand_parts
from gdnbench.sim.interpreter.memory import address_of, element_type, memory_of, places, space_of
from gdnbench.sim.interpreter.operation import Step, Thread, fetch_address
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Values
from gdnbench.sim.machine.shadow_cells import (
    Bytes,
    Cells,
    Doubles,
    GlobalCells,
    Shape,
    make_cells,
    read_elements,
)
from gdnbench.sim.ptx.ir import Instruction, Register, Sink

Indices = npt.NDArray[np.intp]

_GROUP, _T = np.arange(LANES) // 4, np.arange(LANES) % 4
_ROW = 16  # bytes of a matrix's row


def load_cells(thread: Thread, space: str, addresses: Values, lanes: Lanes, width: int) -> Cells:
    """The cells [32, width] at these addresses; none of parameters."""
    found = np.zeros((LANES, width), np.complex128)
    for name, here, local in places(space, addresses, lanes):
        if name == "global":
            found[here] = _global(thread.cta).gather(local[here], width)
        elif name != "param":
            rows, cells = _rows(thread, name, here)
            found[here] = cells[(*rows, local[here].astype(np.intp)[:, None] + np.arange(width))]
    return found


def store_cells(thread: Thread, space: str, addresses: Values, lanes: Lanes, cells: Cells) -> None:
    """Write the cells [32, width] at these addresses."""
    for name, here, local in places(space, addresses, lanes):
        if name == "global":
            _global(thread.cta).scatter(local[here], cells[here])
        elif name != "param":
            rows, to = _rows(thread, name, here)
            to[(*rows, local[here].astype(np.intp)[:, None] + np.arange(cells.shape[1]))] = cells[here]


def _global(cta: Cta) -> GlobalCells:
    assert cta.memory.shadows is not None
    return cta.memory.shadows


def _rows(thread: Thread, space: str, lanes: Lanes) -> tuple[tuple[Indices, ...], Cells]:
    """How the cells of a memory are indexed before the byte, and these cells."""
    if space == "local":
        local = thread.cta.local[thread.warp.index].shadows
        assert local is not None
        return (np.flatnonzero(lanes)[:, None],), local
    shared = thread.cta.shared.shadows
    assert shared is not None
    return (), shared


def ld(ins: Instruction) -> Rule:
    space, (_, size) = space_of(ins), element_type(ins)
    locate, dests = fetch_address(ins, address_of(ins)), list(ins.written())
    constant = space == "param" and size == 4

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        addresses = locate(thread).copy()
        step(thread, lanes)
        cells = load_cells(thread, space, addresses, lanes, size * ins.vec)
        if constant:
            words = [shadows.bytes[dest.index, :, :4] for dest in dests if isinstance(dest, Register)]
            meant = shadows.constants.cells(np.concatenate(words, axis=1))
            cells = cells if meant is None or meant.shape != cells.shape else meant
        for place, dest in enumerate(dests):
            if isinstance(dest, Register):
                part = np.ascontiguousarray(cells[:, place * size : (place + 1) * size])
                shadows.write(dest.index, lanes, part)

    return rule


def st(ins: Instruction) -> Rule:
    space, (_, size) = space_of(ins), element_type(ins)
    locate, parts = fetch_address(ins, address_of(ins)), operand_parts(ins.sources[1])

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        step(thread, lanes)
        cells = np.concatenate([shadows.moved(part)[:, :size] for part in parts], axis=1)
        store_cells(thread, space, locate(thread), lanes, cells)

    return rule


_UPDATES: dict[str, np.ufunc] = {"add": np.add, "min": np.fmin, "max": np.fmax}


def atomic(ins: Instruction) -> Rule | None:
    """`red` and `atom` of floats: the memory's shadow is updated. The old value that `atom` returns has no
    shadow."""
    kind = KINDS.get(ins.types[0])
    update = _UPDATES.get(ins.choice(*_UPDATES))
    if kind is None or update is None:
        return None
    space, locate = space_of(ins), fetch_address(ins, address_of(ins))
    reads = [reader(ins, part, kind) for part in operand_parts(ins.sources[1])]
    dests = [dest for dest in ins.written() if not isinstance(dest, Sink)]
    width = kind.size * ins.vec

    def memory_bytes(thread: Thread, addresses: Values, lanes: Lanes) -> Bytes:
        data = np.zeros((LANES, width), np.uint8)
        for name, here, local in places(space, addresses, lanes):
            for start in range(0, width, kind.size):
                got = memory_of(thread, name).load(local + np.uint64(start), here, kind.size)
                data[here, start : start + kind.size] = got[here]
        return data

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        addresses = locate(thread).copy()
        before = memory_bytes(thread, addresses, lanes)
        cells = load_cells(thread, space, addresses, lanes, width)
        old = read_elements(cells, before, kind.shape)[0]
        operands = np.concatenate([read(thread, shadows) for read in reads], axis=1)
        step(thread, lanes)
        active = np.flatnonzero(lanes)
        _, first, place = np.unique(addresses[active], return_index=True, return_inverse=True)
        total = old[active[first]].copy()
        update.at(total, place, operands[active])
        after = memory_bytes(thread, addresses, lanes)
        store_cells(thread, space, addresses, lanes, _spread(total, place, active, after, kind.shape))
        for dest in dests:
            assert isinstance(dest, Register)
            shadows.clear(dest.index, lanes)

    return rule


def _spread(total: Doubles, place: Indices, active: Indices, after: Bytes, shape: Shape) -> Cells:
    """The cells [32, width] of the new values: those at `place` for each active lane."""
    values = np.zeros((LANES, total.shape[1]))
    values[active] = total[place]
    return make_cells(values, after, shape)


def _to_registers(tiles: Cells, transposed: bool) -> Cells:
    """Cells of halves [n, 8, 8, 2] as those of registers [n, 32, 4]."""
    tiles = tiles.swapaxes(1, 2) if transposed else tiles
    pairs = tiles[:, _GROUP[:, None], 2 * _T[:, None] + np.arange(2)]
    return np.ascontiguousarray(pairs).reshape(len(tiles), LANES, 4)


def _to_tiles(registers: Cells, transposed: bool) -> Cells:
    """The inverse: [n, 32, 4] -> [n, 8, 8, 2]."""
    tiles = registers.reshape(len(registers), 8, 8, 2)
    return tiles.swapaxes(1, 2) if transposed else tiles


def _shared_addresses(space: str, addresses: Values, lanes: Lanes) -> Values:
    return next(local for _, _, local in places(space, addresses, lanes))


def ldmatrix(ins: Instruction) -> Rule:
    matrices, transposed, space = matrix_shape(ins)
    locate, dests = fetch_address(ins, address_of(ins)), list(ins.written())
    givers = np.arange(LANES) < 8 * matrices

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        addresses = locate(thread).copy()
        step(thread, lanes)
        cells = load_cells(thread, space, addresses, lanes & givers, _ROW)
        tiles = cells[: 8 * matrices].reshape(matrices, 8, 8, 2)
        for dest, one in zip(dests, _to_registers(tiles, transposed), strict=True):
            if isinstance(dest, Register):
                shadows.write(dest.index, lanes, one)

    return rule


def stmatrix(ins: Instruction) -> Rule:
    matrices, transposed, space = matrix_shape(ins)
    locate, parts = fetch_address(ins, address_of(ins)), operand_parts(ins.sources[1])
    givers = np.arange(LANES) < 8 * matrices

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        step(thread, lanes)
        registers = np.stack([shadows.moved(part)[:, :4] for part in parts])
        cells = np.zeros((LANES, _ROW), np.complex128)
        tiles = np.ascontiguousarray(_to_tiles(registers, transposed))
        cells[: 8 * matrices] = tiles.reshape(8 * matrices, _ROW)
        store_cells(thread, space, locate(thread), lanes & givers, cells)

    return rule


def movmatrix(ins: Instruction) -> Rule:
    (dest,) = ins.written()

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        cells = shadows.moved(ins.sources[0])[None, :, :4]
        step(thread, lanes)
        assert isinstance(dest, Register)
        shadows.write(dest.index, lanes, _to_registers(_to_tiles(cells, False), True)[0])

    return rule


ACCESSES: dict[str, Callable[[Instruction], Rule | None]] = {
    "ld": ld,
    "ldu": ld,
    "st": st,
    "atom": atomic,
    "red": atomic,
    "ldmatrix": ldmatrix,
    "stmatrix": stmatrix,
    "movmatrix": movmatrix,
}
