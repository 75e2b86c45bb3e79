"""The kernel named `portable` of v4_decode: kernel_mma.py, and kernel_merge.py if queries are split. For SM90
and SM100.

The host reads nothing back from the device and no shape depends on values, so a call can be captured into a
CUDA graph. With the caller's outputs, of splits alone it allocates: their partial outputs, for each call.
Kernels are compiled per number of heads, layouts, dtypes of scales, form of lse, and
presence of an extra segment, a sink and lse; the first such call compiles them or finds them in the cache.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.compiling import Program
from gdnbench_kernels.gpu import multiprocessors
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.programs import compiled
from gdnbench_kernels.v4_decode.launch_args import V4Arguments, arch_of, prepare
from gdnbench_kernels.v4_decode.params import V4BufferParams
from gdnbench_kernels.v4_decode.partials import Partials
from gdnbench_kernels.v4_decode.portable_plan import CTAS_PER_SM, ROWS, TILE_ENTRIES
from gdnbench_kernels.v4_decode.sources import portable_source
from gdnbench_kernels.v4_decode.splits import SplitPlan, query_tiles

__all__ = ["portable"]


@takes_params(V4BufferParams)
def portable(
    params: V4BufferParams, *, arch: str | None = None, splits: int | None = None
) -> dict[str, Tensor]:
    """o [B, S, H, 512] bfloat16, and on request lse [B, S, H] float32, written to the tensors of that name if
    they are given.

    `arch` is the target; None takes the device's. `splits` is the number of CTAs among which the entries of a
    query are divided, 1 to 32; None takes that of `splits.SplitPlan`. With other splits sums are rounded
    otherwise. Raises NotImplementedError for a call that the kernel does not support, ValueError for an
    invalid one.
    """
    given = prepare(params)
    target = arch or arch_of(given.device)
    if not given.rows:
        return given.finish()
    plan = split_plan(given, multiprocessors(given.device, target)) if splits is None else SplitPlan(splits)
    if plan.splits == 1:
        given.launch(_program(given, target, split=False), given.o, given.lse, 1)
        return given.finish()
    partials = Partials.allocate(plan.splits, given.rows * given.heads, given.device)
    given.launch(_program(given, target, split=True), partials.o, partials.lse, plan.splits)
    partials.merge(target, given.attn_sink, given.o, given.lse, given.form)
    return given.finish()


def split_plan(given: V4Arguments, sms: int) -> SplitPlan:
    """The splits of a call on a GPU with that many SMs."""
    extra = 0 if given.extra is None else given.extra.capacity
    tiles = query_tiles(given.window.capacity, extra, TILE_ENTRIES)
    return SplitPlan.choose(given.rows * -(-given.heads // ROWS), sms * CTAS_PER_SM, tiles)


def _program(given: V4Arguments, target: str, *, split: bool) -> Program:
    extra = given.extra
    return compiled(
        target,
        portable_source,
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
