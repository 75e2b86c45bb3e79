"""tcgen05.ld, tcgen05.st and tcgen05.wait: fragments between registers and TMEM (PTX ISA 9.7.16.8).

A store is asynchronous until tcgen05.wait::st: under the late schedule its cells hold poison until then, for
loads and for products. A load delivers at once, since compilers move the registers' first copies above
tcgen05.wait::ld; what it delivers for a cell that a product or copy in flight will write is poison.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.seam import Argument, Handler, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.tcgen05_fragment import REGISTERS, Fragment, fragment
from gdnbench.sim.machine.tcgen05_issue import as_values, quarter_base, uniform_address
from gdnbench.sim.machine.tmem import COLUMNS, POISON, TensorMemory, column_of
from gdnbench.sim.ptx.ir import Instruction

if TYPE_CHECKING:
    from gdnbench.sim.machine.cta import Cta

Table = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Access:
    """An instruction's cells, counted from its first: `flat` is [registers, 32 threads] (packed: the even
    columns, the odd ones follow), `lanes` and `columns` what it spans."""

    flat: Table
    lanes: int
    columns: int
    packed: bool


@cache
def access(mods: tuple[str, ...], split: int) -> Access:
    """The cells of `tcgen05.{ld,st}` with these suffixes; `split` is the immediate of 16x32bx2, else 0."""
    shape = next(mod for mod in mods if mod in REGISTERS)
    repeat = int(next(mod for mod in mods if mod[0] == "x").removeprefix("x"))
    packed = "pack::16b" in mods or "unpack::16b" in mods
    cells: Fragment = fragment(shape, repeat)
    widen = 2 if packed else 1
    column = cells.column * widen + np.where(cells.second, split, 0)
    flat = np.ascontiguousarray((cells.lane * COLUMNS + column).T)
    flat.setflags(write=False)
    return Access(flat, cells.lanes, int(column.max()) + widen, packed)


def _locate(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
) -> tuple[Access, int, int]:
    """The access, the flat number of its first cell and its first column, checked against the allocations."""
    address = uniform_address(sources[0], lanes, ins)
    split = 0
    if ins.has("16x32bx2"):
        if len(sources) < 2:
            raise UnsupportedError(f"{ins.name} without immHalfSplitoff")
        split = uniform_address(sources[1], lanes, ins)
        if split >= COLUMNS:
            raise KernelFault(
                FaultKind.TMEM_ACCESS, f"{ins.name}: immHalfSplitoff {split} is over {COLUMNS} columns"
            )
    cells = access(ins.mods, split)
    first = column_of(address)
    cta.tmem.require(first, first + cells.columns, ins.name)
    return cells, quarter_base(warp.index, address, cells.lanes, ins) * COLUMNS + first, first


def _load(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    cells, base, first = _locate(cta, warp, ins, lanes, sources)
    tmem = cta.tmem
    index = cells.flat + base
    words = _read(tmem, index, first, cells.columns, ins)
    if cells.packed:
        high = _read(tmem, index + 1, first, cells.columns, ins)
        words = np.bitwise_or(words & np.uint32(0xFFFF), high << np.uint32(16))
    if cta.config.profile:
        cta.counters.traffic["TMEM to registers"] += 4 * index.size * (1 + cells.packed)
    return list(words.astype(np.uint64))


def _read(
    tmem: TensorMemory, index: Table, first: int, columns: int, ins: Instruction
) -> npt.NDArray[np.uint32]:
    words = tmem.cells.ravel().take(index)
    in_flight = None
    if tmem.busy[first : first + columns].any():
        in_flight = tmem.in_flight(index // COLUMNS, index % COLUMNS)
        words[in_flight] = POISON
    if tmem.track:
        valid = tmem.valid.ravel().take(index)
        if in_flight is not None:
            valid |= in_flight
        if not valid.all():
            cell = int(index[~valid].min())
            raise KernelFault(
                FaultKind.UNINITIALISED,
                f"{ins.name}: TMEM lane {cell // COLUMNS}, column {cell % COLUMNS} was never written",
            )
    return words


def _store(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    cells, base, _ = _locate(cta, warp, ins, lanes, sources)
    registers = as_values(sources[-1])
    if len(registers) != cells.flat.shape[0]:
        raise UnsupportedError(f"{ins.name} with {len(registers)} registers")
    words = np.array(registers, np.uint64).astype(np.uint32)
    index = cells.flat + base
    tmem = cta.tmem
    if cells.packed:
        # Each half lands in the low half of its column; that the upper half is written zero is an assumption.
        index = np.concatenate((index, index + 1))
        words = np.concatenate((words & 0xFFFF, words >> 16))
    schedule = cta.queue.schedule.kind
    if schedule == "early" or (schedule == "random" and cta.queue.random.random() < 0.5):
        tmem.cells.ravel()[index] = words
    else:
        tmem.cells.ravel()[index] = POISON
        tmem.stores.setdefault(warp.index, []).append((index, words))
    tmem.valid.ravel()[index] = True
    if cta.config.profile:
        cta.counters.traffic["registers to TMEM"] += 4 * index.size
    return ()


def _wait_store(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    for index, words in cta.tmem.stores.pop(warp.index, ()):
        cta.tmem.cells.ravel()[index] = words
    return ()


def _wait_load(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    return ()


HANDLERS: dict[str, Handler] = {
    "tcgen05.ld": _load,
    "tcgen05.st": _store,
    "tcgen05.wait::ld": _wait_load,
    "tcgen05.wait::st": _wait_store,
}
