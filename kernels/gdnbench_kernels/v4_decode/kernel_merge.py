"""Merges the partial outputs of split attention. CuTe DSL, sm_90a, sm_100a.

For each of R = B S H rows, with i over the splits, n of them, and the sink s in base 2 (-inf without one):

    m   = max_i lse_part[i]                     w[i] = exp2(lse_part[i] - m)
    o   = (sum_i w[i] o_part[i]) / (sum_i w[i] + exp2(s - m))       0 where every lse_part is -inf
    lse = m + log2 sum_i w[i]                   in the form asked for, which may include s

    tensor     shape      dtype     rows
    o_part     n, R, 512  float32   contiguous; n <= 32
    lse_part   n, R       float32   base 2; -inf: the split attends to nothing, its o_part is not read
    attn_sink  H          float32   or none
    o          R, 512     bfloat16  contiguous
    lse        R          float32   or none

One CTA of four warps merges a row, a quarter of the features each; every warp computes the weights itself,
lane i that of split i. No shared memory, no synchronisation.

Error. Let A be the largest |o_part| of a feature and S = |s|, lse_part and o_part exact. In units of u =
2^-24: a weight x = lse_part - m has the error of exp2.approx, 4 w, and of the rounding of x, ln 2 |x| 2^x <
0.37; a numerator adds n roundings; the sum of weights 5, that with the sink 1. The sink's own product with
log2 e has two roundings, so its weight has a relative error of 2 ln 2 S more. The reciprocal has 2 and its
product 1. So

    |o - exact| <= 2^-8 |o| + A u (4 + 0.37 n + n + 4 + 0.37 n + 0.37 + 6 + 1.4 S + 3)
                <= 2^-8 |o| + A u (18 + 1.74 n + 1.4 S)

where 2^-8 is the rounding to bfloat16; with 32 splits the rest is below 2^-17 A for |s| < 30. Parts weighing
less than 2^-126 of the largest, or of the sink, are 0. NaN in lse_part makes its row NaN.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from math import inf
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.plan import WARP
from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.lse_values import FINITE, lse_in_form, sink_log2

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

VALUES = 4
"""Features of a thread: 16 bytes of a partial output."""
THREADS = HEAD_DIM // VALUES
AHEAD = 8
"""Splits whose loads are issued together."""
CTAS_PER_SM = 8
"""Leaves a thread 64 registers."""
DRIVER_DEFAULT = -1
"""Shared-memory carveout: the driver's. Without it the compiler asks a device, and there may be none."""


class MergeSplits:
    """The kernel that writes lse in `form`."""

    def __init__(self, form: LseForm) -> None:
        self.form = form

    @cute.jit
    def __call__(
        self,
        o_part: cute.Tensor,
        lse_part: cute.Tensor,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        stream: cuda.CUstream,
    ) -> None:
        self.kernel(o_part, lse_part, attn_sink, o, lse).launch(
            grid=(cute.size(o, mode=[0]), 1, 1),
            block=(THREADS, 1, 1),
            stream=stream,
            min_blocks_per_mp=CTAS_PER_SM,
            preferred_smem_carveout=DRIVER_DEFAULT,
        )

    @cute.kernel
    def kernel(
        self,
        o_part: cute.Tensor,
        lse_part: cute.Tensor,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
    ) -> None:
        row, rows = cute.arch.block_idx()[0], cute.size(o, mode=[0])
        thread, lane = cute.arch.thread_idx()[0], cute.arch.lane_idx()
        splits = cute.size(lse_part, mode=[0])
        own = self.split_lse(lse_part, lane, row)
        sink = self.sink_of(attn_sink, row)
        top = ops.greater(ops.across(own, WARP), F32(-FINITE))
        weight = ops.exp2(own - top)
        total = ops.summed(weight, WARP)
        below = total
        if cutlass.const_expr(sink is not None):
            below = total + ops.exp2(sink - top)
        acc = cute.make_rmem_tensor((VALUES,), F32)
        acc.fill(0.0)
        for first in cutlass.range(0, splits, AHEAD, unroll=1):
            words, weights = [], []
            for more in cutlass.range_constexpr(AHEAD):
                split = first + more
                weights.append(cute.arch.shuffle_sync(weight, split))
                reads = I32(cute.arch.shuffle_sync(own, split) != F32(-inf))
                place = (I64(split) * rows + row) * HEAD_DIM + thread * VALUES
                words.append(ops.load_global_if(reads, o_part.iterator.toint() + place * 4))
            for more in cutlass.range_constexpr(AHEAD):
                for i in cutlass.range_constexpr(VALUES):
                    acc[i] = ops.fused(weights[more], ops.float_of(words[more][i]), acc[i])
        factor = ops.select_value(total == 0.0, F32(0.0), ops.reciprocal(below))
        low = ops.bfloats(acc[0] * factor, acc[1] * factor)
        high = ops.bfloats(acc[2] * factor, acc[3] * factor)
        place = I64(row) * HEAD_DIM + thread * VALUES
        ops.store_global(o.iterator.toint() + place * 2, low, high)
        if cutlass.const_expr(lse is not None):
            self.store_lse(row, thread, lse_in_form(self.form, top, total, sink), lse)

    @cute.jit
    def store_lse(
        self, row: cutlass.Int32, thread: cutlass.Int32, value: cutlass.Float32, lse: cute.Tensor
    ) -> None:
        if thread == 0:
            lse[row] = value

    @cute.jit
    def split_lse(self, lse_part: cute.Tensor, lane: cutlass.Int32, row: cutlass.Int32) -> cutlass.Float32:
        """lse_part of the split of this lane; -inf past the last split."""
        found = F32(-inf)
        if lane < cute.size(lse_part, mode=[0]):
            found = lse_part[lane, row]
        return found

    def sink_of(self, attn_sink: cute.Tensor, row: Any) -> Any:
        """The sink of the row's head in base 2; None without sinks."""
        return None if attn_sink is None else sink_log2(attn_sink[row % cute.size(attn_sink)])
