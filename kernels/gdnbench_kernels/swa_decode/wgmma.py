"""The kernel named `wgmma` of swa_decode: one launch of `WgmmaDecode` (kernel_sm90.py), for SM90.

As in `portable`, the host reads nothing back, a call can be captured into a CUDA graph, and the kernel is
compiled per number of heads, layout, dtype of scales, presence of a sink and lse, and `Tuning`.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.gpu import capability_of, multiprocessors
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.programs import SM90, compiled
from gdnbench_kernels.swa_decode.launch_args import Arguments, arch_of, prepare
from gdnbench_kernels.swa_decode.params import SwaBufferParams
from gdnbench_kernels.swa_decode.sm90_plan import ROWS, Tuning
from gdnbench_kernels.swa_decode.sm90_sources import DEFAULT, wgmma_source

__all__ = ["wgmma"]


@takes_params(SwaBufferParams)
def wgmma(
    params: SwaBufferParams,
    *,
    workers: int | None = None,
    rows: int | None = None,
    prefetch: int = DEFAULT.prefetch,
    pdl: bool = DEFAULT.pdl,
) -> dict[str, Tensor]:
    """o [T, H, 512] bfloat16, and on request lse [T, H] float32, written to the tensors of that name if they
    are given.

    `workers` is the number of CTAs, at most one per item; None takes `workers_of`. `rows` is the number of
    heads per CTA; None takes `rows_of`. `prefetch` and `pdl` are those of `Tuning`. None of them changes the
    result. Raises NotImplementedError for a call that the kernel does not support or for another GPU,
    ValueError for an invalid call.
    """
    given = prepare(params)
    if capability_of(given.device) is not None and arch_of(given.device) != SM90:
        raise NotImplementedError(f"this kernel of swa_decode is compiled for {SM90} alone; take portable")
    return launch(given, workers, rows, prefetch, pdl)


def launch(
    given: Arguments,
    workers: int | None = None,
    rows: int | None = None,
    prefetch: int = DEFAULT.prefetch,
    pdl: bool = DEFAULT.pdl,
) -> dict[str, Tensor]:
    """Like `wgmma`, for a prepared call."""
    sms = multiprocessors(given.device, SM90)
    heads = rows_of(given, sms) if rows is None else rows
    items = given.tokens * -(-given.heads // heads)
    made = compiled(
        SM90,
        wgmma_source,
        given.heads,
        given.layout.value,
        given.scale_dtype,
        given.attn_sink is not None,
        given.lse is not None,
        Tuning(heads, prefetch, pdl=bool(pdl)),
    )
    given.launch(made, max(1, min(items, workers_of(items, sms) if workers is None else workers)))
    return given.finish()


def workers_of(items: int, sms: int) -> int:
    """The smallest number of CTAs for which the largest number of items per CTA is the same as with one CTA
    per SM: more CTAs would only compete for bandwidth."""
    each = -(-items // sms)
    return -(-items // each) if each else 1


def rows_of(given: Arguments, sms: int) -> int:
    """Heads per CTA: the fewest with which every CTA has its own SM, else the most, since every CTA of a
    token gathers its window."""
    return next((rows for rows in ROWS if given.tokens * -(-given.heads // rows) <= sms), ROWS[-1])
