# SPDX-License-Identifier: Apache-2.0
"""Floating-point arithmetic (PTX ISA 9.7.3, 9.7.4, 9.7.5) but the approximations: f32, f64, f16, bf16, their
packed pairs, and sums that mix a half with f32.

The operands become fp64, which holds them exactly; the exact result is rounded once to the destination.
Every NaN result is the canonical one of its format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gdnbench.sim.interpreter import double
from gdnbench.sim.interpreter.operation import Operation
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.interpreter.rounding import (
    BF16,
    F16,
    F32,
    F64,
    Format,
    add_to_odd,
    flush,
    flush_result,
    from_bits,
    saturate,
    to_bits,
)
from gdnbench.sim.ptx.ir import Instruction

MODES = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True, slots=True)
class FloatType:
    """A PTX type: how a register holds it (`kind`) and the format of its elements."""

    kind: str
    format: Format


TYPES = {
    "f32": FloatType("u32", F32),
    "f32x2": FloatType("u32x2", F32),
    "f16": FloatType("u16", F16),
    "f16x2": FloatType("u16x2", F16),
    "bf16": FloatType("u16", BF16),
    "bf16x2": FloatType("u16x2", BF16),
}
HALVES = ("f16", "bf16")


@dataclass(frozen=True, slots=True)
class Finish:
    """What happens to an exact result on its way into the destination."""

    format: Format
    mode: str = "rn"
    ftz: bool = False
    sat: bool = False
    relu: bool = False

    def __call__(self, value: F64) -> Array:
        if self.ftz:
            value = flush_result(value, self.format, self.mode)
        bits = to_bits(value, self.format, self.mode)
        if not (self.sat or self.relu):
            return bits
        rounded = from_bits(bits, self.format)
        if self.sat:
            rounded = saturate(rounded)
        if self.relu:
            rounded = np.where(rounded > 0, rounded, np.where(np.isnan(rounded), rounded, 0.0))
        return to_bits(rounded, self.format)


def operand(type_: FloatType, ftz: bool) -> Callable[[Array], F64]:
    """How a source of `type_` becomes fp64."""
    if not ftz:
        return lambda bits: from_bits(bits, type_.format)
    return lambda bits: flush(from_bits(bits, type_.format), type_.format)


def is_float(ins: Instruction) -> bool:
    """True if the instruction's first type is a floating-point one."""
    return bool(ins.types) and ins.types[0] in (*TYPES, "f64")


def _finish(ins: Instruction, type_: FloatType) -> Finish:
    """Rounding, flushing and clamping as spelled."""
    mode = ins.choice(*MODES, default="rn")
    return Finish(type_.format, mode, ins.has("ftz"), ins.has("sat"), ins.has("relu"))


def _exact_sum(a: F64, b: F64, mode: str) -> F64:
    """a + b to odd; numbers that cancel give -0 if rounded down, +0 otherwise (IEEE 754, 6.3)."""
    total = add_to_odd(a, b)
    if mode == "rm":
        return np.where((total == 0) & ~((a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)), -0.0, total)
    return total


def _difference(a: F64, b: F64, mode: str) -> F64:
    return _exact_sum(a, -b, mode)


def _sum(combine: Callable[[F64, F64, str], F64]) -> Callable[[Instruction], Operation]:
    """`add`, `sub`; with two types (9.7.5) the first source is a half, the second and the result f32."""

    def define(ins: Instruction) -> Operation:
        if ins.types == ("f64",):
            return double.sum_(ins, negate=ins.op == "sub")
        if len(ins.types) == 2:
            first, last = TYPES[ins.types[1]], TYPES["f32"]
        else:
            first = last = TYPES[ins.types[0]]
        finish = _finish(ins, last)
        left, right, mode = operand(first, finish.ftz), operand(last, finish.ftz), finish.mode
        return Operation(
            (first.kind, last.kind), (last.kind,), lambda a, b: finish(combine(left(a), right(b), mode))
        )

    return define


def _mul(ins: Instruction) -> Operation:
    if ins.types == ("f64",):
        return double.product(ins)
    type_ = TYPES[ins.types[0]]
    finish = _finish(ins, type_)
    get = operand(type_, finish.ftz)
    return Operation((type_.kind,) * 2, (type_.kind,), lambda a, b: finish(get(a) * get(b)))


def _fma(ins: Instruction) -> Operation:
    """Also `mad.f32`, which is the same (9.7.3.7)."""
    if ins.types == ("f64",):
        return double.fused(ins)
    if len(ins.types) == 2:
        factor, last = TYPES[ins.types[1]], TYPES["f32"]
    else:
        factor = last = TYPES[ins.types[0]]
    finish = _finish(ins, last)
    get, get_last, mode = operand(factor, finish.ftz), operand(last, finish.ftz), finish.mode
    return Operation(
        (factor.kind, factor.kind, last.kind),
        (last.kind,),
        lambda a, b, c: finish(_exact_sum(get(a) * get(b), get_last(c), mode)),
    )


def divide(ins: Instruction) -> Operation:
    """IEEE division; approx.py has the other forms.

    A quotient of two 24-bit numbers is at least 2^-49 of itself away from any number of 25 bits that it is
    not, so fp64 never rounds it onto a tie or across a number of f32."""
    if ins.types == ("f64",):
        return double.quotient(ins)
    get, finish = _rounded_f32(ins)
    return Operation(("u32", "u32"), ("u32",), lambda a, b: finish(get(a) / get(b)))


def _rounded_f32(ins: Instruction) -> tuple[Callable[[Array], F64], Finish]:
    """How `.rnd{.ftz}.f32` takes an operand and rounds the result."""
    finish = _finish(ins, TYPES["f32"])
    return operand(TYPES["f32"], finish.ftz), finish


def rounded_unary(function: Callable[[F64], F64]) -> Callable[[Instruction], Operation]:
    """`rcp.rnd` and `sqrt.rnd`. fp64 never lands on a tie of f32 that the exact value is not, as for
    division."""

    def define(ins: Instruction) -> Operation:
        if ins.types == ("f64",):
            return double.unary(ins)
        get, finish = _rounded_f32(ins)
        return Operation(("u32",), ("u32",), lambda a: finish(function(get(a))))

    return define


def reciprocal(value: F64) -> F64:
    return 1.0 / value


def _sign(ins: Instruction) -> Operation:
    """`abs` and `neg` change the sign bit. A NaN operand gives an unspecified NaN: the canonical one, as on
    an H200."""
    negate = ins.op == "neg"
    if ins.types == ("f64",):
        return Operation(("f64",), ("f64",), np.negative if negate else np.abs)
    type_ = TYPES[ins.types[0]]
    ftz = ins.has("ftz")
    get = operand(type_, ftz)
    change: Callable[[F64], F64] = np.negative if negate else np.abs
    return Operation((type_.kind,), (type_.kind,), lambda a: to_bits(change(get(a)), type_.format))


def extremum(a: F64, b: F64, largest: bool, nan: bool) -> F64:
    """Of two numbers the larger or smaller, -0 below +0; of a NaN and a number the number, or NaN if
    `nan`."""
    before = (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))
    chosen = np.where(before, b, a) if largest else np.where(before, a, b)
    missing_a, missing_b = np.isnan(a), np.isnan(b)
    if nan:
        return np.where(missing_a | missing_b, np.nan, chosen)
    return np.where(missing_a, b, np.where(missing_b, a, chosen))


def _extremum(ins: Instruction) -> Operation:
    """`min` and `max` of two, or three f32."""
    largest = ins.op == "max"
    if ins.types == ("f64",):
        return Operation(
            ("f64", "f64"), ("f64",), lambda a, b: double.canonical(extremum(a, b, largest, False))
        )
    type_ = TYPES[ins.types[0]]
    ftz = ins.has("ftz")
    nan, absolute, xorsign = ins.has("NaN"), ins.has("abs"), ins.has("xorsign")
    count = len(ins.sources)
    get = operand(type_, ftz)

    def compute(*sources: Array) -> Array:
        values = [get(source) for source in sources]
        negative = np.signbit(values[0]) ^ np.signbit(values[1])
        if absolute:
            values = [np.abs(value) for value in values]
        result = extremum(values[0], values[1], largest, nan)
        if count == 3:
            result = extremum(result, values[2], largest, nan)
        if xorsign:
            result = np.copysign(result, np.where(negative, -1.0, 1.0))
        return to_bits(result, type_.format)

    return Operation((type_.kind,) * count, (type_.kind,), compute)


def _copysign(ins: Instruction) -> Operation:
    """The sign of `a` on `b`."""
    kind = f"u{ins.types[0][1:]}"
    dtype = np.dtype(f"u{int(kind[1:]) // 8}").type
    sign = dtype(1) << dtype(int(kind[1:]) - 1)
    return Operation((kind, kind), (kind,), lambda a, b: a & sign | b & ~sign)


def _testp(ins: Instruction) -> Operation:
    """Zeros count as normal (9.7.3.1)."""
    what = ins.choice("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind = ins.types[0]
    tiny = F32.tiny if kind == "f32" else np.finfo(np.float64).tiny

    def compute(a: Array) -> Array:
        size = np.abs(a)
        tests: dict[str, Array] = {
            "finite": np.isfinite(a),
            "infinite": np.isinf(a),
            "number": ~np.isnan(a),
            "notanumber": np.isnan(a),
            "normal": np.isfinite(a) & ((size >= tiny) | (size == 0)),
            "subnormal": (size > 0) & (size < tiny),
        }
        return tests[what]

    return Operation((kind,), ("pred",), compute)


OPERATIONS: dict[str, Callable[[Instruction], Operation]] = {
    "add": _sum(_exact_sum),
    "sub": _sum(_difference),
    "mul": _mul,
    "fma": _fma,
    "mad": _fma,
    "div": divide,
    "abs": _sign,
    "neg": _sign,
    "min": _extremum,
    "max": _extremum,
    "copysign": _copysign,
    "testp": _testp,
}
