# SPDX-License-Identifier: Apache-2.0
"""The least and the greatest value of a tensor from its bits, without torch, whose import takes seconds.

Bits of the formats that NumPy has no name for are decoded as OCP's "8-bit Floating Point Specification"
(OFP8) and its "Microscaling Formats" (E8M0) say; the forms with `fnuz` as in "8-bit Numerical Formats for
Deep Neural Networks" (arXiv 2206.02915): one bias more, no negative zero, whose code is the only NaN.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdnbench.bits import Bits

Range = tuple[float | None, float | None, int]
# Exponent bits, mantissa bits, bias; whether the greatest exponent is of infinities and NaN, as in IEEE 754.
_FLOATS = {
    "bfloat16": (8, 7, 127, True),
    "float8_e4m3fn": (4, 3, 7, False),
    "float8_e4m3fnuz": (4, 3, 8, False),
    "float8_e5m2": (5, 2, 15, True),
    "float8_e5m2fnuz": (5, 2, 16, False),
}
_SCALE = "float8_e8m0fnu"
_BLOCK = 1 << 22  # codes counted at once, which NumPy copies as integers of 8 bytes


def value_range(bits: Bits, dtype: str) -> Range:
    """(least, greatest, how many are NaN or Inf) of the values whose bits are `bits`, an array of any shape
    in the storage dtype of `dtype`; the first two over finite values, and None without any."""
    if dtype in _FLOATS or dtype == _SCALE:
        # How often each code occurs: there are few, however large the tensor is.
        codes, most = bits.reshape(-1), 256**bits.dtype.itemsize
        parts = (codes[start : start + _BLOCK] for start in range(0, codes.size, _BLOCK))
        counts = sum((np.bincount(part, minlength=most) for part in parts), np.zeros(most, np.int64))
        values, counts = values_of(dtype)[counts > 0], counts[counts > 0]
        finite = np.isfinite(values)
        kept: NDArray[Any] = values[finite]
        nonfinite = int(counts[~finite].sum())
    elif np.issubdtype(bits.dtype, np.floating):
        finite = np.isfinite(bits)
        kept, nonfinite = bits[finite], int(bits.size - np.count_nonzero(finite))
    else:
        kept, nonfinite = bits, 0
    return (float(kept.min()), float(kept.max()), nonfinite) if kept.size else (None, None, nonfinite)


@cache
def values_of(dtype: str) -> NDArray[np.float64]:
    """The value of every code of an 8-bit format or of bfloat16, by code. fp64 has all of them."""
    if dtype == _SCALE:
        codes = np.arange(256)
        return np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127))
    exponent_bits, mantissa_bits, bias, ieee = _FLOATS[dtype]
    codes = np.arange(2 ** (1 + exponent_bits + mantissa_bits))
    exponent = codes >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = codes & (1 << mantissa_bits) - 1
    negative = codes >> exponent_bits + mantissa_bits == 1
    # Subnormal where the exponent is 0: no leading one, and the exponent of the least normal number.
    significand = mantissa + np.where(exponent == 0, 0, 1 << mantissa_bits)
    unit = np.maximum(exponent, 1) - bias - mantissa_bits
    values: NDArray[np.float64] = np.ldexp(np.where(negative, -1.0, 1.0) * significand, unit)
    if ieee:
        last = exponent == (1 << exponent_bits) - 1
        values[last] = np.where(mantissa[last] > 0, np.nan, np.copysign(np.inf, values[last]))
    elif dtype.endswith("fnuz"):
        values[negative & (exponent == 0) & (mantissa == 0)] = np.nan
    else:
        values[(exponent == (1 << exponent_bits) - 1) & (mantissa == (1 << mantissa_bits) - 1)] = np.nan
    return values
