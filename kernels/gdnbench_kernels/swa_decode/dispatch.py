"""From how many requests on `wgmma` is the faster kernel of swa_decode on sm_90."""

from __future__ import annotations

from gdnbench_kernels.programs import SM90
from gdnbench_kernels.swa_decode.launch_args import Arguments
from gdnbench_kernels.swa_decode.layouts import CacheLayout

WGMMA_FROM = {
    (CacheLayout.PER_TOKEN_SCALE, 64): 192,
    (CacheLayout.PER_TOKEN_SCALE, 128): 96,
    (CacheLayout.FP8_DS_MLA, 64): 192,
    (CacheLayout.FP8_DS_MLA, 128): 64,
}
"""By layout and heads: requests from which on it took less time than `portable` wherever both were measured,
on an H200; the table is in docs/swa_decode.md."""


def wgmma_is_faster(given: Arguments, arch: str) -> bool:
    """Of numbers of heads that are not measured: no."""
    least = WGMMA_FROM.get((given.layout, given.heads))
    return arch == SM90 and least is not None and given.tokens >= least
