"""The kernel named `sm100` of swa_decode: one launch of `Tcgen05Decode` (kernel_sm100.py), for SM100.

The host reads nothing back from the device and no shape depends on values, so a call can be captured into a
CUDA graph; with the caller's outputs it allocates nothing. The kernel is compiled per number of heads,
layout, dtype of scales, and presence of a sink and lse; the first such call compiles it or finds it in the
cache.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.gpu import multiprocessors
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.programs import BLACKWELL, compiled
from gdnbench_kernels.swa_decode.launch_args import arch_of, prepare
from gdnbench_kernels.swa_decode.params import SwaBufferParams
from gdnbench_kernels.swa_decode.sizes import TILE_HEADS
from gdnbench_kernels.swa_decode.sources import PART_COUNTS, sm100_source

__all__ = ["launch_of", "sm100"]


@takes_params(SwaBufferParams)
def sm100(
    params: SwaBufferParams,
    *,
    parts: int | None = None,
    workers: int | None = None,
) -> dict[str, Tensor]:
    """o [T, H, 512] bfloat16, and on request lse [T, H] float32, written to the tensors of that name if they
    are given.

    The grid is `parts` (1, 2 or 4), which divide the features of o, by `workers`; None takes those of
    `launch_of`. They do not change the result. Raises NotImplementedError for a call that the kernel does not
    support or for another GPU, ValueError for an invalid call.
    """
    given = prepare(params)
    sms = multiprocessors(given.device)
    wanted_parts, wanted_workers = launch_of(given.tokens, given.heads, sms, parts)
    made = compiled(
        arch_of(given.device, BLACKWELL),
        sm100_source,
        given.heads,
        given.layout.value,
        given.scale_dtype,
        given.attn_sink is not None,
        given.lse is not None,
    )
    given.launch(made, wanted_parts, wanted_workers if workers is None else workers)
    return given.finish()


def launch_of(tokens: int, heads: int, sms: int, parts: int | None = None) -> tuple[int, int]:
    """(parts, CTAs per part): the most parts with which every item has its own SM, else one, since each part
    gathers the whole window; at most one CTA per SM."""
    items = tokens * -(-heads // TILE_HEADS)
    if parts is None:
        parts = next((count for count in reversed(PART_COUNTS) if items * count <= sms), 1)
    if parts not in PART_COUNTS:
        raise ValueError(f"parts is {', '.join(map(str, PART_COUNTS))}, not {parts}")
    return parts, max(1, min(sms // parts, items))
