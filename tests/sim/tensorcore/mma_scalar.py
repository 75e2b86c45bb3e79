# SPDX-License-Identifier: Apache-2.0
"""Tensor-core sums one dot product at a time, in exact rationals: the expectation of the tests.

Written from the published rule (MMA-Sim, arXiv 2511.10909), on values instead of bits: codes become numbers
through ml_dtypes, and every number of the rule is a parameter, so that a wrong one can be shown to differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

DTYPES: dict[str, type] = {
    "f32": np.float32,
    "tf32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
# Exponent of the smallest normal number: PTX ISA "Alternate Floating-Point Data Formats" and IEEE 754.
SMALLEST = {
    "f32": -126,
    "tf32": -126,
    "f16": -14,
    "bf16": -126,
    "e5m2": -14,
    "e4m3": -6,
    "e3m2": -2,
    "e2m3": 0,
    "e2m1": 0,
}


def values(name: str, codes: NDArray[np.unsignedinteger]) -> NDArray[np.float64]:
    """Codes as fp64 numbers, by ml_dtypes; tf32 ignores 13 bits."""
    if name == "tf32":
        codes = codes & np.uint32(0xFFFFE000)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        numbers: NDArray[np.float64] = codes.view(DTYPES[name]).astype(np.float64)
    return numbers


@dataclass(frozen=True)
class Rule:
    """One fused sum of `terms` products and C, kept to `bits` fraction bits below the largest exponent; an
    f32 result keeps `kept` fraction bits."""

    bits: int = 25
    terms: int = 16
    kept: int = 23


def exponent(value: float, smallest: int) -> int:
    return max(math.frexp(value)[1] - 1, smallest)


def dot(a: list[float], b: list[float], c: float, formats: tuple[str, str, str], rule: Rule) -> float:
    """C plus the dot product of a and b, in fused sums of `rule.terms`, each rounded to the accumulator."""
    for start in range(0, len(a), rule.terms):
        piece = slice(start, start + rule.terms)
        c = fused_sum(a[piece], b[piece], c, formats, rule)
    return c


def fused_sum(a: list[float], b: list[float], c: float, formats: tuple[str, str, str], rule: Rule) -> float:
    special = sum(x * y for x, y in zip(a, b, strict=True)) + c  # no sum of finite products overflows fp64
    if math.isnan(special) or math.isinf(special):
        return special
    ea, eb, ec = (SMALLEST[name] for name in formats)
    terms = [(Fraction(c), exponent(c, ec))] if c else []
    for x, y in zip(a, b, strict=True):
        if x and y:
            terms.append((Fraction(x) * Fraction(y), exponent(x, ea) + exponent(y, eb)))
    if not terms:
        return 0.0
    unit = Fraction(2) ** (max(e for _, e in terms) - rule.bits)
    return rounded(sum(math.trunc(value / unit) for value, _ in terms) * unit, formats[2], rule.kept)


def rounded(total: Fraction, d: str, kept_bits: int = 23) -> float:
    """f32 toward zero, f16 to nearest even; too large is infinite, zero is +0."""
    if total == 0:
        return 0.0
    fraction_bits, largest = (kept_bits, 127) if d == "f32" else (10, 15)
    magnitude = abs(total)
    e = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    e -= magnitude < Fraction(2) ** e
    place = Fraction(2) ** (max(e, SMALLEST[d]) - fraction_bits)
    kept = math.floor(magnitude / place) if d == "f32" else round(magnitude / place)
    if kept * place >= Fraction(2) ** (largest + 1):
        return math.copysign(math.inf, total)
    return math.copysign(float(kept * place), total) if kept else 0.0


def codes_of(value: float, d: str) -> int:
    """The code of an accumulator value that is representable, with the one NaN."""
    if math.isnan(value):
        return 0x7FFFFFFF if d == "f32" else 0x7FFF
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.uint32) if d == "f32" else np.float16(value).view(np.uint16))
