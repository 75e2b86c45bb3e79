"""The kernel named `sm100` of v4_decode: one launch of `Tcgen05Segments` (kernel_sm100.py), for SM100, and of
`MergeSplits` where queries are split.

The host reads nothing back from the device and no shape depends on values, so a call can be captured into a
CUDA graph; with the caller's outputs it allocates only partial outputs, if queries are split. The kernel is
compiled per number of heads, layouts, dtypes of scales, form of lse, and presence of an extra segment, a sink
and lse; the first such call compiles it or finds it in the cache.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.compiling import Program
from gdnbench_kernels.gpu import multiprocessors
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.programs import BLACKWELL, compiled
from gdnbench_kernels.swa_decode.sizes import MAX_WINDOW, TILE_HEADS
from gdnbench_kernels.swa_decode.sm100 import launch_of
from gdnbench_kernels.v4_decode.launch_args import V4Arguments, arch_of, prepare
from gdnbench_kernels.v4_decode.params import V4BufferParams
from gdnbench_kernels.v4_decode.partials import Partials
from gdnbench_kernels.v4_decode.sm100_sources import sm100_source
from gdnbench_kernels.v4_decode.splits import SplitPlan, query_tiles

__all__ = ["sm100"]


@takes_params(V4BufferParams)
def sm100(
    params: V4BufferParams,
    *,
    splits: int | None = None,
    parts: int | None = None,
    workers: int | None = None,
) -> dict[str, Tensor]:
    """o [B, S, H, 512] bfloat16, and on request lse [B, S, H] float32, written to the tensors of that name if
    they are given.

    The grid is `parts` (1, 2 or 4), which divide the features of o, by `workers`, by `splits`, which divide
    the entries of a query; None takes what suits the GPU. Only `splits` changes the result, within the error
    that `kernel_merge` states. Raises NotImplementedError for a call that the kernel does not support or for
    another GPU, ValueError for an invalid call.
    """
    given = prepare(params)
    arch = arch_of(given.device, BLACKWELL)
    if not given.rows:
        return given.finish()
    sms = multiprocessors(given.device)
    chosen = split_plan(given, sms, splits).splits
    wanted_parts, wanted_workers = launch_of(given.rows, given.heads, max(1, sms // chosen), parts)
    grid = wanted_parts, wanted_workers if workers is None else workers
    if chosen == 1:
        given.launch(_program(given, arch, split=False), given.o, given.lse, 1, *grid)
        return given.finish()
    partials = Partials.allocate(chosen, given.rows * given.heads, given.device)
    given.launch(_program(given, arch, split=True), partials.o, partials.lse, chosen, *grid)
    partials.merge(arch, given.attn_sink, given.o, given.lse, given.form)
    return given.finish()


def split_plan(given: V4Arguments, sms: int, splits: int | None = None) -> SplitPlan:
    """The splits of a call on a GPU with that many SMs, `splits` if it is given. Raises ValueError if there
    cannot be so many."""
    if splits is not None and splits > 1 and given.extra is None:
        raise ValueError(f"splits is {splits}; without an extra segment it must be 1")
    if splits is not None or given.extra is None:
        return SplitPlan(1 if splits is None else splits)
    tiles = query_tiles(given.window.capacity, given.extra.capacity, MAX_WINDOW)
    return SplitPlan.choose(given.rows * -(-given.heads // TILE_HEADS), sms, tiles)


def _program(given: V4Arguments, arch: str, *, split: bool) -> Program:
    extra = given.extra
    return compiled(
        arch,
        sm100_source,
        given.heads,
        given.window.layout.value,
        given.window.scale_dtype,
        "none" if extra is None else extra.layout.value,
        None if extra is None else extra.scale_dtype,
        split,
        given.attn_sink is not None,
        given.lse is not None,
        given.form.base,
        given.form.sink,
        given.form.empty,
    )
