# SPDX-License-Identifier: Apache-2.0
"""The sum of a block-scaled product with K = 64, in vector operations: the bits of `reference` at GMAC/s.

Floats hold the exact dot products of groups of elements, doubles the exact sum of a few of them.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from gdnbench.sim.tensorcore.formats import F32, Codes, Format
from gdnbench.sim.tensorcore.product import NAN_BITS
from gdnbench.sim.tensorcore.scaled import GROUP, GROUP_FRACTION_BITS, ScaledProduct, Scales

# Elements of D at a time: several arrays of doubles of this size fit a core's L2 cache.
_CACHED_ELEMENTS = 1 << 13

# The exponent of a scale of zero: below that of any product of scales, so that it is never the largest.
_ZERO_SCALE = -300
_INFINITY = np.uint32(0x7F800000)

Doubles = NDArray[np.float64]


def group_sum(product: ScaledProduct, a: Codes, sa: Scales, b: Codes, sb: Scales, c: Codes) -> Codes:
    """One fused sum of C and the exact dot products of `GROUP` elements. NaN scales are the caller's."""
    d = np.empty((len(a), len(b)), np.uint32)
    step = max(_CACHED_ELEMENTS // max(len(b), 1), 1)
    for start in range(0, len(a), step):
        rows = slice(start, start + step)
        with np.errstate(invalid="ignore", over="ignore"):
            d[rows] = _sum_of_rows(product, a[rows], sa.rows(rows), b, sb, c[rows])
    return d


def _sum_of_rows(product: ScaledProduct, a: Codes, sa: Scales, b: Codes, sb: Scales, c: Codes) -> Codes:
    numbers = c.view(np.float32).astype(np.float64)
    largest = _exponent(c)
    exponents_a, exponents_b = (np.maximum(scales.exponent, _ZERO_SCALE) for scales in (sa, sb))
    exponents = [np.add.outer(exponents_a[:, i], exponents_b[:, i]) for i in range(product.scales)]
    for exponent in exponents:
        np.maximum(largest, exponent, out=largest)
    unit = largest - GROUP_FRACTION_BITS
    total = np.trunc(numbers * _power_of_two(-unit))
    va, vb = _numbers(product.a, a, sa, product.block), _numbers(product.b, b, sb, product.block)
    for block, exponent in enumerate(exponents):
        power = _power_of_two(exponent - unit)
        for start in range(block * product.block, (block + 1) * product.block, GROUP):
            k = slice(start, start + GROUP)
            # Exact in floats, in any order: at most 16 (6 * 15/8)^2 in units of (1/2 * 1/8)^2, below 2^20.
            terms = (va[:, k] @ vb[:, k].T) * power
            total += np.trunc(terms, out=terms)
    bits = _to_f32(total * _power_of_two(unit))
    special = c & _INFINITY == _INFINITY
    if special.any():
        bits = np.where(special, np.where(np.isnan(numbers), np.uint32(NAN_BITS["f32"]), c), bits)
    return bits


def _exponent(c: Codes) -> NDArray[np.int64]:
    """The exponent of accumulators: a subnormal has the smallest, a zero one below any term's."""
    magnitude = (c & np.uint32(0x7FFFFFFF)).astype(np.int64)
    exponent: NDArray[np.int64] = np.maximum(magnitude >> F32.fraction_bits, 1) - F32.bias
    exponent[magnitude == 0] = 2 * _ZERO_SCALE
    return exponent


def _numbers(form: Format, codes: Codes, scales: Scales, block: int) -> NDArray[np.float32]:
    """Elements times the significands of their scales."""
    significand = np.ldexp(scales.significand.astype(np.float32), -scales.fraction_bits)
    numbers: NDArray[np.float32] = _table(form)[codes] * np.repeat(significand, block, axis=1)
    return numbers


@cache
def _table(form: Format) -> NDArray[np.float32]:
    """The value of every code of a byte."""
    return form.values(np.arange(256, dtype=np.uint8) & np.uint8((1 << form.bits) - 1)).astype(np.float32)


def _power_of_two(exponent: NDArray[np.int64]) -> Doubles:
    """2^exponent, for exponents of normal doubles."""
    return (exponent + 1023 << 52).view(np.float64)


def _to_f32(values: Doubles) -> NDArray[np.uint32]:
    """Bits of doubles in f32, truncated toward zero; too large is infinite, zero is +0."""
    kept = (values.view(np.int64) & -(1 << 29)).view(np.float64)
    small = np.abs(values) < 2.0**F32.min_exponent
    if small.any():
        kept = np.where(small, np.trunc(values * 2.0**149) * 2.0**-149, kept)
    return (kept + 0.0).astype(np.float32).view(np.uint32)
