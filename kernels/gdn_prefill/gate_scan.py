"""Gates of a chunk summed by one warp. CuTe DSL."""

from __future__ import annotations

import math
from enum import IntEnum

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_prefill.chunked import CLOSED_GATE

LOG2_E = math.log2(math.e)
LEAST_GATE = -1e30
"""64 of these have a finite sum in f32."""


class Gate(IntEnum):
    """Rows of s_gate."""

    G_CU = 0
    BETA = 1
    DECAY = 2  # exp(g_cu)


def decay(exponent: cutlass.Float32) -> cutlass.Float32:
    """exp of a number that is not positive."""
    return cute.math.exp2(exponent * LOG2_E, fastmath=True)


@cute.jit
def scan(r_g: cute.Tensor, r_sum: cute.Tensor, lane: cutlass.Int32) -> None:
    """r_sum = sums of r_g, none above 0, up to each value: in fp64, rounded once, never rising. Lane l has
    values 2l and 2l + 1 of 64."""
    for j in cutlass.range_constexpr(2):
        r_g[j] = LEAST_GATE if r_g[j] < LEAST_GATE and r_g[j] != -math.inf else r_g[j]
        r_g[j] = CLOSED_GATE if r_g[j] == -math.inf else r_g[j]
    first = cutlass.Float64(r_g[0])
    pair = first + cutlass.Float64(r_g[1])
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
    # No sum rises within a lane. From lane to lane one may, by a rounding, since they are summed along
    # different trees; exp(g_cu[i] - g_cu[j]) would then exceed 1. Comparisons with NaN are false: NaN stays.
    least = r_sum[1]
    for power in cutlass.range_constexpr(5):
        earlier = cute.arch.shuffle_sync_up(least, 1 << power)
        if lane >= 1 << power and earlier < least:
            least = earlier
    earlier = cute.arch.shuffle_sync_up(least, 1)
    for j in cutlass.range_constexpr(2):
        if lane > 0 and earlier < r_sum[j]:
            r_sum[j] = earlier
