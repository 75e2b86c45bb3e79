# SPDX-License-Identifier: Apache-2.0
"""The source of the kernel named `wgmma`; see `sources`."""

from __future__ import annotations

from gdnbench_kernels.source import Source
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sm90_plan import Tuning
from gdnbench_kernels.swa_decode.sources import Build, Layout, ScaleDtype, check_options, examples

DEFAULT = Tuning()


def wgmma_sources(
    heads: int = 64,
    cache_layout: Layout = "per_token_scale",
    scale_dtype: ScaleDtype | None = "float32",
    sink: bool = True,
    lse: bool = True,
    rows: int = DEFAULT.rows,
    prefetch: int = DEFAULT.prefetch,
    pdl: bool = DEFAULT.pdl,
) -> list[Source]:
    """The kernel named `wgmma`, for sm_90a alone.

    heads: H. cache_layout: how pages hold their rows. scale_dtype: that of inv_scale, of per_token_scale
    alone. sink: whether there is an attn_sink. lse: whether it is an output. The others are Tuning's.
    """
    dtype = scale_dtype if cache_layout == "per_token_scale" else None
    return [wgmma_source(heads, cache_layout, dtype, sink, lse, Tuning(rows, prefetch, pdl=pdl))]


def wgmma_source(
    heads: int, cache_layout: Layout, scale_dtype: ScaleDtype | None, sink: bool, lse: bool, tuning: Tuning
) -> Source:
    """`WgmmaDecode`, which also takes the number of CTAs."""
    check_options(heads, cache_layout, scale_dtype)
    return Source.create(
        "swa_decode.wgmma_decode",
        f"{__name__}:build_wgmma",
        heads=heads,
        cache_layout=str(cache_layout),
        scale_dtype=scale_dtype,
        sink=sink,
        lse=lse,
        rows=tuning.rows,
        prefetch=tuning.prefetch,
        pdl=tuning.pdl,
    )


def build_wgmma(
    heads: int,
    cache_layout: Layout,
    scale_dtype: ScaleDtype | None,
    sink: bool,
    lse: bool,
    pdl: bool,
    **tuning: int,
) -> Build:
    """The arguments of `sources`, then workers."""
    import cutlass

    from gdnbench_kernels.swa_decode.kernel_sm90 import WgmmaDecode

    *arguments, stream = examples(heads, scale_dtype, sink, lse)
    kernel = WgmmaDecode(heads, CacheLayout(cache_layout), Tuning(**tuning, pdl=pdl))
    return kernel, (*arguments, cutlass.Int32(1), stream)
