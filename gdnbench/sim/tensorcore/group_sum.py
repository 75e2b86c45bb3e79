"""The sum of a block-scaled product with K = 64, in vector operations: the bits of `reference` at GMAC/s.

Floats hold the exact dot products of groups of elements, doubles the exact sum of a few of them.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from gdnbench.sim.tensorcore.formats import F32, Codes, Format
from gdnbench.sim.tensorcore.product import NAN_BITS, ZERO_EXPONENT
from gdnbench.sim.tensorcore.scaled import GROUP, GROUP_FRACTION_BITS, ScaledProduct, Scales

# Elements of D at a time: several arrays of doubles of this size fit a core's L2 cache.
_CACHED_ELEMENTS = 1 << 13

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
    va, vb = _table(product.a)[a], _table(product.b)[b]
    numbers = c.view(np.float32).astype(np.float64)
    # frexp's significand is below 1. A subnormal has the smallest exponent.
    exponent = np.maximum(np.frexp(numbers)[1] - 1, F32.min_exponent)
    largest = np.where(numbers == 0, 2 * ZERO_EXPONENT, exponent)
    of_group = np.arange(0, product.k, GROUP) // product.block
    exponents = {}
    for block in range(product.scales):
        exponents[block] = sa.exponent[:, block, None] + sb.exponent[None, :, block]
        largest = np.maximum(largest, exponents[block])
    # Without any term the exponent is arbitrary.
    unit = np.maximum(largest, ZERO_EXPONENT // 2) - GROUP_FRACTION_BITS
    total = np.trunc(numbers * _power_of_two(-unit))
    significand_a, significand_b = (
        np.ldexp(s.significand.astype(np.float64), -s.fraction_bits) for s in (sa, sb)
    )
    for index, block in enumerate(of_group.tolist()):
        k = slice(GROUP * index, GROUP * (index + 1))
        # At most 16 * 36 in units of 1/4: exact in floats, in any order.
        dots = (va[:, k] @ vb[:, k].T).astype(np.float64)
        dots *= significand_a[:, block, None]
        dots *= significand_b[None, :, block]
        total += np.trunc(dots * _power_of_two(exponents[block] - unit))
    bits = _to_f32(total * _power_of_two(unit))
    bits = np.where(np.isinf(numbers), c, bits)
    return np.where(np.isnan(numbers), np.uint32(NAN_BITS["f32"]), bits)


@cache
def _table(form: Format) -> NDArray[np.float32]:
    """The value of every code of a byte."""
    return form.values(np.arange(256, dtype=np.uint8) & np.uint8((1 << form.bits) - 1)).astype(np.float32)


def _power_of_two(exponent: NDArray[np.int64]) -> Doubles:
    """2^exponent, for exponents of normal doubles; 2^-1022 below."""
    return (np.maximum(exponent, -1022) + 1023 << 52).view(np.float64)


def _to_f32(values: Doubles) -> NDArray[np.uint32]:
    """Bits of doubles in f32, truncated toward zero; too large is infinite, zero is +0."""
    kept = (values.view(np.int64) & -(1 << 29)).view(np.float64)
    small = np.abs(values) < 2.0**F32.min_exponent
    if small.any():
        kept = np.where(small, np.trunc(values * 2.0**149) * 2.0**-149, kept)
    return (kept + 0.0).astype(np.float32).view(np.uint32)
