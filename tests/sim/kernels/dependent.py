# SPDX-License-Identifier: Apache-2.0
"""Two CuTe DSL kernels of one call: `early`, the second may start before the first has ended; `waits`, it
waits for that end before it reads what the first writes."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

THREADS = 64


class FillAndDouble:
    """x = 0, 1, ...; y = 2 x."""

    def __init__(self, early: bool, waits: bool) -> None:
        self.early, self.waits = early, waits

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream) -> None:
        self.fill(x).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)
        self.double(x, y).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream, use_pdl=self.early)

    @cute.kernel
    def fill(self, x: cute.Tensor) -> None:
        thread = cute.arch.thread_idx()[0]
        cute.arch.griddepcontrol_launch_dependents()
        x[thread] = cutlass.Float32(thread)  # written

    @cute.kernel
    def double(self, x: cute.Tensor, y: cute.Tensor) -> None:
        thread = cute.arch.thread_idx()[0]
        if cutlass.const_expr(self.waits):
            cute.arch.griddepcontrol_wait()
        y[thread] = x[thread] * cutlass.Float32(2.0)  # read
