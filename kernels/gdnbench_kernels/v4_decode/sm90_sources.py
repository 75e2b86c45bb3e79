# SPDX-License-Identifier: Apache-2.0
"""The source of v4_decode's kernel named `wgmma`; see `sources`."""

from __future__ import annotations

from typing import Any

from gdnbench_kernels.source import Source
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.swa_decode.sources import ALIGN, Build, Layout, ScaleDtype, check_options, examples
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.sm90_plan import Tuning
from gdnbench_kernels.v4_decode.sources import Base, EmptyForm, SinkForm, merge_source

DEFAULT = Tuning()
LAYOUTS: dict[CacheLayout, Layout] = {
    CacheLayout.PER_TOKEN_SCALE: "per_token_scale",
    CacheLayout.FP8_DS_MLA: "fp8_ds_mla",
}


def wgmma_sources(
    heads: int = 64,
    cache_layout: Layout = "per_token_scale",
    scale_dtype: ScaleDtype | None = "float32",
    sink: bool = True,
    lse: bool = True,
    lse_base: Base = "e",
    lse_sink: SinkForm = "without",
    lse_empty: EmptyForm = "minus_inf",
    rows: int = DEFAULT.rows,
    prefetch: int = DEFAULT.prefetch,
) -> list[Source]:
    """The kernel named `wgmma`, for sm_90a alone: without splits, with splits, and the merge of splits.

    heads: H. cache_layout: how pages of both caches hold their rows. scale_dtype: that of inv_scale, of
    per_token_scale alone. sink: whether there is an attn_sink. lse: whether it is an output, in the form of
    lse_base, lse_sink and lse_empty. The others are Tuning's.
    """
    dtype = scale_dtype if cache_layout == "per_token_scale" else None
    form = LseForm(lse_base, lse_sink, lse_empty)
    tuning = Tuning(rows, prefetch, layout=CacheLayout(cache_layout))
    return [
        wgmma_source(heads, dtype, sink, lse, form, tuning),
        wgmma_source(heads, dtype, False, True, None, tuning),
        merge_source(sink, lse, lse_base, lse_sink, lse_empty),
    ]


def wgmma_source(
    heads: int,
    scale_dtype: ScaleDtype | None,
    sink: bool,
    lse: bool,
    form: LseForm | None,
    tuning: Tuning,
) -> Source:
    """`WgmmaSegments`; `form` None: with partial outputs, without a sink."""
    check_options(heads, LAYOUTS[tuning.layout], scale_dtype)
    parts = "wgmma_parts" if form is None else "wgmma_segments"
    return Source.create(
        f"v4_decode.{parts}",
        f"{__name__}:build_wgmma",
        heads=heads,
        cache_layout=tuning.layout.value,
        scale_dtype=scale_dtype,
        sink=sink,
        lse=lse,
        lse_base=form.base if form else None,
        lse_sink=form.sink if form else None,
        lse_empty=form.empty if form else None,
        rows=tuning.rows,
        prefetch=tuning.prefetch,
    )


def build_wgmma(
    heads: int,
    cache_layout: Layout,
    scale_dtype: ScaleDtype | None,
    sink: bool,
    lse: bool,
    lse_base: str | None,
    lse_sink: str | None,
    lse_empty: str | None,
    rows: int,
    prefetch: int,
) -> Build:
    """The arguments are those of `WgmmaSegments`."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_tensor

    from gdnbench_kernels.v4_decode.kernel_sm90 import WgmmaSegments

    make: Any = make_fake_tensor
    q, pages, scales, indices, lens, attn_sink, o, lse_out, scale, shift, stream = examples(
        heads, scale_dtype, sink, lse
    )
    _, more_pages, more_scales, *_ = examples(heads, scale_dtype, sink, lse)
    form = None
    if lse_base is not None and lse_sink is not None and lse_empty is not None:
        form = LseForm(lse_base, lse_sink, lse_empty)
    parts = cute.sym_int()
    if form is None:
        o = make(cutlass.Float32, (parts, HEAD_DIM), (HEAD_DIM, 1), assumed_align=ALIGN)
        lse_out = make(cutlass.Float32, (parts,), (1,), assumed_align=4)
    tuning = Tuning(rows, prefetch, layout=CacheLayout(cache_layout))
    kernel = WgmmaSegments(heads, tuning, form)
    number = cutlass.Int32(1)
    return kernel, (
        *(q, pages, scales, indices, lens, more_pages, more_scales),
        make(cutlass.Int32, (cute.sym_int(), cute.sym_int()), (cute.sym_int64(), 1), assumed_align=4),
        make(cutlass.Int32, (cute.sym_int(),), (1,), assumed_align=4),
        *(attn_sink, o, lse_out, scale, shift, number, number, number, number, stream),
    )
