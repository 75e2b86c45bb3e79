"""Approximate functions (`.approx`, PTX ISA 9.7.3 and 9.7.4).

The special function unit's tables are not published. Each function here is the correctly rounded value of its
argument, so its distance from the hardware is the hardware's own error, which the PTX ISA bounds:

    ex2.f32    2 ulp                                   lg2.f32     2^-22 absolute in (0.5, 2), else relative
    rcp.f32    1 ulp                                   rsqrt.f32   2^-22.9 relative
    sqrt.f32   2^-23 relative                          tanh.f32    2^-11 relative
    sin, cos   2^-20.5 absolute in [-pi, pi]           ex2 halves  2^-9.9 relative (f16), 2^-7 (bf16)
    tanh f16   2^-10.987 absolute, bf16 2^-8

Against an H200, over thousands of operands: rcp, rsqrt, sqrt, div.approx and div.full differ by at most 1
ulp, tanh.f32 by 126 ulp, tanh of halves by 1 ulp, ex2.f16 in one pattern of 65,536, sin and cos by 3.3e-7
for any argument. The halves are computed as f32 and cut toward zero.

Special values are exact: the tables of the PTX ISA.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gdnbench.sim.interpreter import float as arithmetic
from gdnbench.sim.interpreter.float import TYPES, Finish, operand
from gdnbench.sim.interpreter.operation import Operation, Spelling, refuse
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.interpreter.rounding import F32, F64, Format, round_to
from gdnbench.sim.ptx.ir import Instruction

Function = Callable[[F64], F64]
_PER_TURN = float(np.float32(0.5 / np.pi))
_HALVES = ("f16", "f16x2", "bf16", "bf16x2")


def reciprocal_root(value: F64) -> F64:
    """1 / sqrt(value): -0 gives -Inf, negative numbers NaN."""
    return 1.0 / np.sqrt(value)


def _turns(value: F64) -> F64:
    """An angle in turns, as the unit takes it: multiplied by the f32 next to 1 / 2 pi and rounded toward
    zero to f32, then cut to 25 fractional bits. The error of a large angle is thereby that of an H200."""
    turns = round_to(value * _PER_TURN, F32, "rz")
    turns = np.fmod(turns, 1.0)
    return np.trunc(turns * 2.0**25) / 2.0**25


def sine(value: F64) -> F64:
    return np.sin(2 * np.pi * _turns(value))


def cosine(value: F64) -> F64:
    return np.cos(2 * np.pi * _turns(value))


def _cut(value: F64, target: Format) -> F64:
    """Toward zero, but overflow to Inf: how an H200 makes a half of what it computed as f32."""
    cut = round_to(value, target, "rz")
    return np.where(np.abs(value) > target.largest, value, cut)


def define(ins: Instruction, spelling: Spelling, function: Function, *types: str) -> Operation:
    """`function` between one argument and one result of the instruction's type."""
    name = ins.types[0] if len(ins.types) == 1 else ""
    if name not in types:
        refuse(ins)
    type_ = TYPES[name]
    ftz = spelling.flag("ftz")
    spelling.done()
    get, finish = operand(type_, ftz), Finish(type_.format, ftz=ftz)
    if type_.format is F32:
        return Operation((type_.kind,), (type_.kind,), lambda a: finish(function(get(a))))

    def compute(a: Array) -> Array:
        return finish(_cut(function(get(a)).astype(np.float32).astype(np.float64), type_.format))

    return Operation((type_.kind,), (type_.kind,), compute)


def _approximate(function: Function, *types: str) -> Callable[[Instruction], Operation]:
    def build(ins: Instruction) -> Operation:
        spelling = Spelling(ins)
        spelling.choice(None, "approx")
        return define(ins, spelling, function, *types)

    return build


def _ex2(ins: Instruction) -> Operation:
    """For bf16 `.ftz` is part of the spelling, for f16 it is not allowed (9.7.4.10)."""
    spelling = Spelling(ins)
    spelling.choice(None, "approx")
    half = ins.types[0] if ins.types else ""
    if half in _HALVES and half.startswith("bf16") != ins.has("ftz"):
        refuse(ins)
    return define(ins, spelling, np.exp2, "f32", *_HALVES)


def _exact_or(function: Function) -> Callable[[Instruction], Operation]:
    """`rcp` and `sqrt` have approximate and correctly rounded forms."""

    def build(ins: Instruction) -> Operation:
        if not ins.has("approx"):
            return arithmetic.rounded_unary(function)(ins)
        spelling = Spelling(ins)
        spelling.choice(None, "approx")
        if ins.op == "rcp" and ins.types == ("f64",):
            return _gross_reciprocal(spelling)
        return define(ins, spelling, function, "f32")

    return build


def _gross_reciprocal(spelling: Spelling) -> Operation:
    """`rcp.approx.ftz.f64`: 20 bits of mantissa, the lower half of the result zero (9.7.3.14)."""
    if not spelling.flag("ftz"):
        spelling.refuse()
    spelling.done()
    tiny = np.finfo(np.float64).tiny

    def compute(a: Array) -> Array:
        value = np.where(np.abs(a) < tiny, np.copysign(0.0, a), a)
        result = 1.0 / value
        result = np.where(np.abs(result) < tiny, np.copysign(0.0, result), result)
        high = result.view(np.uint64) & np.uint64(0xFFFF_FFFF_0000_0000)
        return np.where(np.isnan(value), np.uint64(0x7FFF_FFFF_0000_0000), high)

    return Operation(("f64",), ("u64",), compute)


OPERATIONS: dict[str, Callable[[Instruction], Operation]] = {
    "ex2": _ex2,
    "lg2": _approximate(np.log2, "f32"),
    "rsqrt": _approximate(reciprocal_root, "f32"),
    "sin": _approximate(sine, "f32"),
    "cos": _approximate(cosine, "f32"),
    "tanh": _approximate(np.tanh, "f32", *_HALVES),
    "rcp": _exact_or(arithmetic.reciprocal),
    "sqrt": _exact_or(np.sqrt),
}
