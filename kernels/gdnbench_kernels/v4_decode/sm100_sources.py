"""The sources of v4_decode's kernel named `sm100`: the host objects and the types of their arguments, which
are those of `sources`, then parts, workers."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gdnbench_kernels.source import Source
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sources import Build, Layout, ScaleDtype
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.sources import (
    Base,
    EmptyForm,
    ExtraLayout,
    SinkForm,
    examples,
    portable_source,
    portable_sources,
)


def sm100_sources(
    heads: int = 64,
    cache_layout: Layout = "fp8_ds_mla",
    scale_dtype: ScaleDtype | None = "float32",
    extra_layout: ExtraLayout = "fp8_ds_mla",
    extra_scale_dtype: ScaleDtype | None = "float32",
    sink: bool = True,
    lse: bool = True,
    lse_base: Base = "e",
    lse_sink: SinkForm = "without",
    lse_empty: EmptyForm = "minus_inf",
) -> list[Source]:
    """The kernels of `sm100`: that of unsplit queries, that of splits, and the merge.

    heads: H. cache_layout, extra_layout: how pages hold their rows; none without an extra segment.
    scale_dtype, extra_scale_dtype: those of the scales, of per_token_scale alone. sink: whether there is an
    attn_sink. lse: whether it is an output; lse_base, lse_sink, lse_empty: its form.
    """
    pools = (heads, cache_layout, scale_dtype, extra_layout, extra_scale_dtype)
    found = portable_sources(*pools, sink, lse, lse_base, lse_sink, lse_empty)
    names = {"v4_decode.mma_sync_tiles": False, "v4_decode.mma_sync_splits": True}
    return [_renamed(one, names[one.name]) if one.name in names else one for one in found]


def sm100_source(*options: Any) -> Source:
    """`Tcgen05Segments`, with the options of `sources.portable_source`."""
    found = portable_source(*options)
    return _renamed(found, bool(dict(found.options)["split"]))


def _renamed(source: Source, split: bool) -> Source:
    name = f"v4_decode.tcgen05_{'splits' if split else 'segments'}"
    return replace(source, name=name, target=f"{__name__}:build_sm100")


def build_sm100(
    heads: int,
    cache_layout: Layout,
    scale_dtype: ScaleDtype | None,
    extra_layout: ExtraLayout,
    extra_scale_dtype: ScaleDtype | None,
    split: bool,
    sink: bool,
    lse: bool,
    lse_base: Base,
    lse_sink: SinkForm,
    lse_empty: EmptyForm,
) -> Build:
    """The arguments are those of `sources`, then parts, workers."""
    import cutlass

    from gdnbench_kernels.v4_decode.kernel_sm100 import Tcgen05Segments

    extra = None if extra_layout == "none" else CacheLayout(extra_layout)
    form = LseForm(lse_base, lse_sink, lse_empty)
    kernel = Tcgen05Segments(heads, CacheLayout(cache_layout), extra, split, form)
    pools = (scale_dtype,) if extra is None else (scale_dtype, extra_scale_dtype)
    *arguments, stream = examples(heads, pools, split, sink, lse)
    return kernel, (*arguments, cutlass.Int32(1), cutlass.Int32(1), stream)
