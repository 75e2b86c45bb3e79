# SPDX-License-Identifier: Apache-2.0
"""The number of requests from which `wgmma` is the faster kernel of swa_decode on sm_90."""

from __future__ import annotations

from gdnbench_kernels.programs import SM90
from gdnbench_kernels.swa_decode.launch_args import Arguments
from gdnbench_kernels.swa_decode.layouts import CacheLayout

WGMMA_FROM = {
    (CacheLayout.PER_TOKEN_SCALE, 64): 128,
    (CacheLayout.PER_TOKEN_SCALE, 128): 64,
    (CacheLayout.FP8_DS_MLA, 64): 128,
    (CacheLayout.FP8_DS_MLA, 128): 64,
}
"""By layout and heads: the number of requests from which `wgmma` took less time than `portable` in all
measurements on an H200; docs/swa_decode.md has the table."""


def wgmma_is_faster(given: Arguments, arch: str) -> bool:
    """Whether `wgmma` was measured to be faster for such a call; False for numbers of heads that were not
    measured."""
    least = WGMMA_FROM.get((given.layout, given.heads))
    return arch == SM90 and least is not None and given.tokens >= least
