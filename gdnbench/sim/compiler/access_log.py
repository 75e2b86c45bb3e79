# SPDX-License-Identifier: Apache-2.0
"""The log of loads and stores that a compiled kernel writes for the checker. Python reads the log whenever
compiled code returns.

Only kernels compiled for a checker write a log (`Layout.log`). A block that might overflow the log returns
before it executes anything, so single accesses need no test. The log is empty whenever compiled code is not
running: all warps whose CTAs run in one thread share it.
"""

from __future__ import annotations

import threading
from typing import cast

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler.access_log_entry import BLOCK, ENTRY, ENTRY_BYTES, LANES_OFFSET, PC_OFFSET
from gdnbench.sim.compiler.blocks import MAX_BLOCK
from gdnbench.sim.compiler.compiled_warp import CompiledWarp
from gdnbench.sim.compiler.emit import I64, Code, Library, Value, const
from gdnbench.sim.compiler.layout import ALIGN, aligned_bytes
from gdnbench.sim.compiler.translator import Translator
from gdnbench.sim.machine.engine_interface import LANES, Lanes
from gdnbench.sim.machine.observer import Addresses, Checker, Masks, PathObserver
from gdnbench.sim.ptx.ir import Instruction

CAPACITY = 1024  # entries: 320 KB, which fit in a core's L2 cache
assert CAPACITY >= MAX_BLOCK


def log_access(t: Translator, ins: Instruction, address: Value) -> None:
    """Log that the active lanes access `address`, which is legal."""
    field = t.program.layout.log
    if field is None:
        return
    code = t.code
    code.library.helper("log_access", lambda name, library: _define(name, library, field))
    lanes, where = code.mask_bits(t.active), code.resize(address, I64)
    code.call_void("log_access", t.state, const("i32", ins.pc), lanes, where)


def log_meeting(t: Translator, ins: Instruction, named: Value) -> None:
    """Log that lanes have arrived together at a collective. An entry has for each lane the lanes that have
    not exited, 32 bits, and below them its member mask."""
    if t.program.layout.log is None:
        return
    code = t.code
    live = code.opi("shl", code.cast("zext", code.load("i32", t.header("live"), 4), "i64"), LANES)
    log_access(t, ins, code.op("or", code.cast("zext", named, I64), code.splat(live)))


def _define(name: str, library: Library, field: int) -> str:
    """`log_access(state, pc, mask, address)`. An entry without lanes is overwritten by the next."""
    code, state, mask = Code(library), Value("ptr", "%state"), Value("i32", "%mask")
    code.start_block("entry")
    place = code.offset(state, field)
    entry = code.load("ptr", place, 8)
    code.store(Value(I64, "%address"), entry, ALIGN)
    code.store(Value("i32", "%pc"), code.offset(entry, PC_OFFSET), 4)
    code.store(mask, code.offset(entry, LANES_OFFSET), 4)
    some = code.comparei("icmp ne", mask, 0)
    size = code.select(some, const("i64", ENTRY_BYTES), const("i64", 0))
    code.store(code.offset(entry, size), place, 8)
    code.line("ret void")
    head = f"define internal void @{name}(ptr %state, i32 %pc, i32 %mask, {I64} %address) noinline #0"
    return f"{head} {{\n{code.text()}\n}}\n"


def _lanes(masks: npt.NDArray[np.unsignedinteger]) -> Masks:
    """32-bit masks as booleans."""
    found = np.ascontiguousarray(masks, np.uint32).view(np.uint8).reshape(len(masks), 4)
    return np.unpackbits(found, axis=1, bitorder="little").view(np.bool_)


class _Room(threading.local):
    """The log buffer of this thread."""

    def __init__(self) -> None:
        self.entries = aligned_bytes(CAPACITY * ENTRY_BYTES).view(ENTRY)


_room = _Room()


class AccessLog:
    """The log of one CTA. Only the thread that made it may use it."""

    def __init__(self, checker: Checker, field: int, *, path: bool) -> None:
        self._checker = checker
        self._path = cast("PathObserver", checker) if path else None
        self._next = field // 8
        self._entries = _room.entries
        self._start = int(self._entries.ctypes.data)

    def open(self, warp: CompiledWarp) -> None:
        """Make the warp's code write to this log."""
        warp.longs[self._next] = self._start
        warp.longs[self._next + 1] = self._start + CAPACITY * ENTRY_BYTES

    def drain(self, warp: CompiledWarp) -> None:
        """Report the warp's logged accesses to the checker."""
        count = (warp.longs[self._next] - self._start) // ENTRY_BYTES
        if not count:
            return
        warp.longs[self._next] = self._start
        logged = self._entries[:count]
        addresses, pcs = logged["addresses"].copy(), logged["pc"]
        if self._path is not None:
            self._path.on_path(warp.warp, pcs.copy(), logged["lanes"].copy(), addresses)
            return
        masks = _lanes(logged["lanes"])
        ends = [*(np.flatnonzero(pcs[1:] != pcs[:-1]) + 1).tolist(), count]
        instructions, start = warp.kernel.instructions, 0
        for end, pc in zip(ends, pcs[np.array(ends) - 1].tolist(), strict=True):
            ins = instructions[pc]
            if ins.form.lanes_meet:
                self._met(warp, ins, masks[start:end], addresses[start:end])
            else:
                self._checker.on_accesses(warp.warp, ins, masks[start:end], addresses[start:end])
            start = end

    def report_block(self, warp: CompiledWarp, ins: Instruction, lanes: int) -> None:
        """Report an instruction of the warp's path that compiled code did not execute."""
        if self._path is not None:
            entered, active = np.array([[BLOCK | ins.pc], [lanes]], np.uint32)
            self._path.on_path(warp.warp, entered, active, np.zeros((1, LANES), np.uint64))

    def _met(self, warp: CompiledWarp, ins: Instruction, masks: Masks, named: Addresses) -> None:
        """Report lanes that have arrived together, each member mask by itself."""
        live = _lanes(named.max(axis=1) >> np.uint64(LANES))
        for lanes, members, there in zip(masks, named, live, strict=True):
            for mask in np.unique(members[lanes]).tolist():
                self.log_collective(warp, ins, lanes & (members == mask), there)

    def log_collective(self, warp: CompiledWarp, ins: Instruction, lanes: Lanes, live: Lanes) -> None:
        """Like `_met`, for lanes that arrived while no compiled code ran."""
        self._checker.on_warp_collective(warp.warp, ins, lanes, live)
