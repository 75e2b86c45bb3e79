# SPDX-License-Identifier: Apache-2.0
"""The special-function unit (MUFU): f32 in, f32 out, bit for bit that of sm_90; sm_100's is taken to be the
same.

Its functions are table-driven quadratic interpolators (special_function.py has the tables and where they come
from). Arguments are reduced and results put together in integers; results are cut to 24 bits, not rounded.
Subnormal arguments count as zero, subnormal results become zero. Every NaN result is 0x7FFFFFFF.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.special_function import EX2, LG2, RCP, RSQ, SIN, SQRT, TANH, TANH_IGNORED, Table

Int = npt.NDArray[np.int64]
Unit = Callable[[Array], Array]
_SIGN, _INFINITY, _NAN, _ONE = 0x8000_0000, 0x7F80_0000, 0x7FFF_FFFF, 0x3F80_0000
_MANTISSA = (1 << 23) - 1


@dataclass(frozen=True, slots=True)
class _Parts:
    """An f32: sign bit in place, exponent (2^exponent <= |a|), 23 bits of mantissa; zeros and subnormals
    are `zero`."""

    sign: Int
    exponent: Int
    mantissa: Int
    zero: Array
    infinite: Array
    nan: Array


def _split(bits: Array) -> _Parts:
    a = bits.astype(np.int64)
    biased, mantissa = a >> 23 & 0xFF, a & _MANTISSA
    last = biased == 0xFF
    return _Parts(
        a & _SIGN, biased - 127, mantissa, biased == 0, last & (mantissa == 0), last & (mantissa > 0)
    )


@cache
def _truncated_squares(bits: int) -> Int:
    """S of every x: the partial products of x * x without the columns below 2^(2 bits - 15), in units of
    that."""
    lowest = 2 * bits - 15
    x = np.arange(1 << bits)
    total = np.zeros_like(x)
    for i in range(bits):
        # Bit i times itself, and twice times each bit above it.
        products = 1 << 2 * i | (x >> (i + 1)) << (2 * i + 2)
        total += np.where(x >> i & 1 == 1, products >> lowest, 0)
    return total


@cache
def _columns(table: Table) -> tuple[Int, Int, Int]:
    c0, c1, c2 = np.array(table.rows, np.int64).T
    return c0, c1, c2


def _interpolate(table: Table, place: Int) -> Int:
    """q at `place`: the number of the interval, then the bits of x."""
    c0, c1, c2 = _columns(table)
    interval, x = place >> table.low, place & ((1 << table.low) - 1)
    square = _truncated_squares(table.low)[x]
    result: Int = c0[interval] + (c1[interval] * x << (17 - table.low)) + (c2[interval] * square << 2)
    return result


def _assemble(sign: Int, q: Int, unit: Int | int) -> Int:
    """q * 2^unit, q >= 0, cut to 24 bits, as f32 bits."""
    length = np.frexp(q.astype(np.float64))[1].astype(np.int64)  # exact: q has less than 53 bits
    down = np.clip(length - 24, 0, 63)
    up = np.clip(24 - length, 0, 63)
    biased = length - 1 + unit + 127
    bits = np.where(biased > 254, _INFINITY, biased << 23 | (q >> down << up & _MANTISSA))
    return sign | np.where((q == 0) | (biased < 1), 0, bits)


def _bits(result: Int, nan: Array) -> Array:
    return np.where(nan, _NAN, result).astype(np.uint32)


def rcp(bits: Array) -> Array:
    """MUFU.RCP. A power of two is exact: the table would give the number below."""
    a = _split(bits)
    q = np.where(a.mantissa == 0, 1 << 42, _interpolate(RCP, a.mantissa))
    result = _assemble(a.sign, q, -42 - a.exponent)
    result = np.where(a.zero, a.sign | _INFINITY, np.where(a.infinite, a.sign, result))
    return _bits(result, a.nan)


def _octave_pair(a: _Parts) -> tuple[Int, Int]:
    """a = 4^half * m with m in [1, 4): (half, place of m in the table of two octaves)."""
    odd = a.exponent & 1
    return (a.exponent - odd) >> 1, odd << 23 | a.mantissa


def rsq(bits: Array) -> Array:
    """MUFU.RSQ. A power of four is exact."""
    a = _split(bits)
    half, place = _octave_pair(a)
    q = np.where(place == 0, 1 << 42, _interpolate(RSQ, place))
    result = np.where(a.infinite, 0, _assemble(np.zeros_like(q), q, -42 - half))
    return _bits(np.where(a.zero, a.sign | _INFINITY, result), a.nan | ((a.sign != 0) & ~a.zero))


def sqrt(bits: Array) -> Array:
    """MUFU.SQRT."""
    a = _split(bits)
    half, place = _octave_pair(a)
    root = _assemble(np.zeros_like(place), _interpolate(SQRT, place), -41 + half)
    result = np.where(a.zero, a.sign, np.where(a.infinite, _INFINITY, root))
    return _bits(result, a.nan | ((a.sign != 0) & ~a.zero))


def _fixed_point(mantissa: Int, exponent: Int, fraction: int) -> Int:
    """|a| in 2^-fraction, cut toward zero; at most 2^8."""
    whole = mantissa | 1 << 23
    shift = exponent - 23 + fraction
    return np.where(shift >= 0, whole << np.clip(shift, 0, 31), whole >> np.clip(-shift, 0, 63))


def ex2(bits: Array) -> Array:
    """MUFU.EX2: the argument in 2^-23, then 2^integer * 2^fraction. A negative argument is complemented, not
    negated, unless it is an integer: its fraction lies one below."""
    a = _split(bits)
    size = np.where(a.zero, 0, _fixed_point(a.mantissa, np.minimum(a.exponent, 8), 23))
    size = np.where(a.exponent > 8, 1 << 32, size)  # 2^512: far out of range
    below = (size & _MANTISSA != 0).astype(np.int64)
    fixed = np.where(a.sign != 0, -size - below, size)
    result = _assemble(np.zeros_like(fixed), _interpolate(EX2, fixed & _MANTISSA), -41 + (fixed >> 23))
    infinite = np.where(a.sign != 0, 0, _INFINITY)
    return _bits(np.where(a.infinite, infinite, result), a.nan)


def lg2(bits: Array) -> Array:
    """MUFU.LG2: the exponent and the table's log2 of the mantissa added in 2^-36. A negative sum is
    complemented, not negated. One gives +0."""
    a = _split(bits)
    q = _interpolate(LG2, a.mantissa)  # 1 + log2 of the mantissa
    total = ((a.exponent - 1) << 36) + (q >> 5)
    total = np.where((a.exponent == 0) & (a.mantissa == 0), 0, total)
    sign = np.where(total < 0, _SIGN, 0)
    result = _assemble(sign, np.where(total < 0, ~total, total), -36)
    result = np.where(a.zero, _SIGN | _INFINITY, np.where(a.infinite, _INFINITY, result))
    return _bits(result, a.nan | ((a.sign != 0) & ~a.zero))


def _wave(bits: Array, cosine: bool) -> Array:
    """MUFU.SIN and MUFU.COS of an angle in turns: two bits of quadrant and 23 in the quadrant, which run
    backward (complemented) in every other one. Turns beyond 2^25 have no fraction."""
    a = _split(bits)
    turns = np.where(a.zero | (a.exponent > 25), 0, _fixed_point(a.mantissa, np.minimum(a.exponent, 25), 25))
    quadrant, place = turns >> 23 & 3, turns & _MANTISSA
    backward = quadrant & 1 == (0 if cosine else 1)
    q = _interpolate(SIN, np.where(backward, _MANTISSA - place, place))
    if cosine:
        sign = np.where((quadrant == 1) | (quadrant == 2), _SIGN, 0)
    else:
        sign = a.sign ^ np.where(quadrant >= 2, _SIGN, 0)
    return _bits(_assemble(sign, q, -42), a.nan | a.infinite)


def sin(bits: Array) -> Array:
    return _wave(bits, cosine=False)


def cos(bits: Array) -> Array:
    return _wave(bits, cosine=True)


def tanh(bits: Array) -> Array:
    """MUFU.TANH. Small arguments, subnormal ones among them, are the result."""
    a = _split(bits)
    octave = np.clip(a.exponent, min(TANH_IGNORED), max(TANH_IGNORED))
    ignored, first = np.zeros_like(octave), np.zeros_like(octave)
    count = 0
    for exponent, low in TANH_IGNORED.items():
        ignored[octave == exponent], first[octave == exponent] = low, count
        count += 1 << (6 - low)
    q = _interpolate(TANH, (first << TANH.low) + (a.mantissa >> ignored))
    result = _assemble(a.sign, q, np.minimum(octave, -1) - 41)
    result = np.where(a.exponent < min(TANH_IGNORED), bits.astype(np.int64), result)
    return _bits(np.where(a.exponent > max(TANH_IGNORED), a.sign | _ONE, result), a.nan)
