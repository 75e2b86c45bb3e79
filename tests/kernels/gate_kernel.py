# SPDX-License-Identifier: Apache-2.0
"""`gate_scan.rounded_decay` as a kernel of its own: y[i] = exp(x[i]), x not positive."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass.cute as cute

from gdnbench_kernels.gdn_prefill.gate_scan import rounded_decay

THREADS = 128


class Decay:
    """A thread an element; their number is a multiple of THREADS."""

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream) -> None:
        self.kernel(x, y).launch(grid=(cute.size(x) // THREADS, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor) -> None:
        i = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
        y[i] = rounded_decay(x[i])
