# SPDX-License-Identifier: Apache-2.0
"""What the lanes of a warp do together: `shfl`, `vote`, `match`, `redux`, `elect`, `activemask`,
`bar.warp.sync` (PTX ISA 9.7.9.6 and 9.7.13).

A warp runs these steps once the lanes that the member mask names have arrived. Lanes may name different
masks at once; each set is then served by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.interpreter.float import extremum
from gdnbench.sim.interpreter.operation import (
    Fetch,
    Step,
    Thread,
    fetch,
    find_undefined,
    mark_computed,
    read_registers,
    refuse,
    require,
    write,
)
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.interpreter.rounding import F32, from_bits, to_bits
from gdnbench.sim.machine.engine_interface import LANES, Lanes
from gdnbench.sim.ptx.ir import Instruction, Register

_LANE = np.arange(LANES, dtype=np.int64)
_BIT = np.uint32(1) << np.arange(LANES, dtype=np.uint32)


def mask_of(lanes: Lanes) -> int:
    """Lanes as a member mask."""
    return int(_BIT[lanes].sum(dtype=np.uint64))


def lanes_of(mask: int) -> Lanes:
    """A member mask as lanes."""
    lanes: Lanes = (np.uint32(mask) & _BIT) != 0
    return lanes


def members(ins: Instruction) -> Fetch:
    """How the member mask is read."""
    return fetch(ins, ins.sources[-1], "u32")


def sets(thread: Thread, lanes: Lanes, mask: Fetch) -> Iterator[Lanes]:
    """The active lanes, split by the mask that they name."""
    named = mask(thread)
    outside = lanes & ((named & _BIT) == 0)
    if outside.any():
        lane = int(outside.argmax())
        raise KernelFault(
            FaultKind.DIVERGENCE,
            f"lane {lane} is not in the member mask {int(named[lane]):#010x} that it names",
        )
    for value in np.unique(named[lanes]):
        yield lanes & (named == value)


def _mask_registers(ins: Instruction) -> tuple[int, ...]:
    return read_registers(ins.sources[-1:])


def _undefined(thread: Thread, ins: Instruction, lanes: Lanes) -> Lanes | None:
    """The lanes whose value, the first source, is undefined. The member mask is used."""
    require(thread, _mask_registers(ins), lanes)
    return find_undefined(thread, read_registers(ins.sources[:1]), lanes)


def _mark_computed(thread: Thread, dests: Sequence[object], together: Lanes, undefined: Lanes | None) -> None:
    """A result of several lanes is undefined in all of them if the value of one is."""
    if undefined is not None and (undefined & together).any():
        mark_computed(thread, dests, together)


def shfl(ins: Instruction) -> Step:
    """Moves a register between lanes, written or not; one that tcgen05.ld has yet to deliver is used by it,
    for no compiler moves it above a wait. A lane that sources one that does not take part gets a value that
    was never written."""
    mode = ins.choice("up", "down", "bfly", "idx")
    source = ins.sources[0]
    get, get_b, get_c = (fetch(ins, operand, "u32") for operand in ins.sources[:3])
    mask, used = fetch(ins, ins.sources[3], "u32"), read_registers(ins.sources[1:])
    dests = tuple(ins.written())
    put = write(ins, dests[0], "u32")
    put_valid = write(ins, dests[1], "pred") if len(dests) > 1 else None

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        lane_from, valid = source_lanes(mode, get_b(thread), get_c(thread))
        taking_part = np.zeros(LANES, np.bool_)
        for together in sets(thread, lanes, mask):
            taking_part |= together & together[lane_from]
        registers = thread.registers
        if isinstance(source, Register):
            registers.require_delivered(source.index, lanes)
        marks = np.where(taking_part, registers.moved(source)[lane_from], np.uint32(0))
        put(thread, lanes, get(thread)[lane_from])
        dest = dests[0]
        if isinstance(dest, Register) and ((marks & 0xF000F) != 0xF)[lanes].any():
            registers.mark_moved(dest.index, lanes, marks, ())
        if put_valid is not None:
            put_valid(thread, lanes, valid)

    return step


def source_lanes(mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """(lane to copy from, whether it lies in the segment) as 9.7.9.6 computes them."""
    offset, clamp, segment = (
        value.astype(np.int64)
        for value in (b & np.uint32(31), c & np.uint32(31), c >> np.uint32(8) & np.uint32(31))
    )
    low = _LANE & segment
    high = low | (clamp & ~segment)
    if mode == "up":
        lane = _LANE - offset
        valid = lane >= high
    elif mode == "down":
        lane = _LANE + offset
        valid = lane <= high
    elif mode == "bfly":
        lane = _LANE ^ offset
        valid = lane <= high
    else:
        lane = low | (offset & ~segment)
        valid = lane <= high
    return np.where(valid, lane, _LANE), valid


def vote(ins: Instruction) -> Step:
    mode = ins.choice("all", "any", "uni", "ballot")
    get, mask = fetch(ins, ins.sources[0], "pred"), fetch(ins, ins.sources[1], "u32")
    dest = next(ins.written())
    put = write(ins, dest, "u32" if mode == "ballot" else "pred")
    decide: dict[str, Callable[[Array], object]] = {
        "all": np.all,
        "any": np.any,
        "uni": lambda votes: votes.all() or not votes.any(),
    }

    def step(thread: Thread, lanes: Lanes) -> None:
        undefined = _undefined(thread, ins, lanes)
        votes = get(thread).copy()
        for together in sets(thread, lanes, mask):
            if mode == "ballot":
                put(thread, together, np.full(LANES, mask_of(together & votes), np.uint32))
            else:
                put(thread, together, np.full(LANES, bool(decide[mode](votes[together]))))
            _mark_computed(thread, (dest,), together, undefined)

    return step


def match(ins: Instruction) -> Step:
    mode = ins.choice("any", "all")
    get, mask = fetch(ins, ins.sources[0], f"u{ins.types[0][1:]}"), fetch(ins, ins.sources[1], "u32")
    dests = tuple(ins.written())
    if mode == "any" and len(dests) > 1:
        refuse(ins)
    put = write(ins, dests[0], "u32")
    put_all = write(ins, dests[1], "pred") if len(dests) > 1 else None

    def step(thread: Thread, lanes: Lanes) -> None:
        undefined = _undefined(thread, ins, lanes)
        values = get(thread).copy()
        for together in sets(thread, lanes, mask):
            if mode == "any":
                equal = values[:, None] == values[None, :]
                put(
                    thread,
                    together,
                    (np.where(equal & together, _BIT, np.uint32(0))).sum(axis=1).astype(np.uint32),
                )
                _mark_computed(thread, dests, together, undefined)
                continue
            same = bool((values[together] == values[together][0]).all())
            put(thread, together, np.full(LANES, mask_of(together) if same else 0, np.uint32))
            if put_all is not None:
                put_all(thread, together, np.full(LANES, same))
            _mark_computed(thread, dests, together, undefined)

    return step


_REDUCE: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def redux(ins: Instruction) -> Step:
    name = ins.choice(*_REDUCE)
    real = ins.types == ("f32",)
    absolute, nan = ins.has("abs"), ins.has("NaN")
    kind = "s32" if ins.types == ("s32",) else "u32"
    get, mask = fetch(ins, ins.sources[0], kind), fetch(ins, ins.sources[1], "u32")
    dest = next(ins.written())
    put = write(ins, dest, kind)

    def reduced(values: Array) -> Array:
        """One value, as an array of one element."""
        if not real:
            return _REDUCE[name].reduce(values, dtype=values.dtype, keepdims=True)  # type: ignore[no-any-return]
        numbers = from_bits(values, F32)
        numbers = np.abs(numbers) if absolute else numbers
        result = numbers[:1]
        for i in range(1, numbers.size):
            result = extremum(result, numbers[i : i + 1], name == "max", nan)
        return to_bits(result, F32)

    def step(thread: Thread, lanes: Lanes) -> None:
        undefined = _undefined(thread, ins, lanes)
        values = get(thread).copy()
        for together in sets(thread, lanes, mask):
            put(thread, together, np.repeat(reduced(values[together]), LANES))
            _mark_computed(thread, (dest,), together, undefined)

    return step


def elect(ins: Instruction) -> Step:
    """The lowest lane of the set: PTX ISA leaves open which, but asks for the same one every time."""
    dests = tuple(ins.written())
    if len(dests) != 2:
        refuse(ins)
    mask, used = fetch(ins, ins.sources[0], "u32"), read_registers(ins.sources)
    put, put_leader = write(ins, dests[0], "u32"), write(ins, dests[1], "pred")

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        for together in sets(thread, lanes, mask):
            leader = int(together.argmax())
            put(thread, together, np.full(LANES, leader, np.uint32))
            put_leader(thread, together, np.equal(_LANE, leader))

    return step


def activemask(ins: Instruction) -> Step:
    put = write(ins, next(ins.written()), "u32")

    def step(thread: Thread, lanes: Lanes) -> None:
        put(thread, lanes, np.full(LANES, mask_of(lanes), np.uint32))

    return step


def bar_warp_sync(ins: Instruction) -> Step:
    """The lanes have arrived; nothing is left to do but to check that each is in its mask."""
    mask, used = fetch(ins, ins.sources[0], "u32"), _mask_registers(ins)

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        for _ in sets(thread, lanes, mask):
            pass

    return step


STEPS: dict[str, Callable[[Instruction], Step]] = {
    "shfl": shfl,
    "vote": vote,
    "match": match,
    "redux": redux,
    "elect": elect,
    "bar.warp.sync": bar_warp_sync,
}
