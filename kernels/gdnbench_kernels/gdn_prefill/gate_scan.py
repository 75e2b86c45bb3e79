# SPDX-License-Identifier: Apache-2.0
"""Sums the gates of a chunk in one warp. CuTe DSL."""

from __future__ import annotations

import math
from enum import IntEnum

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.delta_prefill.chunked import CLOSED_GATE, LEAST_GATE

LOG2_E = math.log2(math.e)


class Gate(IntEnum):
    """Rows of s_gate."""

    G_CU = 0
    BETA = 1
    DECAY = 2  # exp(g_cu)


def decay(exponent: cutlass.Float32, unit: float = 1.0) -> cutlass.Float32:
    """exp of `unit` (1, or log 2) times a non-positive number, for results that are rounded to bf16 next.
    Where the result is normal,
    |exponent log2 e| is at most L = 127: two roundings of it change the result by 2^-24 L ln 2 each, and
    exp2.approx by 2^-22. The total is below 2^-16; half an ULP of bf16 is 2^-9."""
    return cute.math.exp2(exponent * LOG2_E if unit == 1.0 else exponent, fastmath=True)


DEGREE = 9
LEAST_EXPONENT = -128.0
"""exp of this is 2^-185, which is 0 in f32, whose least subnormal is 2^-149."""


@cute.jit
def rounded_decay(exponent: cutlass.Float32, unit: cutlass.Constexpr = 1.0) -> cutlass.Float32:
    """exp of `unit` (1, or log 2) times a non-positive number, to 0.5 + 2^-12 ULP of f32, for factors that
    are multiplied from chunk to
    chunk: their error affects the whole state and accumulates. NaN stays.

    In fp64, exp(x) = 2^n exp(r) with n = round(x log2 e) and r = x - n ln 2, |r| < 0.347. The error of r is n
    2^-54 (from ln 2) and two roundings of less than 2^-46 each, with n at most 185. The series of exp(r) up
    to r^9 / 9! errs by less than 0.347^10 / 10! e^0.347 < 2^-36.4, and exp(r) is at least 0.7. So the
    relative error before the one rounding to f32 is below 2^-36; half an ULP is at least 2^-25 of the result,
    more for subnormals.
    """
    least = cutlass.Float32(LEAST_EXPONENT / unit)
    x = cutlass.Float64(least if exponent < least else exponent)
    in_log2 = cutlass.const_expr(unit != 1.0)
    n = cute.arch.inline_ptx(
        "cvt.rni.s32.f64 {$w0}, {$r0};",
        write_only_types=[cutlass.Int32],
        read_only_args=[x if in_log2 else x * LOG2_E],
    )
    if cutlass.const_expr(in_log2):
        r = (x - cutlass.Float64(n)) * unit
    else:
        r = x - cutlass.Float64(n) * math.log(2)
    total = cutlass.Float64(1 / math.factorial(DEGREE))
    for power in cutlass.range_constexpr(DEGREE - 1, -1, -1):
        total = total * r + 1 / math.factorial(power)
    return cutlass.Float32(total * power_of_two(n))


def power_of_two(n: cutlass.Int32) -> cutlass.Float64:
    """2^n for -1022 <= n <= 1023: only the exponent bits are set."""
    return cute.arch.inline_ptx(
        "mov.b64 {$w0}, {$r0};",
        write_only_types=[cutlass.Float64],
        read_only_args=[cutlass.Int64(n + 1023) << 52],
    )


@cute.jit
def scan(r_g: cute.Tensor, r_sum: cute.Tensor, lane: cutlass.Int32, unit: cutlass.Constexpr = 1.0) -> None:
    """r_sum = inclusive sums of r_g, whose values are at most 0, in units of `unit`: computed in fp64,
    rounded once, never increasing. Lane l has values 2l and 2l + 1 of 64."""
    for j in cutlass.range_constexpr(2):
        # +inf is no decay: make it NaN here, or the clamping of increasing sums below would hide it.
        r_g[j] = math.nan if r_g[j] == math.inf else r_g[j]
        r_g[j] = LEAST_GATE if r_g[j] < LEAST_GATE and r_g[j] != -math.inf else r_g[j]
        r_g[j] = CLOSED_GATE if r_g[j] == -math.inf else r_g[j]
    first = cutlass.Float64(r_g[0])
    second = cutlass.Float64(r_g[1])
    if cutlass.const_expr(unit != 1.0):
        first, second = first * (1.0 / unit), second * (1.0 / unit)
    pair = first + second
    total = pair
    for power in cutlass.range_constexpr(5):
        before = cute.arch.shuffle_sync_up(total, 1 << power)
        if lane >= 1 << power:
            total = total + before
    before = cute.arch.shuffle_sync_up(total, 1)
    if lane == 0:
        before = cutlass.Float64(0.0)
    r_sum[0] = cutlass.Float32(before + first)
    r_sum[1] = cutlass.Float32(before + pair)
    # No sum increases within a lane. From lane to lane a sum may increase by a rounding, because lanes sum
    # along different trees; exp(g_cu[i] - g_cu[j]) would then exceed 1. Comparisons with NaN are false: NaN
    # stays.
    least = r_sum[1]
    for power in cutlass.range_constexpr(5):
        earlier = cute.arch.shuffle_sync_up(least, 1 << power)
        if lane >= 1 << power and earlier < least:
            least = earlier
    earlier = cute.arch.shuffle_sync_up(least, 1)
    for j in cutlass.range_constexpr(2):
        if lane > 0 and earlier < r_sum[j]:
            r_sum[j] = earlier
