"""The sources of v4_decode's compiled kernels: the host objects and the types of their arguments.

An attention kernel takes q, the window's pages, inv_scale, indices, lens, the same four of the extra segment
(None without one), attn_sink, o, lse, scale, block_shift, extra_shift, extra_entry_shift, splits, as in
`launch_args`. The
numbers of requests, queries, entries, pages and splits are run-time values; heads, layouts, dtypes of scales,
the form of lse, and the presence of an extra segment, a sink, lse and splits are compiled in. The `build_`
function of a source imports CuTe DSL when the kernel is compiled.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any, Literal, get_args

from gdnbench_kernels.source import Source
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.swa_decode.sources import ALIGN, Build, Layout, ScaleDtype, check_options
from gdnbench_kernels.v4_decode.lse_forms import LseForm

ExtraLayout = Literal["none", "per_token_scale", "fp8_ds_mla"]
Base = Literal["e", "2"]
SinkForm = Literal["without", "with"]
EmptyForm = Literal["minus_inf", "plus_inf"]


def portable_sources(
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
    """The kernels of `portable`: that of unsplit queries, that of splits, and the merge.

    heads: H. cache_layout, extra_layout: how pages hold their rows; none without an extra segment.
    scale_dtype, extra_scale_dtype: those of the scales, of per_token_scale alone. sink: whether there is an
    attn_sink. lse: whether it is an output; lse_base, lse_sink, lse_empty: its form.
    """
    one = scale_dtype if cache_layout == "per_token_scale" else None
    other = extra_scale_dtype if extra_layout == "per_token_scale" else None
    pools = (cache_layout, one, extra_layout, other)
    form = (lse_base, lse_sink, lse_empty)
    found = [portable_source(heads, *pools, False, sink, lse, *form)]
    if extra_layout != "none":
        found += [portable_source(heads, *pools, True, sink, lse, *form), merge_source(sink, lse, *form)]
    return found


def portable_source(
    heads: int,
    cache_layout: Layout,
    scale_dtype: ScaleDtype | None,
    extra_layout: ExtraLayout,
    extra_scale_dtype: ScaleDtype | None,
    split: bool,
    sink: bool,
    lse: bool,
    lse_base: Base = "e",
    lse_sink: SinkForm = "without",
    lse_empty: EmptyForm = "minus_inf",
) -> Source:
    """`MmaSyncTiles`. With `split` it writes partial outputs, whatever sink, lse and its form are."""
    check_options(heads, cache_layout, scale_dtype)
    if extra_layout not in get_args(ExtraLayout):
        raise ValueError(f"extra_layout is {' or '.join(get_args(ExtraLayout))}, not {extra_layout!r}")
    if extra_layout != "none":
        check_options(heads, extra_layout, extra_scale_dtype)
    LseForm(lse_base, lse_sink, lse_empty)
    if split:
        sink, lse, lse_base, lse_sink, lse_empty = False, True, "2", "without", "minus_inf"
    return Source.create(
        f"v4_decode.mma_sync_{'splits' if split else 'tiles'}",
        f"{__name__}:build_portable",
        heads=heads,
        cache_layout=str(cache_layout),
        scale_dtype=scale_dtype,
        extra_layout=str(extra_layout),
        extra_scale_dtype=extra_scale_dtype,
        split=split,
        sink=sink,
        lse=lse,
        lse_base=lse_base,
        lse_sink=lse_sink,
        lse_empty=lse_empty,
    )


def merge_source(sink: bool, lse: bool, lse_base: Base, lse_sink: SinkForm, lse_empty: EmptyForm) -> Source:
    """`MergeSplits`. sink: whether there is an attn_sink. lse: whether it is an output, in that form."""
    LseForm(lse_base, lse_sink, lse_empty)
    return Source.create(
        "v4_decode.merge_splits",
        f"{__name__}:build_merge",
        sink=sink,
        lse=lse,
        lse_base=lse_base,
        lse_sink=lse_sink,
        lse_empty=lse_empty,
    )


def build_portable(
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
    """The arguments are those of the module."""
    from gdnbench_kernels.v4_decode.kernel_mma import MmaSyncTiles

    extra = extra_layout != "none"
    layouts = tuple(CacheLayout(name) for name in (cache_layout, extra_layout)[: 2 if extra else 1])
    kernel = MmaSyncTiles(heads, layouts, split, LseForm(lse_base, lse_sink, lse_empty))
    pools = (scale_dtype, extra_scale_dtype) if extra else (scale_dtype,)
    return kernel, examples(heads, pools, split, sink, lse)


def examples(
    heads: int, scale_dtypes: tuple[ScaleDtype | None, ...], split: bool, sink: bool, lse: bool
) -> tuple[Any, ...]:
    """Examples of the arguments that an attention kernel takes, with scales of those dtypes for each segment;
    they have only types. With `split`, o and lse are `Partials`."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    make: Any = make_fake_tensor
    tokens = cute.sym_int()
    rows = ((tokens, heads, HEAD_DIM), (heads * HEAD_DIM, HEAD_DIM, 1))
    pools: list[Any] = []
    for name in scale_dtypes:
        scales = None
        if name is not None:
            dtype, size = {"float32": (cutlass.Float32, 4), "bfloat16": (cutlass.BFloat16, 2)}[name]
            scales = make(dtype, (cute.sym_int(),), (1,), assumed_align=size)
        stride = cute.sym_int64(divisibility=ALIGN)
        pools += [
            make(cutlass.Uint8, (cute.sym_int(), cute.sym_int()), (stride, 1), assumed_align=ALIGN),
            scales,
            make(cutlass.Int32, (tokens, cute.sym_int()), (cute.sym_int64(), 1), assumed_align=4),
            make(cutlass.Int32, (tokens,), (1,), assumed_align=4),
        ]
    pools += [None] * (8 - len(pools))
    if split:
        outputs = partial_examples()
    else:
        outputs = (
            make(cutlass.BFloat16, *rows, assumed_align=ALIGN),
            make(cutlass.Float32, (tokens, heads), (heads, 1), assumed_align=4) if lse else None,
        )
    return (
        make(cutlass.BFloat16, *rows, assumed_align=ALIGN),
        *pools,
        make(cutlass.Float32, (heads,), (1,), assumed_align=4) if sink else None,
        *outputs,
        cutlass.Float32(1.0),
        cutlass.Int32(1),
        cutlass.Int32(1),
        cutlass.Int32(0),
        cutlass.Int32(1),
        make_fake_stream(),
    )


def partial_examples() -> tuple[Any, Any]:
    """Examples of `Partials`: o_part [n, R, 512] and lse_part [n, R]."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_tensor

    make: Any = make_fake_tensor
    splits, rows = cute.sym_int(), cute.sym_int()
    stride = cute.sym_int64(divisibility=HEAD_DIM)
    return (
        make(cutlass.Float32, (splits, rows, HEAD_DIM), (stride, HEAD_DIM, 1), assumed_align=ALIGN),
        make(cutlass.Float32, (splits, rows), (cute.sym_int64(), 1), assumed_align=4),
    )


def build_merge(sink: bool, lse: bool, lse_base: Base, lse_sink: SinkForm, lse_empty: EmptyForm) -> Build:
    """The arguments are those of `kernel_merge`, in the order of its table."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    from gdnbench_kernels.v4_decode.kernel_merge import MergeSplits

    make: Any = make_fake_tensor
    rows = cute.sym_int()
    return MergeSplits(LseForm(lse_base, lse_sink, lse_empty)), (
        *partial_examples(),
        make(cutlass.Float32, (cute.sym_int(),), (1,), assumed_align=4) if sink else None,
        make(cutlass.BFloat16, (rows, HEAD_DIM), (HEAD_DIM, 1), assumed_align=ALIGN),
        make(cutlass.Float32, (rows,), (1,), assumed_align=4) if lse else None,
        make_fake_stream(),
    )
