# SPDX-License-Identifier: Apache-2.0
"""Kernels for the simulator that lack something: a wait, so that results depend on when a copy lands, or a
fence, which no result shows.

v goes through shared memory, tile after tile: two warps write the one buffer, a bulk copy of the first stores
it. Both have to have written before the copy, and the copy has to have read before the next tile is written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.cute.runtime as runtime
import torch
from cutlass.cute.nvgpu import cpasync
from torch import Tensor

from gdnbench import sim
from gdnbench_kernels.gdn_prefill.torch_chunked import torch_chunked

THREADS, TILES = 64, 2


@cute.kernel
def _pass_on(
    x: cute.Tensor, z: cute.Tensor, gathers: cutlass.Int32, waits: cutlass.Int32, fences: cutlass.Int32
):
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    s_x = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(THREADS), 16)
    store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), cutlass.Float32)
    for tile in cutlass.range_constexpr(TILES):
        s_x[thread] = x[tile * THREADS + thread]
        if fences != 0:
            cute.arch.fence_proxy("async.shared", space="cta")
        if gathers != 0:
            cute.arch.sync_threads()
        if warp == 0:
            with cute.arch.elect_one():
                cute.copy(store, s_x, cute.local_tile(z, (THREADS,), (tile,)))
                cute.arch.cp_async_bulk_commit_group()
        cute.arch.sync_threads()
        if waits != 0 and warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.sync_threads()
    if warp == 0:
        cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def _launch(
    x: cute.Tensor,
    z: cute.Tensor,
    gathers: cutlass.Int32,
    waits: cutlass.Int32,
    fences: cutlass.Int32,
    stream: cuda.CUstream,
):
    _pass_on(x, z, gathers, waits, fences).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)


@cache
def _compiled() -> Any:
    fake = runtime.make_fake_tensor(cutlass.Float32, (THREADS * TILES,), (1,), assumed_align=16)
    return sim.compile(_launch, fake, fake, 1, 1, 1, runtime.make_fake_stream())


def _kernel(
    gathers: bool = True, waits: bool = True, fences: bool = True
) -> Callable[..., dict[str, Tensor]]:
    def kernel(
        *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor, **_: Any
    ) -> dict[str, Tensor]:
        x = v.float().flatten()
        z = torch.zeros_like(x)
        sim.launch(_compiled(), x, z, int(gathers), int(waits), int(fences))
        passed_on = z.view(v.shape).to(v.dtype)
        return torch_chunked(q=q, k=k, v=passed_on, g=g, beta=beta, cu_seqlens=cu_seqlens)

    return kernel


right = _kernel()
stores_too_early = _kernel(gathers=False)
writes_too_early = _kernel(waits=False)
fences_nothing = _kernel(fences=False)
