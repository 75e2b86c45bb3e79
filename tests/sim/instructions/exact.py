# SPDX-License-Identifier: Apache-2.0
"""An independent model of rounding: exact fractions, one definition of every mode, any binary format.

Results follow IEEE 754 with the NaN that PTX names canonical: 0x7FFFFFFF for f32, 0x7FFF for f16 and bf16.
f64 NaN is compared as a class (`same_f64`), for PTX leaves its pattern open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
INF = float("inf")


@dataclass(frozen=True)
class Shape:
    """Exponent and fraction bits of an IEEE format."""

    exponent_bits: int
    fraction_bits: int
    nan: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.exponent_bits + self.fraction_bits)

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits


SHAPES = {
    "f64": Shape(11, 52, 0xFFF8000000000000),
    "f32": Shape(8, 23, 0x7FFFFFFF),
    "f16": Shape(5, 10, 0x7FFF),
    "bf16": Shape(8, 7, 0x7FFF),
    "tf32": Shape(8, 10, 0),
}

Number = Fraction | float  # a Fraction, or Inf or NaN


@dataclass(frozen=True)
class Value:
    """A number with the sign that a zero would have."""

    number: Number
    negative: bool

    @property
    def nan(self) -> bool:
        return self.number != self.number

    @property
    def finite(self) -> bool:
        return isinstance(self.number, Fraction)


def power(exponent: int) -> Fraction:
    """2^exponent; much faster than Fraction(2) ** exponent."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


@cache
def decode(bits: int, name: str, ftz: bool = False) -> Value:
    """A bit pattern's exact value."""
    shape = SHAPES[name]
    negative = bool(bits & shape.sign)
    fraction = bits & ((1 << shape.fraction_bits) - 1)
    field = (bits >> shape.fraction_bits) & ((1 << shape.exponent_bits) - 1)
    if field == (1 << shape.exponent_bits) - 1:
        return Value(float("nan") if fraction else (-INF if negative else INF), negative)
    if field == 0 and ftz:
        fraction = 0
    significand = fraction + ((1 << shape.fraction_bits) if field else 0)
    size = Fraction(significand) * power(max(field, 1) - shape.bias - shape.fraction_bits)
    return Value(-size if negative else size, negative)


def _steps(scaled: Fraction, mode: str, negative: bool) -> int:
    """A magnitude rounded to an integer."""
    whole, rest = divmod(scaled, 1)
    if rest == 0:
        return int(whole)
    if mode == "rn":
        return int(whole) + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and int(whole) % 2 == 1))
    if mode == "rna":
        return int(whole) + (rest >= Fraction(1, 2))
    away = (mode == "rp" and not negative) or (mode == "rm" and negative)
    return int(whole) + away


def encode(value: Value, name: str, mode: str = "rn", ftz: bool = False) -> int:
    """Rounded once to the format."""
    shape = SHAPES[name]
    if value.nan:
        return shape.nan
    sign = shape.sign if value.negative else 0
    if not isinstance(value.number, Fraction):
        return sign | shape.infinity
    size = abs(value.number)
    if size == 0:
        return sign
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= power(exponent) > size
    lowest = 1 - shape.bias
    if ftz and exponent < lowest:
        # Tininess after rounding (IEEE 754, 7.5): subnormal even when rounded with exponents unbounded.
        free = power(exponent - shape.fraction_bits)
        if _steps(size / free, mode, value.negative) * free < power(lowest):
            return sign
    unit = max(exponent, lowest) - shape.fraction_bits
    steps = _steps(size / power(unit), mode, value.negative)
    # Steps of `unit` from the start of the binade: adding carries into the exponent field by itself.
    field = max(exponent, lowest) - lowest
    bits = (field << shape.fraction_bits) + steps
    if bits >= shape.infinity:
        outward = mode in ("rn", "rna") or mode == ("rm" if value.negative else "rp")
        return sign | (shape.infinity if outward else shape.infinity - 1)
    return sign | bits


def plus(a: Value, b: Value, mode: str = "rn") -> Value:
    """IEEE 754 addition before rounding."""
    if a.nan or b.nan or (not a.finite and not b.finite and a.number != b.number):
        return Value(float("nan"), False)
    if not a.finite or not b.finite:
        return b if a.finite else a
    total = a.number + b.number
    if total == 0:
        return Value(Fraction(0), a.negative if a.negative == b.negative else mode == "rm")
    return Value(total, total < 0)


def times(a: Value, b: Value) -> Value:
    """IEEE 754 multiplication before rounding."""
    negative = a.negative != b.negative
    if a.nan or b.nan or (not a.finite and b.number == 0) or (not b.finite and a.number == 0):
        return Value(float("nan"), False)
    if not a.finite or not b.finite:
        return Value(-INF if negative else INF, negative)
    return Value(a.number * b.number, negative)


def over(a: Value, b: Value) -> Value:
    """IEEE 754 division before rounding."""
    negative = a.negative != b.negative
    if a.nan or b.nan or (not a.finite and not b.finite) or (a.number == 0 and b.number == 0):
        return Value(float("nan"), False)
    if not a.finite or b.number == 0:
        return Value(-INF if negative else INF, negative)
    if not b.finite:
        return Value(Fraction(0), negative)
    return Value(a.number / b.number, negative)


def minus(a: Value) -> Value:
    return Value(-a.number, not a.negative)


def saturated(bits: int, name: str) -> int:
    """`.sat`: [0, 1], NaN to +0."""
    value = decode(bits, name)
    if value.nan or value.negative or value.number == 0:
        return 0
    return encode(Value(Fraction(1), False), name) if value.number > 1 else bits


def elementwise(function: Callable[..., int], dtype: Any, *sources: Array) -> Array:
    """`function` of the bits of each element."""
    rows = zip(*(source.tolist() for source in sources), strict=True)
    return np.array([function(*row) for row in rows], dtype)


def same_f64(actual: Array, expected: Array) -> Array:
    """`expected`, with the NaN pattern of `actual` where both are NaN."""
    nan = np.isnan(actual.view(np.float64)) & np.isnan(expected.view(np.float64))
    return np.where(nan, actual, expected)
