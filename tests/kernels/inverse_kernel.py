# SPDX-License-Identifier: Apache-2.0
"""`inverse.invert` as a kernel of its own: matrices from global memory, their inverses to global memory.

    x[n] = (I + a[n])^-1            a, x: [matrices, 64, 64] f32, a strictly lower

A CTA of four warps inverts the matrices b, b + ctas, .. one after the other in one scratch, as a persistent
kernel does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline

from gdnbench_kernels.gdn_prefill import inverse

THREADS = 128
BARRIER = 1
VALUES = 32
"""Elements of a matrix that a thread holds."""


@dataclass(frozen=True)
class Leaky:
    """A named barrier without those of its uses, in the order of the code, that `without` names: a bug."""

    barrier: pipeline.NamedBarrier
    without: Collection[int]
    uses: count[int] = field(default_factory=count)

    def arrive_and_wait(self) -> None:
        if next(self.uses) not in self.without:
            self.barrier.arrive_and_wait()


class Inverse:
    """`split` as in `inverse.buffers`; `without`: uses of the barrier that are left out."""

    def __init__(self, ctas: int, split: bool = False, without: Collection[int] = ()) -> None:
        self.ctas, self.split, self.without = ctas, split, without

    @cute.jit
    def __call__(self, a: cute.Tensor, x: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(a, x).launch(grid=(self.ctas, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, a: cute.Tensor, x: cute.Tensor) -> None:
        smem = cutlass.memory.SmemAllocator()
        scratch = inverse.Scratch.allocate(smem, self.split)
        barrier = pipeline.NamedBarrier(barrier_id=BARRIER, num_threads=THREADS)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        row, column = inverse.BLOCK * warp + lane // 4, 2 * (lane % 4)
        r_a = cute.make_rmem_tensor(VALUES, cutlass.Float32)
        for matrix in cutlass.range(cute.arch.block_idx()[0], a.shape[0], self.ctas, unroll=1):
            for i in cutlass.range_constexpr(VALUES):
                r_a[i] = a[matrix, row + 8 * (i // 2 % 2), column + 8 * (i // 4) + i % 2]
            inverse.invert(r_a, scratch, warp, lane, Leaky(barrier, self.without))
            for i in cutlass.range_constexpr(VALUES):
                x[matrix, row + 8 * (i // 2 % 2), column + 8 * (i // 4) + i % 2] = r_a[i]
