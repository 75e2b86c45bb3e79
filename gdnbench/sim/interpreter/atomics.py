# SPDX-License-Identifier: Apache-2.0
"""Atomic operations (PTX ISA 9.7.13.5, 9.7.13.6). Lanes with the same address take turns in ascending
order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gdnbench.sim.interpreter.double import canonical
from gdnbench.sim.interpreter.float import TYPES, Finish, extremum
from gdnbench.sim.interpreter.memory import (
    address_of,
    count,
    legal,
    memory_of,
    places,
    space_of,
    tell,
)
from gdnbench.sim.interpreter.operation import (
    Step,
    Thread,
    bits_kind,
    fetch,
    fetch_address,
    read_registers,
    refuse,
    require,
    write,
)
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.interpreter.rounding import add_to_odd, flush, from_bits, to_bits
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Values
from gdnbench.sim.ptx.ir import Instruction, Vector

# (old, b, c) -> new, on values of the instruction's type; c only for cas.
Update = Callable[[Array, Array, Array], Array]


def _increment(old: Array, limit: Array, _: Array) -> Array:
    following: Array = old + old.dtype.type(1)
    return np.where(old >= limit, old.dtype.type(0), following)


def _decrement(old: Array, limit: Array, _: Array) -> Array:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


_INTEGER: dict[str, Update] = {
    "add": lambda old, b, c: old + b,
    "min": lambda old, b, c: np.minimum(old, b),
    "max": lambda old, b, c: np.maximum(old, b),
    "inc": _increment,
    "dec": _decrement,
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
}


def _float_update(ins: Instruction, name: str) -> Update:
    """Sums round to nearest even. PTX ISA: add.f32 on global memory flushes subnormal operands and results,
    on shared memory it does not."""
    if ins.types == ("f64",):
        return lambda old, b, c: canonical(old + b)
    format_ = TYPES[ins.types[0]].format
    if name == "add":
        finish = Finish(format_)
        return lambda old, b, c: finish(add_to_odd(from_bits(old, format_), from_bits(b, format_)))
    largest = name == "max"
    return lambda old, b, c: to_bits(
        extremum(from_bits(old, format_), from_bits(b, format_), largest, False), format_
    )


def _flushing(update: Update) -> Update:
    """The same on f32 with subnormal operands and results as zeros."""
    format_ = TYPES["f32"].format

    def zero(bits: Array) -> Array:
        return to_bits(flush(from_bits(bits, format_), format_), format_)

    return lambda old, b, c: zero(update(zero(old), zero(b), c))


def _update(ins: Instruction, name: str) -> Update:
    """The update that the instruction names, on elements as `_dtype` gives them."""
    return _float_update(ins, name) if ins.types[0].startswith(("f", "bf")) else _INTEGER[name]


def _dtype(type_name: str) -> np.dtype[np.generic]:
    """How one element lies in memory; packed halves are two elements."""
    if type_name in ("f16x2", "bf16x2"):
        return np.dtype(np.uint16)
    if type_name == "f64":
        return np.dtype(np.float64)
    kind = type_name if type_name[0] == "s" else bits_kind(type_name)
    return np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")


def turns(addresses: Values, lanes: Lanes) -> Iterator[Lanes]:
    """Lanes split so that no two of a turn share an address; of those that do, the lowest goes first."""
    left = lanes.copy()
    while left.any():
        active = np.flatnonzero(left)
        _, first = np.unique(addresses[active], return_index=True)
        turn = np.zeros(LANES, np.bool_)
        turn[active[first]] = True
        yield turn
        left &= ~turn


def step(ins: Instruction) -> Step:
    """`atom`, and `red`, which has no result."""
    name = ins.choice(*_INTEGER)
    space = space_of(ins)
    update = _update(ins, name)
    dtype = _dtype(ins.types[0])
    kind = bits_kind(ins.types[0])
    size = int(kind[1:]) // 8
    address = address_of(ins)
    operands = ins.sources[1 : 3 if name == "cas" else 2]
    rows = [operand.elements if isinstance(operand, Vector) else (operand,) for operand in operands]
    dests = tuple(ins.written())
    if any(len(row) != ins.vec for row in rows) or len(dests) not in (0, ins.vec):
        refuse(ins)
    locate, used = fetch_address(ins, address), read_registers(ins.sources)
    gets = [[fetch(ins, part, kind) for part in row] for row in rows]
    puts = tuple(write(ins, dest, kind) for dest in dests)
    flushing = _flushing(update) if ins.types == ("f32",) and name == "add" else update

    def one(thread: Thread, addresses: Values, lanes: Lanes, values: list[Array]) -> Array:
        """The old values of one element of each lane, as the bits of `kind`."""
        old = np.zeros(LANES, np.dtype(f"u{size}"))
        for where, here, local in places(space, addresses, lanes):
            memory, change = memory_of(thread, where), flushing if where == "global" else update
            for turn in turns(local, here):
                before = memory.load(local, turn, size).view(dtype)
                b, c = (
                    np.ascontiguousarray(v).view(dtype).reshape(LANES, -1) for v in (values[0], values[-1])
                )
                after = np.ascontiguousarray(change(before, b, c).astype(dtype, copy=False))
                memory.store(local, turn, after.view(np.uint8).reshape(LANES, size))
                old = np.where(turn, before.view(old.dtype).reshape(LANES), old)
            count(thread, where, here, size, load=bool(puts))
            count(thread, where, here, size, load=False)
        return old

    def run(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        addresses = locate(thread)
        made = lanes
        results = []
        for i in range(ins.vec):
            at = addresses + np.uint64(i * size)
            made = legal(thread, ins, space, at, made, size)
            results.append(one(thread, at, made, [row[i](thread) for row in gets]))
        tell(thread, ins, space, addresses, made)
        for put, result in zip(puts, results, strict=False):
            put(thread, lanes, result)

    return run
