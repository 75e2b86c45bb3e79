# SPDX-License-Identifier: Apache-2.0
"""The special-function unit (MUFU) in LLVM: f32 bits in, f32 bits out, as an H200's.

special_function.py has the tables and defines the results. If the first bit of q has a fixed position, 32-bit
integers compute the 24 result bits. Otherwise q is summed in fp64, exactly: every term and sum is an integer
below 2^44. Clearing 29 bits then leaves 24 significant ones, and scaling adds to the exponent of the f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdnbench.sim.compiler.emit import (
    F32,
    F64,
    I32,
    I64,
    Code,
    Library,
    Value,
    const,
    f32_const,
    f64_const,
)
from gdnbench.sim.compiler.lane_lookup import look_up
from gdnbench.sim.special_function import EX2, LG2, RCP, RSQ, SIN, SQRT, TANH, TANH_IGNORED, Table

_SIGN, _INFINITY, _NAN, _ONE = 0x8000_0000, 0x7F80_0000, 0x7FFF_FFFF, 0x3F80_0000
_MANTISSA = (1 << 23) - 1
_CUT = 18  # bits of q below its 24 significant ones if the first is 2^41
_ARGUMENT = Value(I32, "%a")
_ZERO = const(I32, 0)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The fields of an f32 and masks of its classes; subnormals count as zero."""

    sign: Value
    exponent: Value
    mantissa: Value
    zero: Value
    infinite: Value
    nan: Value


def _split(code: Code) -> _Parts:
    size = code.opi("and", _ARGUMENT, 0x7FFF_FFFF)
    return _Parts(
        sign=code.opi("and", _ARGUMENT, _SIGN),
        exponent=code.opi("add", code.opi("lshr", size, 23), -127),
        mantissa=code.opi("and", _ARGUMENT, _MANTISSA),
        zero=code.comparei("icmp ult", size, 0x0080_0000),
        infinite=code.comparei("icmp eq", size, _INFINITY),
        nan=code.comparei("icmp ugt", size, _INFINITY),
    )


def _truncated_square(code: Code, x: Value, bits: int) -> Value:
    """S. With h the top eight bits of x, the columns of h * h are kept except the lowest, which has only h_0:
    h * h >> 1. A bit i below h multiplies those bits of x that reach the lowest kept column: from 2 bits - 16
    - i on, all of them in h."""
    high = code.opi("lshr", x, bits - 8)
    total = code.opi("lshr", code.op("mul", high, high), 1)
    for i in range(bits - 15, bits - 8):
        there = code.comparei("icmp ne", code.opi("and", x, 1 << i), 0)
        partners = code.opi("lshr", x, 2 * bits - 16 - i)
        total = code.op("add", total, code.select(there, partners, _ZERO))
    return total


def _coefficients(code: Code, table: Table, place: Value) -> tuple[list[Value], Value, Value]:
    """From the interval's number followed by the bits of x: c0 in two words, upper first, c1 and 4 c2; x as
    17 bits; S."""
    interval = code.opi("lshr", place, table.low)
    x = code.opi("and", place, (1 << table.low) - 1)
    words: tuple[Sequence[int], ...] = (
        [c0 >> _CUT for c0, _, _ in table.rows],
        [c0 & ((1 << _CUT) - 1) for c0, _, _ in table.rows],
        [c1 for _, c1, _ in table.rows],
        [4 * c2 for _, _, c2 in table.rows],
    )
    picked = look_up(code, words, interval)
    return picked, code.opi("shl", x, 17 - table.low), _truncated_square(code, x, table.low)


def _mantissa(code: Code, table: Table, place: Value) -> Value:
    """q / 2^18 truncated to an integer: 24 significant bits of a q in [2^41, 2^42), in 32-bit arithmetic. c1
    x, which has more bits, is summed in two parts: |c1| < 2^19 times 11 and 6 bits of x."""
    (high, low, c1, c2), x, square = _coefficients(code, table, place)
    fine = code.op("add", low, code.op("mul", c1, code.opi("and", x, 63)))
    fine = code.op("add", fine, code.op("mul", c2, square))
    coarse = code.op("mul", c1, code.opi("lshr", x, 6))
    coarse = code.op("add", coarse, code.opi("ashr", fine, 6))
    return code.op("add", high, code.opi("ashr", coarse, _CUT - 6))


def _scale_mantissa(code: Code, mantissa: Value, unit: Value) -> Value:
    """A number in [2^23, 2^24] times 2^unit; Inf above f32's range, zero below its normal numbers."""
    # Adding the mantissa's leading one increments the exponent.
    upper = code.opi("add", unit, 127 + 22)
    biased = code.op("add", upper, code.opi("lshr", mantissa, 23))
    result = code.op("add", mantissa, code.opi("shl", upper, 23))
    return _in_range(code, biased, result)


def _in_range(code: Code, biased: Value, result: Value) -> Value:
    result = code.select(code.comparei("icmp sgt", biased, 254), const(I32, _INFINITY), result)
    return code.select(code.comparei("icmp slt", biased, 1), _ZERO, result)


def _interpolate(code: Code, table: Table, place: Value) -> Value:
    """q as fp64."""
    coefficients, x, square = _coefficients(code, table, place)
    high, low, c1, c2 = (code.cast("sitofp", word, F64) for word in coefficients)
    total = code.intrinsic("fma", F64, high, f64_const(2.0**_CUT), low)
    total = code.intrinsic("fma", F64, c1, code.cast("sitofp", x, F64), total)
    return code.intrinsic("fma", F64, c2, code.cast("sitofp", square, F64), total)


def _cut(code: Code, q: Value) -> Value:
    """q truncated to 24 bits, as f32 bits."""
    bits = code.opi("and", code.bits(q, I64), -1 << 29)
    return code.bits(code.cast("fptrunc", code.bits(bits, F64), F32), I32)


def _scale(code: Code, cut: Value, unit: Value) -> Value:
    """A number from `_cut`, 0 or in [1, 2^43), times 2^unit; the result is in the range of f32."""
    result = code.op("add", cut, code.opi("shl", unit, 23))
    return code.select(code.comparei("icmp eq", cut, 0), _ZERO, result)


def _rcp(code: Code) -> Value:
    a = _split(code)
    mantissa = _mantissa(code, RCP, a.mantissa)
    # The reciprocal of a power of two is exact; the table would give the next number below.
    mantissa = code.select(code.comparei("icmp eq", a.mantissa, 0), const(I32, 1 << 24), mantissa)
    size = _scale_mantissa(code, mantissa, code.op("sub", const(I32, -24), a.exponent))
    size = code.select(a.zero, const(I32, _INFINITY), code.select(a.infinite, _ZERO, size))
    return code.select(a.nan, const(I32, _NAN), code.op("or", a.sign, size))


def _octave_pair(code: Code, a: _Parts) -> tuple[Value, Value]:
    """a = 4^half * m, m in [1, 4): (half, position of m in a table of two octaves)."""
    odd = code.opi("and", a.exponent, 1)
    place = code.op("or", code.opi("shl", odd, 23), a.mantissa)
    return code.opi("ashr", a.exponent, 1), place


def _no_root(code: Code, a: _Parts, result: Value) -> Value:
    """NaN for NaN and negative numbers."""
    negative = code.op("and", code.comparei("icmp ne", a.sign, 0), code.not_(a.zero))
    return code.select(code.op("or", a.nan, negative), const(I32, _NAN), result)


def _rsq(code: Code) -> Value:
    a = _split(code)
    half, place = _octave_pair(code, a)
    mantissa = _mantissa(code, RSQ, place)
    # The root of a power of four is exact.
    mantissa = code.select(code.comparei("icmp eq", place, 0), const(I32, 1 << 24), mantissa)
    result = _scale_mantissa(code, mantissa, code.op("sub", const(I32, -24), half))
    result = code.select(a.infinite, _ZERO, result)
    result = code.select(a.zero, code.opi("or", a.sign, _INFINITY), result)
    return _no_root(code, a, result)


def _sqrt(code: Code) -> Value:
    a = _split(code)
    half, place = _octave_pair(code, a)
    result = _scale_mantissa(code, _mantissa(code, SQRT, place), code.opi("add", half, -23))
    result = code.select(a.infinite, const(I32, _INFINITY), result)
    return _no_root(code, a, code.select(a.zero, a.sign, result))


def _ex2(code: Code) -> Value:
    """Beyond +-200 f32 has long overflowed or underflowed, so the computation clamps there, NaN too."""
    value, low, high = code.bits(_ARGUMENT, F32), f32_const(-200.0), f32_const(200.0)
    clamped = code.select(code.compare("fcmp ogt", value, low), value, low)
    clamped = code.select(code.compare("fcmp olt", clamped, high), clamped, high)
    fixed = code.cast("fptosi", code.op("fmul", clamped, f32_const(2.0**23)), I32)
    # A negative number with a fraction is complemented: the unit's fraction is one unit lower.
    broken = code.comparei("icmp ne", code.opi("and", fixed, _MANTISSA), 0)
    below = code.op("and", code.comparei("icmp slt", fixed, 0), broken)
    fixed = code.select(below, code.opi("add", fixed, -1), fixed)
    mantissa = _mantissa(code, EX2, code.opi("and", fixed, _MANTISSA))
    result = _scale_mantissa(code, mantissa, code.opi("add", code.opi("ashr", fixed, 23), -23))
    nan = code.compare("fcmp uno", value, value)
    return code.select(nan, const(I32, _NAN), result)


def _lg2(code: Code) -> Value:
    """Adds the exponent and log2 of the mantissa in units of 2^-36; a negative sum is complemented."""
    a = _split(code)
    q = _interpolate(code, LG2, a.mantissa)
    kept = code.intrinsic("floor", F64, code.op("fmul", q, f64_const(2.0**-5)))
    exponent = code.cast("sitofp", code.opi("add", a.exponent, -1), F64)
    total = code.intrinsic("fma", F64, exponent, f64_const(2.0**36), kept)
    negative = code.compare("fcmp olt", total, f64_const(0.0))
    size = code.select(negative, code.op("fsub", f64_const(-1.0), total), total)
    result = _scale(code, _cut(code, size), const(I32, -36))
    result = code.select(negative, code.opi("or", result, _SIGN), result)
    one = code.comparei("icmp eq", _ARGUMENT, _ONE)
    result = code.select(one, _ZERO, result)
    result = code.select(a.infinite, const(I32, _INFINITY), result)
    return _no_root(code, a, code.select(a.zero, const(I32, _SIGN | _INFINITY), result))


def _wave(cosine: bool) -> Callable[[Code], Value]:
    """sin or cos of an angle in turns: two bits of quadrant and 23 bits within it, complemented in every
    other quadrant."""

    def define(code: Code) -> Value:
        a = _split(code)
        special = code.op("or", a.nan, a.infinite)
        size = code.bits(code.select(special, _ZERO, code.opi("and", _ARGUMENT, 0x7FFF_FFFF)), F32)
        fraction = code.op("fsub", size, code.intrinsic("trunc", F32, size))
        turns = code.cast("fptosi", code.op("fmul", fraction, f32_const(2.0**25)), I32)
        quadrant = code.opi("lshr", turns, 23)
        backward = code.comparei("icmp ne", code.opi("and", quadrant, 1), 1 if cosine else 0)
        place = code.select(backward, code.not_(turns), turns)
        cut = _cut(code, _interpolate(code, SIN, code.opi("and", place, _MANTISSA)))
        result = _scale(code, cut, const(I32, -42))
        # Cosine is negative in quadrants 1 and 2, sine in 2 and 3.
        shifted = code.opi("add", quadrant, 1) if cosine else quadrant
        flip = code.opi("shl", code.opi("and", shifted, 2), 30)
        sign = flip if cosine else code.op("xor", flip, a.sign)
        return code.select(special, const(I32, _NAN), code.op("or", result, sign))

    return define


def _tanh(code: Code) -> Value:
    a = _split(code)
    first_octave, last_octave = min(TANH_IGNORED), max(TANH_IGNORED)
    octave = code.intrinsic("smax", I32, a.exponent, const(I32, first_octave))
    octave = code.intrinsic("smin", I32, octave, const(I32, last_octave))
    starts = [0]
    for low in TANH_IGNORED.values():
        starts.append(starts[-1] + (1 << (6 - low) << TANH.low))
    number = code.opi("sub", octave, first_octave)
    ignored, start = look_up(code, (list(TANH_IGNORED.values()), starts[:-1]), number)
    place = code.op("add", start, code.op("lshr", a.mantissa, ignored))
    unit = code.opi("add", code.intrinsic("smin", I32, octave, const(I32, -1)), -41)
    size = _scale(code, _cut(code, _interpolate(code, TANH, place)), unit)
    size = code.select(code.comparei("icmp sgt", a.exponent, last_octave), const(I32, _ONE), size)
    result = code.op("or", a.sign, size)
    result = code.select(code.comparei("icmp slt", a.exponent, first_octave), _ARGUMENT, result)
    return code.select(a.nan, const(I32, _NAN), result)


_FUNCTIONS: dict[str, Callable[[Code], Value]] = {
    "ex2": _ex2,
    "lg2": _lg2,
    "rcp": _rcp,
    "rsq": _rsq,
    "sqrt": _sqrt,
    "sin": _wave(cosine=False),
    "cos": _wave(cosine=True),
    "tanh": _tanh,
}


def mufu(code: Code, function: str, bits: Value) -> Value:
    """MUFU.`function` of f32 bits."""

    def define(name: str, library: Library) -> str:
        body = Code(library)
        body.start_block("entry")
        body.line(f"ret {_FUNCTIONS[function](body)}")
        return f"define internal {I32} @{name}({I32} %a) noinline #0 {{\n{body.text()}\n}}\n"

    name = f"mufu_{function}"
    code.library.helper(name, define)
    return code.call(name, I32, bits)
