# SPDX-License-Identifier: Apache-2.0
"""Approximate functions (`.approx`, `div.full`; PTX ISA 9.7.3 and 9.7.4), as the special-function unit of
sm_90 and the instructions that ptxas puts around it compute them; sm_100 is taken to do the same.

The unit (mufu.py) flushes subnormals. Forms without `.ftz` move arguments out of its way and results back;
the functions below name the SASS they follow. The halves are computed as f32 and cut toward zero.

All bits are those of an H200 but for `rcp.approx.ftz.f64`, which was not recorded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gdnbench.sim.interpreter import float as arithmetic
from gdnbench.sim.interpreter import mufu
from gdnbench.sim.interpreter.double import reciprocal_root
from gdnbench.sim.interpreter.float import TYPES
from gdnbench.sim.interpreter.operation import Operation
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.interpreter.rounding import (
    F32,
    F64,
    Format,
    flush,
    flush_result,
    from_bits,
    round_to,
    to_bits,
)
from gdnbench.sim.ptx.ir import Instruction

Function = Callable[[Array], Array]  # f32 bits to f32 bits
_PER_TURN = float(np.float32(0.5 / np.pi))
_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_TINY, _HUGE = F32.tiny, 2.0**126


def _value(bits: Array) -> F64:
    return from_bits(bits, F32)


def _fmul(a: Array, b: F64 | float, mode: str = "rn", *, ftz: bool = False) -> Array:
    """FMUL of f32 bits and an f32 number."""
    if not ftz:
        return to_bits(_value(a) * b, F32, mode)
    product = flush(_value(a), F32) * flush(np.asarray(b), F32)
    return to_bits(flush_result(product, F32, mode), F32, mode)


def _ex2_subnormal(a: Array) -> Array:
    """FSETP.GEU a, -126; @!P FMUL a, 0.5; MUFU.EX2; @!P FMUL of the result with itself."""
    low = _value(a) < -126
    result = mufu.ex2(np.where(low, _fmul(a, 0.5), a))
    return np.where(low, _fmul(result, _value(result)), result)


def _lg2_subnormal(a: Array) -> Array:
    """FSETP.GEU |a|, 2^-126; @!P FMUL a, 2^24; MUFU.LG2; @!P FADD -24."""
    low = np.abs(_value(a)) < _TINY
    result = mufu.lg2(np.where(low, _fmul(a, 2.0**24), a))
    return np.where(low, to_bits(_value(result) - 24, F32), result)


def _rcp_subnormal(a: Array) -> Array:
    """FSEL of a scale: 2^24 below 2^-126, 0.25 above 2^126, or 1; FMUL, MUFU.RCP, FMUL by the scale."""
    size = np.abs(_value(a))
    scale = np.where(size < _TINY, 2.0**24, np.where(size > _HUGE, 0.25, 1.0))
    return _fmul(mufu.rcp(_fmul(a, scale)), scale)


def _root_subnormal(unit: Function, back: float) -> Function:
    """FSETP.GEU |a|, 2^-126; @!P FMUL a, 2^24; MUFU; @!P FMUL by 2^-12 or 2^12."""

    def compute(a: Array) -> Array:
        low = np.abs(_value(a)) < _TINY
        result = unit(np.where(low, _fmul(a, 2.0**24), a))
        return np.where(low, _fmul(result, back), result)

    return compute


def _of_angle(unit: Function) -> Function:
    """FMUL.RZ by the f32 next to 1 / 2 pi, with and without `.ftz`; MUFU.SIN or MUFU.COS."""
    return lambda a: unit(_fmul(a, _PER_TURN, "rz"))


_sin, _cos = _of_angle(mufu.sin), _of_angle(mufu.cos)

# For each function, how it is computed with `.ftz` and without.
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "ex2": (mufu.ex2, _ex2_subnormal),
    "lg2": (mufu.lg2, _lg2_subnormal),
    "rcp": (mufu.rcp, _rcp_subnormal),
    "rsqrt": (mufu.rsq, _root_subnormal(mufu.rsq, 2.0**12)),
    "sqrt": (mufu.sqrt, _root_subnormal(mufu.sqrt, 2.0**-12)),
    "sin": (_sin, _sin),
    "cos": (_cos, _cos),
}


def _f32(ins: Instruction) -> Operation:
    """`op.approx{.ftz}.f32`."""
    with_ftz, without = FUNCTIONS[ins.op]
    function = with_ftz if ins.has("ftz") else without
    return Operation(("u32",), ("u32",), function)


def _cut(value: F64, target: Format) -> Array:
    """An f32 as a half: toward zero, but overflow to Inf."""
    cut = np.where(np.abs(value) > target.largest, value, round_to(value, target, "rz"))
    return to_bits(cut, target)


def _half(unit: Function, type_name: str) -> Operation:
    """MUFU.EX2.F16, MUFU.TANH.BF16, ...: of the argument as f32, element by element."""
    type_ = TYPES[type_name]

    def compute(a: Array) -> Array:
        wide = to_bits(from_bits(a, type_.format), F32)
        return _cut(_value(unit(wide)), type_.format)

    return Operation((type_.kind,), (type_.kind,), compute)


def _ex2(ins: Instruction) -> Operation:
    """For bf16 `.ftz` is part of the instruction (9.7.4.10)."""
    return _half(mufu.ex2, ins.types[0]) if ins.types[0] in _HALVES else _f32(ins)


def _tanh(ins: Instruction) -> Operation:
    """There is no `.ftz`, and no need of it: MUFU.TANH returns subnormals as they are."""
    if ins.types[0] in _HALVES:
        return _half(mufu.tanh, ins.types[0])
    return Operation(("u32",), ("u32",), mufu.tanh)


def _exact_or(function: Callable[[F64], F64]) -> Callable[[Instruction], Operation]:
    """`rcp` and `sqrt` have approximate and correctly rounded forms."""

    def build(ins: Instruction) -> Operation:
        if not ins.has("approx"):
            return arithmetic.rounded_unary(function)(ins)
        if ins.op == "rcp" and ins.types == ("f64",):
            return _gross_reciprocal(ins)
        return _f32(ins)

    return build


def _reciprocal_root(ins: Instruction) -> Operation:
    """`rsqrt.approx.f64` is correctly rounded in all that an H100 gave."""
    return reciprocal_root(ins) if ins.types == ("f64",) else _f32(ins)


def _gross_reciprocal(ins: Instruction) -> Operation:
    """`rcp.approx.ftz.f64`: 20 bits of mantissa, the lower half of the result zero (9.7.3.14). The exact
    reciprocal cut to that many bits is within the ISA's bound, and equals an H100 in 32 cases of 32. The
    lower half of the source does not count."""
    tiny = np.finfo(np.float64).tiny

    def compute(a: Array) -> Array:
        a = (a.view(np.uint64) & np.uint64(0xFFFF_FFFF_0000_0000)).view(np.float64)
        value = np.where(np.abs(a) < tiny, np.copysign(0.0, a), a)
        result = 1.0 / value
        result = np.where(np.abs(result) < tiny, np.copysign(0.0, result), result)
        high = result.view(np.uint64) & np.uint64(0xFFFF_FFFF_0000_0000)
        return np.where(np.isnan(value), np.uint64(0x7FFF_FFFF_0000_0000), high)

    return Operation(("f64",), ("u64",), compute)


def _quotient(full: bool, ftz: bool) -> Callable[[Array, Array], Array]:
    """a * (1/b): MUFU.RCP, FMUL. Both are multiplied by 2^24 first where b is subnormal, unless that is
    flushed, and for `.full` by 0.25 where b is beyond 2^126, of which MUFU.RCP would make zero."""

    def compute(a: Array, b: Array) -> Array:
        size = np.abs(_value(b))
        scale = np.ones_like(size)
        if full:
            scale = np.where(size > _HUGE, 0.25, scale)
        if not ftz:
            scale = np.where(size < _TINY, 2.0**24, scale)
        moved = scale != 1
        numerator = np.where(moved, _fmul(a, scale, ftz=ftz), a)
        denominator = np.where(moved, _fmul(b, scale, ftz=ftz), b)
        return _fmul(numerator, _value(mufu.rcp(denominator)), ftz=ftz)

    return compute


def divide(ins: Instruction) -> Operation:
    """`div.approx`, `div.full`, and the IEEE forms, which are arithmetic's."""
    if not ins.has("approx", "full"):
        return arithmetic.divide(ins)
    return Operation(("u32", "u32"), ("u32",), _quotient(ins.has("full"), ins.has("ftz")))


OPERATIONS: dict[str, Callable[[Instruction], Operation]] = {
    **dict.fromkeys(("lg2", "sin", "cos"), _f32),
    "rsqrt": _reciprocal_root,
    "ex2": _ex2,
    "tanh": _tanh,
    "rcp": _exact_or(arithmetic.reciprocal),
    "sqrt": _exact_or(np.sqrt),
}
