# SPDX-License-Identifier: Apache-2.0
"""Small kernels for the tests of compiled programs: one with every kind of argument, one that spills."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

ROWS = 32
COLUMNS = 64


class Affine:
    """y = factor x + bias in rows below `count`, through a TMA load of ROWS rows a CTA; bias may be None."""

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        bias: cute.Tensor,
        y: cute.Tensor,
        count: cutlass.Int32,
        factor: cutlass.Float32,
        stream: cuda.CUstream,
    ) -> None:
        layout = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
        load, tma_x = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), x, layout, (ROWS, COLUMNS)
        )
        self.kernel(load, tma_x, bias, y, count, factor, layout).launch(
            grid=(cute.ceil_div(count, ROWS), 1, 1), block=(COLUMNS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        load: cute.CopyAtom,
        tma_x: cute.Tensor,
        bias: cute.Tensor,
        y: cute.Tensor,
        count: cutlass.Int32,
        factor: cutlass.Float32,
        layout: cute.Layout,
    ) -> None:
        smem = cutlass.memory.SmemAllocator()
        s_x = smem.allocate_tensor(cutlass.Float32, layout, 128)
        full = smem.allocate_array(cutlass.Int64, 1)
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        if thread == 0:
            cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:
            g_x = cute.local_tile(tma_x, (ROWS, COLUMNS), (block, 0))
            t_s, t_g = cpasync.tma_partition(
                load, 0, cute.make_layout(1), cute.group_modes(s_x, 0, 2), cute.group_modes(g_x, 0, 2)
            )
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, ROWS * COLUMNS * 4)
            cute.copy(load, t_g, t_s, tma_bar_ptr=full)
        cute.arch.mbarrier_wait(full, 0)
        for row in cutlass.range(ROWS, unroll=1):
            at = block * ROWS + row
            if at < count:
                value = s_x[row, thread] * factor
                if cutlass.const_expr(bias is not None):
                    value = value + bias[thread]
                y[at, thread] = value


def affine(with_bias: bool) -> tuple[Any, tuple[Any, ...]]:
    rows = cute.sym_int()
    matrix = (cutlass.Float32, (rows, COLUMNS), (COLUMNS, 1))
    bias = make_fake_tensor(cutlass.Float32, (COLUMNS,), (1,), assumed_align=16) if with_bias else None
    return Affine(), (
        make_fake_tensor(*matrix, assumed_align=16),
        bias,
        make_fake_tensor(*matrix, assumed_align=16),
        cutlass.Int32(1),
        cutlass.Float32(1.0),
        make_fake_stream(),
    )


def arguments(rows: int = 50, count: int = 45) -> tuple[Any, ...]:
    """x, bias, y full of NaN, count, factor."""
    x = torch.arange(rows * COLUMNS, dtype=torch.float32).reshape(rows, COLUMNS)
    y = torch.full((rows, COLUMNS), torch.nan)
    return x, torch.arange(COLUMNS, dtype=torch.float32), y, count, 0.5


def wanted(x: torch.Tensor, bias: torch.Tensor | None, count: int, factor: float) -> torch.Tensor:
    """Exact: integers and a power of two."""
    y = torch.full_like(x, torch.nan)
    y[:count] = x[:count] * factor + (0 if bias is None else bias)
    return y


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.equal(x.view(torch.int32), y.view(torch.int32))


VALUES = 60
THREADS = 1024


@cute.kernel
def spilling_kernel(x: cute.Tensor, y: cute.Tensor) -> None:
    """Twice VALUES values a thread, all live at the barrier, where a thread of 1024 has 64 registers."""
    thread = cute.arch.thread_idx()[0]
    r_a = cute.make_rmem_tensor((VALUES,), cutlass.Float32)
    r_b = cute.make_rmem_tensor((VALUES,), cutlass.Float32)
    for i in cutlass.range_constexpr(VALUES):
        r_a[i] = x[thread + i * THREADS]
        r_b[i] = x[thread + (VALUES + i) * THREADS]
    cute.arch.sync_threads()
    for i in cutlass.range_constexpr(VALUES):
        y[thread + i * THREADS] = r_a[i] + r_b[(i * 7 + 3) % VALUES] * r_a[(i * 13 + 50) % VALUES]


@cute.jit
def spilling_host(x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream) -> None:
    spilling_kernel(x, y).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)


def spilling() -> tuple[Any, tuple[Any, ...]]:
    vector = make_fake_tensor(cutlass.Float32, (cute.sym_int(),), (1,), assumed_align=16)
    return spilling_host, (vector, vector, make_fake_stream())
