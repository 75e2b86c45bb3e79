# SPDX-License-Identifier: Apache-2.0
"""Instructions that move bytes between registers: their cells move with them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gdnbench.sim.fp64.arithmetic import Rule
from gdnbench.sim.fp64.registers import ROOM, RegisterShadows
from gdnbench.sim.interpreter import collectives
from gdnbench.sim.interpreter.logic import PERMUTE_MODES, selected_bytes
from gdnbench.sim.interpreter.operation import Step, Thread, fetch
from gdnbench.sim.machine.engine_interface import LANES, Lanes
from gdnbench.sim.machine.shadow_cells import Cells
from gdnbench.sim.ptx.ir import Immediate, Instruction, Register, Sink, Vector

_LANE = np.arange(LANES)[:, None]


def _write(shadows: RegisterShadows, dest: object, lanes: Lanes, cells: Cells) -> None:
    if isinstance(dest, Sink):
        return
    assert isinstance(dest, Register)
    shadows.write(dest.index, lanes, cells[:, : max(dest.bits // 8, 1)])


def mov(ins: Instruction) -> Rule:
    """`mov`, with packing and unpacking of vectors."""
    source, dest = ins.sources[0], ins.dests[0]
    parts = source.elements if isinstance(source, Vector) else (source,)
    dests = dest.elements if isinstance(dest, Vector) else (dest,)
    shadowed = any(isinstance(one, Register | Immediate) for one in parts)
    each = ROOM if len(parts) == 1 or len(parts) == len(dests) else _width(ins, len(parts))

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        moved = [shadows.moved(one) for one in parts]
        step(thread, lanes)
        if len(moved) == len(dests):
            for into, cells in zip(dests, moved, strict=True):
                _write(shadows, into, lanes, cells)
            return
        if len(dests) == 1:
            _write(shadows, dests[0], lanes, np.concatenate([one[:, :each] for one in moved], axis=1))
            return
        size = _width(ins, len(dests))
        for place, into in enumerate(dests):
            _write(shadows, into, lanes, np.ascontiguousarray(moved[0][:, place * size : (place + 1) * size]))

    return rule if shadowed else no_shadow(ins)


def no_shadow(ins: Instruction) -> Rule:
    """The results have no shadow."""
    dests = [dest.index for dest in ins.written() if isinstance(dest, Register) and dest.type != "pred"]

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        step(thread, lanes)
        for index in dests:
            shadows.clear(index, lanes)

    return rule


def _width(ins: Instruction, count: int) -> int:
    return int(ins.types[0][1:]) // 8 // count


def selp(ins: Instruction) -> Rule:
    """d = p ? a : b."""
    chosen = fetch(ins, ins.sources[2], "pred")
    (dest,) = ins.written()

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        a, b = (shadows.moved(one) for one in ins.sources[:2])
        cells = np.where(chosen(thread)[:, None], a, b)
        step(thread, lanes)
        _write(shadows, dest, lanes, cells)

    return rule


def shfl(ins: Instruction) -> Rule:
    """A register of another lane."""
    mode = ins.choice("up", "down", "bfly", "idx")
    get_b, get_c = (fetch(ins, operand, "u32") for operand in ins.sources[1:3])
    dest = next(ins.written())

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        lane, _ = collectives.source_lanes(mode, get_b(thread), get_c(thread))
        cells = shadows.moved(ins.sources[0])[lane]
        step(thread, lanes)
        _write(shadows, dest, lanes, cells)

    return rule


def prmt(ins: Instruction) -> Rule:
    """Bytes of two registers; a byte that is made of a sign has no shadow."""
    mode = ins.choice(*PERMUTE_MODES)
    control = fetch(ins, ins.sources[2], "u32")
    (dest,) = ins.written()

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        index, sign = selected_bytes(mode, control(thread))
        both = np.concatenate([shadows.moved(one)[:, :4] for one in ins.sources[:2]], axis=1)
        cells = np.where(sign, 0, both[_LANE, index])
        step(thread, lanes)
        _write(shadows, dest, lanes, cells)

    return rule


def shift(ins: Instruction) -> Rule:
    """Shifts by whole bytes: `shl`, `shr`, and `shf`, of the 64 bits b:a."""
    funnel = ins.op == "shf"
    left = ins.op == "shl" or ins.has("l")
    amount = fetch(ins, ins.sources[-1], "u32")
    (dest,) = ins.written()
    width = 4 if funnel else int(ins.types[0][1:]) // 8
    registers = [one.index for one in ins.sources[:-1] if isinstance(one, Register)]

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        sources = [shadows.moved(one)[:, :width] for one in ins.sources[:-1]]
        both = np.concatenate(sources, axis=1)
        bits = amount(thread).astype(np.int64)
        if funnel:
            bits = np.minimum(bits, 32) if ins.has("clamp") else bits & 31
        unaligned = lanes & (bits % 8 != 0)
        if unaligned.any():
            live = [shadows.live(index).any(axis=1) for index in registers]
            lost = int((np.logical_or.reduce(live) & unaligned).sum()) if live else 0
            if lost:
                thread.cta.launch.lost_shadows[ins.pc] += lost
        step(thread, lanes)
        first = (width if funnel and left else 0) + np.where(left, -1, 1) * (bits // 8)
        index = first[:, None] + np.arange(width)
        inside = (index >= 0) & (index < both.shape[1]) & (bits % 8 == 0)[:, None]
        cells = np.where(inside, both[_LANE, np.where(inside, index, 0)], 0)
        _write(shadows, dest, lanes, cells)

    return rule


def narrow(ins: Instruction) -> Rule:
    """`cvt` between integers without a sign keeps the low bytes."""
    size = min(int(name[1:]) // 8 for name in ins.types)
    (dest,) = ins.written()

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        cells = shadows.moved(ins.sources[0])[:, :size]
        step(thread, lanes)
        _write(shadows, dest, lanes, cells)

    return rule


MOVES: dict[str, Callable[[Instruction], Rule]] = {
    "mov": mov,
    "selp": selp,
    "shfl": shfl,
    "prmt": prmt,
    "shl": shift,
    "shr": shift,
    "shf": shift,
}
