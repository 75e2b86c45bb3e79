# SPDX-License-Identifier: Apache-2.0
"""Comparison and selection (PTX ISA 9.7.6, 9.7.7): `setp`, `set`, `selp`, `slct`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gdnbench.sim.interpreter.float import TYPES
from gdnbench.sim.interpreter.operation import (
    Operation,
    Step,
    Thread,
    bits_kind,
    fetch,
    find_undefined,
    mark_computed,
    read_registers,
    write,
)
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.interpreter.rounding import F32, flush, from_bits
from gdnbench.sim.machine.engine_interface import Lanes
from gdnbench.sim.ptx.ir import Instruction, Register

Predicate = Callable[[Array, Array], Array]

_ORDERED: dict[str, Predicate] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu")
_COMPARISONS = (*_ORDERED, *_UNORDERED, "num", "nan")
_LOGICAL: dict[str, Predicate] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _either_nan(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def float_comparison(name: str) -> Predicate:
    """Ordered comparisons are false of NaN, `ne` included; those ending in `u` are true (9.3.1.2)."""
    if name == "num":
        return lambda a, b: ~_either_nan(a, b)
    if name == "nan":
        return _either_nan
    if name in _UNORDERED:
        ordered = _ORDERED[name[:-1]]
        return lambda a, b: ordered(a, b) | _either_nan(a, b)
    if name == "ne":
        return lambda a, b: (a != b) & ~_either_nan(a, b)
    return _ORDERED[name]


def comparison(ins: Instruction, type_name: str) -> tuple[str, Predicate]:
    """(how the operands are held, the predicate on them). Packed halves give two results a lane."""
    name = ins.choice(*_COMPARISONS)
    if type_name == "f64":
        return "f64", float_comparison(name)
    if type_name in TYPES:
        type_ = TYPES[type_name]
        compare = float_comparison(name)
        ftz = ins.has("ftz")

        def of_bits(a: Array, b: Array) -> Array:
            left, right = from_bits(a, type_.format), from_bits(b, type_.format)
            if ftz:
                left, right = flush(left, type_.format), flush(right, type_.format)
            return compare(left, right)

        return type_.kind, of_bits
    return bits_kind(type_name) if type_name[0] == "b" else type_name, _ORDERED[name]


def _combination(ins: Instruction) -> Predicate | None:
    return _LOGICAL.get(ins.choice(*_LOGICAL))


def setp(ins: Instruction) -> Operation:
    """p = compare(a, b) combined with c; q = the negated comparison combined with c. For packed halves p
    and q are the results of the lower and the upper half."""
    kind, compare = comparison(ins, ins.types[0])
    combine = _combination(ins)

    def both(a: Array, b: Array) -> tuple[Array, Array]:
        result = compare(a, b)
        return (result[..., 0], result[..., 1]) if kind == "u16x2" else (result, ~result)

    if combine is None:
        return Operation((kind, kind), ("pred", "pred"), both)

    def combined(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        p, q = both(a, b)
        return combine(p, c), combine(q, c)

    return Operation((kind, kind, "pred"), ("pred", "pred"), combined)


# What `set` writes for true: all ones, or 1.0 in the destination's format.
_TRUE = {
    "u32": 0xFFFF_FFFF, "s32": 0xFFFF_FFFF, "f32": 0x3F80_0000, "u16": 0xFFFF, "s16": 0xFFFF,
    "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80,
}  # fmt: skip


def set_(ins: Instruction) -> Operation:
    """Like `setp`, but the truth is written as a number of the first type."""
    target, source = ins.types
    kind, compare = comparison(ins, source)
    combine = _combination(ins)
    packed = kind == "u16x2"
    halves = target in ("u16", "s16", "f16", "bf16", "f16x2", "bf16x2")
    put = "u16x2" if packed else "u16" if halves else "u32"
    dtype = np.uint16 if halves or packed else np.uint32
    true = dtype(_TRUE[target] & 0xFFFF if packed else _TRUE[target])

    def compute(a: Array, b: Array, *c: Array) -> Array:
        result = compare(a, b)
        if combine is not None:
            result = combine(result, c[0][:, None] if packed else c[0])
        return np.where(result, true, dtype(0))

    reads = (kind, kind) if combine is None else (kind, kind, "pred")
    return Operation(reads, (put,), compute)


def selp(ins: Instruction) -> Step:
    """d = p ? a : b. It moves its operand, written or not."""
    kind = bits_kind(ins.types[0])
    get_a, get_b = (fetch(ins, source, kind) for source in ins.sources[:2])
    get_p, used = fetch(ins, ins.sources[2], "pred"), read_registers(ins.sources[2:])
    dest = next(ins.written())
    put = write(ins, dest, kind)
    moved = read_registers(ins.sources[:2])

    def step(thread: Thread, lanes: Lanes) -> None:
        undefined = find_undefined(thread, used, lanes)
        chosen = get_p(thread)
        result = np.where(chosen, get_a(thread), get_b(thread))
        registers = thread.registers
        if isinstance(dest, Register) and not all(registers.clean[i] for i in moved):
            marks = np.where(chosen, registers.moved(ins.sources[0]), registers.moved(ins.sources[1]))
            for index in moved:
                registers.note_choice(index, lanes)
            put(thread, lanes, result)
            registers.mark_moved(dest.index, lanes, marks, ins.sources[:2])
        else:
            put(thread, lanes, result)
        mark_computed(thread, (dest,), undefined)

    return step


def slct(ins: Instruction) -> Operation:
    """d = c >= 0 ? a : b, where -0.0 counts as 0 and a NaN selects b."""
    ftz = ins.has("ftz")
    kind = bits_kind(f"b{ins.types[0][1:]}")
    selector = ins.types[1]

    def compute(a: Array, b: Array, c: Array) -> Array:
        number = flush(c.astype(np.float64), F32) if ftz else c
        return np.where(number >= 0, a, b)

    return Operation((kind, kind, selector), (kind,), compute)


OPERATIONS: dict[str, Callable[[Instruction], Operation]] = {"setp": setp, "set": set_, "slct": slct}
