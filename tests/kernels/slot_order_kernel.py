# SPDX-License-Identifier: Apache-2.0
"""`slot_order.sequence_at` as a kernel of its own: a warp for each place of the order."""

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_decode.slot_order import sequence_at
from gdnbench_kernels.plan import WARP


@dataclass(frozen=True)
class Order:
    """order[n] = the sequence whose slot is number n; slots has WARP x `per_lane` elements."""

    per_lane: int

    @cute.jit
    def __call__(self, slots: cute.Tensor, order: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(slots, order).launch(grid=(cute.size(order), 1, 1), block=(WARP, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, slots: cute.Tensor, order: cute.Tensor) -> None:
        lane, place = cute.arch.lane_idx(), cute.arch.block_idx()[0]
        keys = [cutlass.Int32(slots[number * WARP + lane]) for number in range(self.per_lane)]
        found = sequence_at(place, keys)
        if lane == 0:
            order[place] = found
