"""The kernel named `portable` of swa_decode: one launch of kernel_mma.py, for SM90 and SM100.

The host reads nothing back from the device and no shape depends on values, so a call can be captured into a
CUDA graph; with the caller's outputs it allocates nothing. The kernel is compiled per number of heads,
layout, dtype of scales, and presence of a sink and lse; the first such call compiles it or finds it in the
cache.

The kernel named `wgmma` rounds differently. A call uses it only on request: otherwise a row's bits would
depend on the number of requests.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gdnbench_kernels.gpu import multiprocessors
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.programs import compiled
from gdnbench_kernels.swa_decode import wgmma
from gdnbench_kernels.swa_decode.dispatch import wgmma_is_faster
from gdnbench_kernels.swa_decode.launch_args import Arguments, arch_of, prepare
from gdnbench_kernels.swa_decode.params import SwaBufferParams
from gdnbench_kernels.swa_decode.sources import PORTABLE_ROWS, portable_source

__all__ = ["portable"]


@takes_params(SwaBufferParams)
def portable(
    params: SwaBufferParams,
    *,
    arch: str | None = None,
    kernel: Literal["mma_sync", "faster"] = "mma_sync",
    pdl: bool = True,
) -> dict[str, Tensor]:
    """o [T, H, 512] bfloat16, and on request lse [T, H] float32, written to the tensors of that name if they
    are given.

    `arch` is the target; None takes the device's. `kernel`: with "faster" the call uses `wgmma` where that
    was measured to be faster; only then a row's bits depend on the number of requests. `pdl`: programmatic
    dependent launch, which the kernel named `mma_sync` may have; it does not change the result. Raises
    NotImplementedError for a call that the kernel does not support, ValueError for an invalid one.
    """
    if kernel not in ("mma_sync", "faster"):
        raise ValueError(f"kernel is {kernel!r}; it is mma_sync or faster")
    given = prepare(params)
    target = arch or arch_of(given.device)
    if kernel == "faster" and wgmma_is_faster(given, target):
        return wgmma.launch(given)
    made = compiled(
        target,
        portable_source,
        given.heads,
        given.layout.value,
        given.scale_dtype,
        given.attn_sink is not None,
        given.lse is not None,
        rows_of(given, target),
        bool(pdl),
    )
    given.launch(made)
    return given.finish()


def rows_of(given: Arguments, arch: str) -> int:
    """Heads per CTA: few while every CTA has its own SM, otherwise many, since every CTA of a token gathers
    its window."""
    few, many = PORTABLE_ROWS
    ctas = given.tokens * -(-given.heads // few)
    return many if given.heads > few and ctas > multiprocessors(given.device, arch) else few
