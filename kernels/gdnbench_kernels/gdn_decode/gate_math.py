"""The gate's functions in fp32, accurate to one or two ulps over their whole range. CuTe DSL, sm_90 and
later.

    exp(x)      = 2^n p(r)       n = nearest(x log2 e), r = x - n ln 2 in two parts, p of degree 7
    log1p(t)    = 2 atanh(s)     s = t / (2 + t), t in [0, 1]: s^2 <= 1 / 9, eight terms of the series
    softplus(x) = max(x, 0) + log1p(exp(-|x|))
    sigmoid(x)  = (1 if x >= 0 else exp(-|x|)) / (1 + exp(-|x|))

`ex2.approx` and `lg2.approx` are not accurate enough: a decay's error of two ulps repeats in every element
and every step, and the logarithm of a number near 1 has few correct bits. The series end where the next term
is below 2^-27 of the sum: |r| <= ln 2 / 2 gives r^8 / 8! < 6e-9, s^2 <= 1 / 9 gives s^16 / 17 < 2e-9.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from math import factorial, log
from typing import Any

import cutlass

from gdnbench_kernels.gdn_decode import ptx

I32, F32 = cutlass.Int32, cutlass.Float32

LOG2_E = 1.0 / log(2)
LN2_HIGH = 0.693147182464599609375
"""ln 2 to 24 bits, exactly."""
LN2_LOW = log(2) - LN2_HIGH
FURTHEST = 104.0
"""exp(x) is infinite in fp32 above this, and 0 below its negative."""
EXP_TERMS = 7
ATANH_TERMS = 7
"""Coefficients of the series after the first."""
BIAS = 127


def exp(x: Any) -> Any:
    """exp(x): 0 for -inf, inf for inf, NaN for NaN; subnormal results too."""
    x = ptx.greater(ptx.less(x, F32(FURTHEST)), F32(-FURTHEST))
    n = ptx.nearest_whole(ptx.multiply(x, F32(LOG2_E)))
    r = ptx.fma(n, F32(-LN2_HIGH), x)
    r = ptx.fma(n, F32(-LN2_LOW), r)
    p = F32(1 / factorial(EXP_TERMS))
    for power in range(EXP_TERMS - 1, -1, -1):
        p = ptx.fma(p, r, F32(1 / factorial(power)))
    # 2^n in two factors: it may exceed a float's range, and only the last product rounds.
    whole = ptx.whole(n)
    half = whole >> 1
    return ptx.multiply(ptx.multiply(p, _power_of_two(half)), _power_of_two(whole - half))


def log1p(t: Any) -> Any:
    """log(1 + t) for t in [0, 1]."""
    below = ptx.add(t, F32(2.0))
    inverse = ptx.reciprocal(below)
    s = ptx.multiply(t, inverse)
    s = ptx.fma(ptx.fma(ptx.negative(s), below, t), inverse, s)
    square = ptx.multiply(s, s)
    tail = F32(1 / (2 * ATANH_TERMS + 1))
    for term in range(ATANH_TERMS - 1, 0, -1):
        tail = ptx.fma(tail, square, F32(1 / (2 * term + 1)))
    twice = ptx.add(s, s)
    return ptx.fma(ptx.multiply(twice, square), tail, twice)


def softplus(x: Any) -> Any:
    """log(1 + exp(x)), without a threshold."""
    return ptx.add(ptx.greater(x, F32(0.0)), log1p(exp(ptx.less(x, ptx.negative(x)))))


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), accurate for small results too."""
    t = exp(ptx.less(x, ptx.negative(x)))
    below = ptx.add(t, F32(1.0))
    inverse = ptx.reciprocal(below)
    inverse = ptx.fma(ptx.fma(ptx.negative(below), inverse, F32(1.0)), inverse, inverse)
    # NaN is not >= 0, so a NaN result comes from t.
    return ptx.multiply(ptx.select_value(x >= F32(0.0), F32(1.0), t), inverse)


def inverse_norm(square: Any) -> Any:
    """square ** -0.5: rsqrt.approx and one Newton step; 0 for inf."""
    found = ptx.reciprocal_root(square)
    missing = ptx.fma(ptx.negative(ptx.multiply(square, found)), found, F32(1.0))
    refined = ptx.fma(ptx.multiply(found, F32(0.5)), missing, found)
    # inf times 0 is NaN, so an infinite sum keeps the first result.
    return ptx.select_value(refined == refined, refined, found)


def _power_of_two(exponent: Any) -> Any:
    return ptx.float_of((exponent + BIAS) << 23)
