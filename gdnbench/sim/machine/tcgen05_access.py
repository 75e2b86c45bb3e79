# SPDX-License-Identifier: Apache-2.0
"""tcgen05.ld, tcgen05.ld.red, tcgen05.st and tcgen05.wait: fragments between registers and TMEM (PTX ISA
9.7.16.8).

A store is asynchronous until tcgen05.wait::st: under the late schedule loads and products read poison from
its cells until then. A load delivers at once, because compilers move the registers' first copies above
tcgen05.wait::ld; the engine must check that nothing else uses them before the wait. For a cell that a product
or copy in flight will write, a load returns poison.

tcgen05.ld.red also gives each thread the minimum or maximum of the registers that it loads. The ISA does not
define it for NaN and for zeros of both signs; it is taken to be that of `redux.sync`: NaN operands count only
with .NaN or if there are no others, the NaN is 0x7FFFFFFF, and -0 is below +0.

An engine that stores a warp's registers together calls `load_words`, `reduce_words`, `store_words` and
`complete_stores` directly; other engines reach them through the handlers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.operands import uniform_value
from gdnbench.sim.machine.tcgen05_fragment import REGISTERS, Fragment, fragment
from gdnbench.sim.machine.tcgen05_issue import as_values, foreign_quarter, quarter_base
from gdnbench.sim.machine.tmem import COLUMNS, POISON, TensorMemory, column_of
from gdnbench.sim.ptx.ir import Immediate, Instruction

LOAD_REDUCE = "tcgen05.ld.red"

Table = npt.NDArray[np.intp]
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Access:
    """The cells of an instruction, relative to its first. `flat` is [registers, 32 threads] (packed: the even
    columns, then the odd ones); `lanes` and `columns` are the extents."""

    flat: Table
    lanes: int
    columns: int
    packed: bool


@cache
def access_cells(mods: tuple[str, ...], split: int) -> Access:
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


def load_words(cta: Cta, warp: Warp, ins: Instruction, address: int, split: int = 0) -> Words:
    """tcgen05.ld as uint32[registers, 32 threads]; `split` is immHalfSplitoff."""
    cells, index, first = _locate(cta, warp, ins, address, split)
    words = _read(cta.tmem, index, first, cells.columns, ins)
    if cells.packed:
        high = _read(cta.tmem, index + 1, first, cells.columns, ins)
        words = np.bitwise_or(words & np.uint32(0xFFFF), high << np.uint32(16))
    if cta.config.profile:
        cta.counters.traffic["TMEM to registers"] += 4 * index.size * (1 + cells.packed)
    return words


def reduce_words(ins: Instruction, words: Words) -> Words:
    """The reduction of tcgen05.ld.red over uint32[registers, 32 threads], as uint32[32 threads]."""
    largest = ins.has("max")
    if ins.types != ("f32",):
        values = words.view(np.int32) if ins.types == ("s32",) else words
        integers: Words = (values.max(axis=0) if largest else values.min(axis=0)).view(np.uint32)
        return integers
    if ins.has("abs"):
        words = words & np.uint32(0x7FFF_FFFF)
    nan = (words & np.uint32(0x7FFF_FFFF)) > np.uint32(0x7F80_0000)
    ordered = _float_order(words.view(np.int32))
    if largest:
        chosen = np.where(nan, np.int32(-(1 << 31)), ordered).max(axis=0)
    else:
        chosen = np.where(nan, np.int32((1 << 31) - 1), ordered).min(axis=0)
    invalid = nan.any(axis=0) if ins.has("NaN") else nan.all(axis=0)
    reduced: Words = np.where(invalid, np.uint32(0x7FFF_FFFF), _float_order(chosen).view(np.uint32))
    return reduced


def _float_order(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The bits of floats as integers of the same order, and back; NaN apart."""
    return np.where(bits < 0, bits ^ np.int32(0x7FFF_FFFF), bits)


def store_words(cta: Cta, warp: Warp, ins: Instruction, address: int, words: Words, split: int = 0) -> None:
    """tcgen05.st of uint32[registers, 32 threads]; keeps `words`."""
    cells, index, _ = _locate(cta, warp, ins, address, split)
    if words.shape != index.shape:
        raise UnsupportedError(f"{ins.name} with {len(words)} registers")
    tmem = cta.tmem
    if cells.packed:
        # Each half goes to the low half of its column. That the upper half becomes zero is an assumption.
        index = np.concatenate((index, index + 1))
        words = np.concatenate((words & np.uint32(0xFFFF), words >> np.uint32(16)))
    schedule = cta.queue.schedule.kind
    if schedule == "early" or (schedule == "random" and cta.queue.random.random() < 0.5):
        tmem.flat[index] = words
    else:
        tmem.flat[index] = POISON
        tmem.stores.setdefault(warp.index, []).append((index, words))
    if tmem.track:
        tmem.valid.ravel()[index] = True
    if cta.config.profile:
        cta.counters.traffic["registers to TMEM"] += 4 * index.size


def complete_stores(cta: Cta, warp: Warp) -> None:
    """tcgen05.wait::st: write the warp's stores to TMEM."""
    for index, words in cta.tmem.stores.pop(warp.index, ()):
        cta.tmem.flat[index] = words


def _locate(cta: Cta, warp: Warp, ins: Instruction, address: int, split: int) -> tuple[Access, Table, int]:
    """The access, the flat numbers of its cells and its first column. Checks the allocation."""
    if split >= COLUMNS:
        raise KernelFault(
            FaultKind.TMEM_ACCESS, f"{ins.name}: immHalfSplitoff {split} is over {COLUMNS} columns"
        )
    cells = access_cells(ins.mods, split)
    first = column_of(address)
    cta.tmem.require(first, first + cells.columns, ins.name)
    foreign = foreign_quarter(warp.index, address, ins)
    if foreign is not None:
        cta.skip(foreign)
    base = quarter_base(warp.index, address, cells.lanes, ins) * COLUMNS + first
    return cells, cells.flat + base, first


def cells_of(warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> Table:
    """The cells of a legal tcgen05.ld or .st as numbers 512 lane + column."""
    address, split = _operands(ins, lanes, sources)
    cells = access_cells(ins.mods, split)
    base = quarter_base(warp.index, address, cells.lanes, ins) * COLUMNS + column_of(address)
    found = (cells.flat + base).reshape(-1)
    return np.concatenate((found, found + 1)) if cells.packed else found


def _operands(ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> tuple[int, int]:
    """The address, which must be equal in all lanes (PTX ISA 9.7.16.8.3), and immHalfSplitoff."""
    address = uniform_value(sources[0], lanes, f"the address of {ins.name}")
    if "16x32bx2" not in ins.mods:
        return address, 0
    if len(ins.sources) < 2 or not isinstance(ins.sources[1], Immediate):
        raise UnsupportedError(f"{ins.name} without immHalfSplitoff")
    return address, ins.sources[1].bits


def _load(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    address, split = _operands(ins, lanes, sources)
    reduces = ins.op == LOAD_REDUCE
    registers = sum(1 for _ in ins.written()) - reduces
    if registers != len(access_cells(ins.mods, split).flat):
        raise UnsupportedError(f"{ins.name} with {registers} registers")
    words = load_words(cta, warp, ins, address, split)
    results = list(words.astype(np.uint64))
    return [*results, reduce_words(ins, words).astype(np.uint64)] if reduces else results


def _store(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    address, split = _operands(ins, lanes, sources)
    registers = as_values(sources[-1])
    store_words(cta, warp, ins, address, np.array(registers, np.uint64).astype(np.uint32), split)
    return ()


def _read(tmem: TensorMemory, index: Table, first: int, columns: int, ins: Instruction) -> Words:
    words = tmem.flat.take(index)
    in_flight = None
    if tmem.written_in_flight(first, first + columns):
        in_flight = tmem.in_flight(index // COLUMNS, index % COLUMNS)
        words[in_flight] = POISON
    if tmem.track:
        valid = tmem.valid.ravel().take(index)
        if in_flight is not None:
            valid |= in_flight
        if not valid.all():
            cell = int(index[~valid].min())
            message = f"{ins.name}: TMEM lane {cell // COLUMNS}, column {cell % COLUMNS} was never written"
            tmem.skip(KernelFault(FaultKind.UNINITIALISED, message))
    return words


def _wait_store(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    complete_stores(cta, warp)
    return ()


def _wait_load(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    return ()


HANDLERS: dict[str, Handler] = {
    "tcgen05.ld": _load,
    LOAD_REDUCE: _load,
    "tcgen05.st": _store,
    "tcgen05.wait::ld": _wait_load,
    "tcgen05.wait::st": _wait_store,
}
