"""The sources of v4_decode's kernel named `sm100`: the host object and the types of its arguments."""

from __future__ import annotations

from typing import Any, Literal

from gdnbench_kernels.source import Source
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.swa_decode.sources import ALIGN, Build, Layout, ScaleDtype, check_options, examples
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.segments import IndexForm

Form = Literal["indices", "block_table"]


def sm100_sources(
    heads: int = 64,
    cache_layout: Layout = "per_token_scale",
    scale_dtype: ScaleDtype | None = "float32",
    extra_layout: Layout = "per_token_scale",
    extra_index_form: Form = "indices",
    sink: bool = True,
    lse: bool = True,
) -> list[Source]:
    """The kernel named `sm100`: for a call that it does not split, and for one that it splits.

    heads: H. cache_layout, extra_layout: how pages hold their rows. scale_dtype: that of both inv_scale, of
    per_token_scale alone. extra_index_form: what extra_indices holds. sink: whether there is an attn_sink.
    lse: whether it is an output.
    """
    dtypes = [scale_dtype if one == "per_token_scale" else None for one in (cache_layout, extra_layout)]
    segments = (cache_layout, dtypes[0], extra_layout, dtypes[1], extra_index_form)
    form = ("e", "without", "minus_inf") if lse else (None, None, None)
    return [
        sm100_source(heads, *segments, sink, lse, False, *form),
        sm100_source(heads, *segments, False, True, True, None, None, None),
    ]


def sm100_source(
    heads: int,
    cache_layout: Layout,
    scale_dtype: ScaleDtype | None,
    extra_layout: Layout | None,
    extra_scale_dtype: ScaleDtype | None,
    extra_index_form: Form | None,
    sink: bool,
    lse: bool,
    partial: bool,
    lse_base: str | None,
    lse_sink: str | None,
    lse_empty: str | None,
) -> Source:
    """`Tcgen05Segments`. extra_layout: None without an extra segment. partial: it writes what `splits` says
    of each split, without the sink and in no form."""
    check_options(heads, cache_layout, scale_dtype)
    if extra_layout is not None:
        check_options(heads, extra_layout, extra_scale_dtype)
    return Source.create(
        "v4_decode.tcgen05_segments",
        f"{__name__}:build_sm100",
        heads=heads,
        cache_layout=cache_layout,
        scale_dtype=scale_dtype,
        extra_layout=extra_layout,
        extra_scale_dtype=extra_scale_dtype,
        extra_index_form=extra_index_form,
        sink=sink,
        lse=lse,
        partial=partial,
        lse_base=lse_base,
        lse_sink=lse_sink,
        lse_empty=lse_empty,
    )


def build_sm100(
    heads: int,
    cache_layout: Layout,
    scale_dtype: ScaleDtype | None,
    extra_layout: Layout | None,
    extra_scale_dtype: ScaleDtype | None,
    extra_index_form: Form | None,
    sink: bool,
    lse: bool,
    partial: bool,
    lse_base: str | None,
    lse_sink: str | None,
    lse_empty: str | None,
) -> Build:
    """The arguments are those of `Tcgen05Segments`."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_tensor

    from gdnbench_kernels.v4_decode.kernel_sm100 import Tcgen05Segments

    make: Any = make_fake_tensor
    q, pages, scales, entries, lens, sinks, o, lses, scale, shift, stream = examples(
        heads, scale_dtype, sink, lse
    )
    extra: tuple[Any, ...] = (None,) * 4
    if extra_layout is not None:
        extra = examples(heads, extra_scale_dtype, False, False)[1:5]
    form = None
    if partial:
        features = (cute.sym_int64(divisibility=HEAD_DIM), heads * HEAD_DIM, HEAD_DIM, 1)
        splits = cute.sym_int()
        o = make(cutlass.Float32, (splits, q.shape[0], heads, HEAD_DIM), features, assumed_align=ALIGN)
        strides = (cute.sym_int64(), heads, 1)
        lses = make(cutlass.Float32, (splits, q.shape[0], heads), strides, assumed_align=4)
    elif lse:
        form = LseForm(str(lse_base), str(lse_sink), str(lse_empty))
    layouts = CacheLayout(cache_layout), None if extra_layout is None else CacheLayout(extra_layout)
    kernel = Tcgen05Segments(heads, *layouts, extra_index_form == IndexForm.BLOCK_TABLE, form, partial)
    one = cutlass.Int32(1)
    arguments = (q, pages, scales, entries, lens, *extra, sinks, o, lses, scale, shift, one, one, one, one)
    return kernel, (*arguments, stream)
