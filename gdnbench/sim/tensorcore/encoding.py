# SPDX-License-Identifier: Apache-2.0
"""Decodes codes to significands and encodes sums as codes, 16 lanes of LLVM IR at a time.

Floats are containers: significands of 24 bits, powers of two, and products of two 11-bit significands are
exact in them. The processor's rounding is used only where a comment says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from gdnbench.sim.tensorcore import formats
from gdnbench.sim.tensorcore.formats import Format, Specials
from gdnbench.sim.tensorcore.lanes import (
    I1,
    V_F32,
    V_F64,
    V_I1,
    V_I32,
    V_I64,
    Value,
    constant,
    floats,
    intrinsic,
    ints,
    power_of_two,
    smax,
    smin,
)
from gdnbench.sim.tensorcore.product import NAN_BITS, ZERO_EXPONENT, DType

_INF, _NAN, _ONE = 0x7F800000, 0x7FC00000, 0x3F800000  # as f32


@dataclass(frozen=True, slots=True)
class Parts:
    """Decoded codes: value = significand * 2^exponent, with a signed significand in (-2, 2), 0 for Inf and
    NaN.

    `kind` is the signed Inf or NaN itself, +-1 for other non-zero numbers, +-0 for zeros.
    """

    significand: Value
    exponent: Value
    kind: Value
    special: Value


def decode(b: ir.IRBuilder, form: Format, codes: Value, widened: bool) -> Parts:
    """Decode i32 codes; with `widened` the exponents are those of the same values in f16."""
    code = b.lshr(codes, ints(form.ignored))
    fraction_bits, width = form.fraction_bits, form.exponent_bits + form.fraction_bits
    magnitude = b.and_(code, ints((1 << width) - 1))
    sign = b.shl(b.and_(b.lshr(code, ints(width)), ints(1)), ints(31))
    field = b.lshr(magnitude, ints(fraction_bits))
    fraction = b.and_(magnitude, ints((1 << fraction_bits) - 1))

    # 1.fraction as a float; 0.fraction for a subnormal.
    one = b.bitcast(b.or_(b.shl(fraction, ints(23 - fraction_bits)), ints(_ONE)), V_F32)
    subnormal = b.icmp_signed("==", field, ints(0))
    significand = b.select(subnormal, b.fsub(one, floats(1.0)), one)
    exponent = b.sub(smax(b, field, ints(1)), ints(form.bias))
    if widened:
        # Every fp8 value is a normal float, whose exponent field is the true exponent.
        value = b.fmul(significand, power_of_two(b, exponent))
        true = b.sub(b.lshr(b.bitcast(value, V_I32), ints(23)), ints(127))
        exponent = smax(b, true, ints(formats.F16.min_exponent))
        significand = b.fmul(value, power_of_two(b, b.neg(exponent)))

    zero = b.icmp_signed("==", magnitude, ints(0))
    kind = b.select(zero, ints(0), ints(_ONE))
    special = constant(V_I1, 0)
    if form.specials is not Specials.FINITE:
        # The code of Inf, or of the largest finite number of a format without Inf. NaNs have larger codes.
        infinity = ((1 << form.exponent_bits) - 1) << fraction_bits
        if form.specials is Specials.NAN_ONLY:
            infinity += (1 << fraction_bits) - 2
        nan = b.icmp_signed(">", magnitude, ints(infinity))
        special = nan
        if form.specials is Specials.IEEE:
            special = b.icmp_signed(">=", magnitude, ints(infinity))
        kind = b.select(special, b.select(nan, ints(_NAN), ints(_INF)), kind)

    exponent = b.select(b.or_(zero, special), ints(ZERO_EXPONENT), exponent)
    significand = b.or_(b.bitcast(b.select(special, floats(0.0), significand), V_I32), sign)
    return Parts(b.bitcast(significand, V_F32), exponent, b.bitcast(b.or_(kind, sign), V_F32), special)


def value_of(b: ir.IRBuilder, parts: Parts) -> Value:
    """The value as a float, including Inf and NaN; every operand and accumulator format fits."""
    # A zero's exponent is below those of floats.
    finite = b.fmul(parts.significand, power_of_two(b, smax(b, parts.exponent, ints(-126))))
    return b.select(parts.special, parts.kind, finite)


def encode(b: ir.IRBuilder, d: DType, magnitude: Value, negative: Value, unit: Value, cut: int = 0) -> Value:
    """`magnitude * 2^unit` as i32 codes, where magnitude is an unsigned i32: f32 truncated toward zero, f16
    rounded to nearest even.

    A zero result is +0, one beyond the largest finite number Inf. The low `cut` bits of an f32's significand
    are zero.
    """
    leading = intrinsic(b, "llvm.ctlz.v16i32", V_I32, magnitude, I1(0))  # 32 for 0
    normalised = b.shl(magnitude, b.and_(leading, ints(31)))  # top bit at 31
    exponent = b.sub(b.add(unit, ints(31)), leading)
    form = formats.F32 if d == "f32" else formats.F16
    clamped = smax(b, exponent, ints(form.min_exponent))
    below = b.sub(clamped, exponent)  # bits that a subnormal loses
    field = b.shl(b.add(clamped, ints(form.bias - 1)), ints(form.fraction_bits))
    if d == "f32":
        kept = b.lshr(b.lshr(normalised, ints(8)), smin(b, below, ints(31)))
        if cut:
            kept = b.and_(kept, ints(-(1 << cut)))
    else:
        # The bit shifted out becomes a sticky bit, so that sums of halves fit 32 bits.
        sticky = b.or_(b.lshr(normalised, ints(1)), b.and_(normalised, ints(1)))
        drop = smin(b, b.add(below, ints(20)), ints(31))
        odd = b.and_(b.lshr(sticky, drop), ints(1))
        half = b.shl(ints(1), b.sub(drop, ints(1)))
        kept = b.lshr(b.add(b.add(sticky, b.sub(half, ints(1))), odd), drop)
        kept = b.select(b.icmp_signed(">", below, ints(11)), ints(0), kept)
    infinity = ints(((1 << form.exponent_bits) - 1) << form.fraction_bits)
    bits = b.add(field, kept)
    # The exponent fields cannot wrap: a sum is below 2^(2 * 128 + 7).
    bits = b.select(b.icmp_signed(">", clamped, ints(form.max_exponent)), infinity, bits)
    if d == "f16":
        bits = smin(b, bits, infinity)
    bits = b.or_(bits, b.select(negative, ints(1 << (form.bits - 1)), ints(0)))
    return b.select(b.icmp_signed("==", kept, ints(0)), ints(0), bits)


def with_specials(b: ir.IRBuilder, d: DType, bits: Value, kind: Value) -> Value:
    """`bits`, replaced by Inf or NaN where the sum of the terms' kinds is Inf or NaN."""
    form = formats.F32 if d == "f32" else formats.F16
    infinity = ints(((1 << form.exponent_bits) - 1) << form.fraction_bits)
    sign = ints(1 << (form.bits - 1))
    positive = b.fcmp_ordered("==", kind, floats(float("inf")))
    negative = b.fcmp_ordered("==", kind, floats(float("-inf")))
    bits = b.select(positive, infinity, b.select(negative, b.or_(infinity, sign), bits))
    return b.select(b.fcmp_unordered("uno", kind, kind), ints(NAN_BITS[d]), bits)


def round_fp64(b: ir.IRBuilder, d: DType, value: Value) -> Value:
    """fp64 values as i32 codes of D, to nearest even, with the one NaN."""
    nan = b.fcmp_unordered("uno", value, value)
    bits = b.bitcast(b.fptrunc(value, V_F32), V_I32) if d == "f32" else _f16_bits(b, value)
    return b.select(nan, ints(NAN_BITS[d]), bits)


def _f16_bits(b: ir.IRBuilder, value: Value) -> Value:
    """fp64 to f16 codes. Adding 1.5 * 2^52 units in the last place of the f16 makes the fp64 addition round
    there."""
    code = b.bitcast(value, V_I64)
    magnitude = b.and_(code, constant(V_I64, (1 << 63) - 1))
    floor = constant(V_I64, (1023 + formats.F16.min_exponent) << 52)
    power = smax(b, b.and_(magnitude, constant(V_I64, 0x7FF << 52)), floor)  # as fp64 bits: 2^exponent
    power = smin(b, power, constant(V_I64, (1023 + 17) << 52))
    magic = b.fmul(b.bitcast(power, V_F64), constant(V_F64, 1.5 * 2.0**42))
    rounded = b.fsub(b.fadd(b.bitcast(magnitude, V_F64), magic), magic)

    # From here on exact in f32, and below 2^18 or beyond the f16 range.
    small = b.fptrunc(rounded, V_F32)
    normal = b.sub(b.lshr(b.bitcast(small, V_I32), ints(13)), ints((127 - 15) << 10))
    subnormal = b.fptosi(b.fmul(small, floats(2.0**24)), V_I32)
    bits = b.select(b.fcmp_ordered("<", small, floats(2.0**-14)), subnormal, normal)
    bits = b.select(b.fcmp_ordered("<", small, floats(65536.0)), bits, ints(0x7C00))
    sign = b.trunc(b.lshr(code, constant(V_I64, 48)), V_I32)
    return b.or_(bits, b.and_(sign, ints(0x8000)))
