# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a serving engine's kernel: a kernel for the simulator with the races of `scheduled`, in the
file of a repository, of which each revision is a text.

v goes through shared memory, tile after tile, and is scaled. Without the barrier that gathers both warps the
store may read too early: the checker finds it, and numbers show it under the schedule `early` alone.
"""

from __future__ import annotations

BEGIN = """
from functools import cache

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.cute.runtime as runtime
import torch
from cutlass.cute.nvgpu import cpasync

from gdnbench import sim
from gdnbench_kernels.gdn_prefill.torch_chunked import torch_chunked

THREADS, TILES = 64, 2


@cute.kernel
def _pass_on(x: cute.Tensor, z: cute.Tensor):
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    s_x = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(THREADS), 16)
    store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), cutlass.Float32)
    for tile in cutlass.range_constexpr(TILES):
        s_x[thread] = x[tile * THREADS + thread]
        cute.arch.fence_proxy("async.shared", space="cta")
        if warp == 0:
            with cute.arch.elect_one():
                cute.copy(store, s_x, cute.local_tile(z, (THREADS,), (tile,)))
                cute.arch.cp_async_bulk_commit_group()
        cute.arch.sync_threads()
        if warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.sync_threads()
    if warp == 0:
        cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def _launch(x: cute.Tensor, z: cute.Tensor, stream: cuda.CUstream):
    _pass_on(x, z).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)


@cache
def _compiled():
    fake = runtime.make_fake_tensor(cutlass.Float32, (THREADS * TILES,), (1,), assumed_align=16)
    return sim.compile(_launch, fake, fake, runtime.make_fake_stream())


def kernel(*, q, k, v, g, beta, cu_seqlens, **_):
    x = v.float().flatten()
    z = torch.zeros_like(x)
    sim.launch(_compiled(), x, z)
    passed_on = z.view(v.shape).to(v.dtype)
    return torch_chunked(q=q, k=k, v=passed_on, g=g, beta=beta, cu_seqlens=cu_seqlens)
"""
OFF_BY_ONE = BEGIN.replace("= x[tile * THREADS + thread]", "= x[tile * THREADS + (thread + 1) % THREADS]")
MOVED = BEGIN.replace("\n\n@cute.kernel", "\n# A comment that moves every line below.\n\n\n@cute.kernel", 1)
UNWAITED = MOVED.replace("cp_async_bulk_wait_group(0, read=True)", "fence_view_async_shared()")
"""Another race: the copy may not have read yet when the next tile is written."""
CRASHES = BEGIN.replace(
    "    x = v.float()", "    raise RuntimeError('no shape like this')\n    x = v.float()"
)
