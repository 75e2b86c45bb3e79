"""The sources of swa_decode's compiled kernels: the host objects and the types of their arguments.

Every kernel takes q, pages, inv_scale, indices, lens, attn_sink, o, lse, scale, block_shift, as in
`launch_args.Arguments`. The numbers of tokens, entries and blocks, block size and page stride are run-time
values; heads, layout, the scales' dtype and the presence of a sink and lse are compiled in. The `build_`
function of a source imports CuTe DSL when the kernel is compiled.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any, Literal, get_args

from gdnbench_kernels.source import Source
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_HEADS

ALIGN = 16
"""Alignment of q, o and every page in bytes: one thread copies that many at once."""

Layout = Literal["per_token_scale", "fp8_ds_mla"]
ScaleDtype = Literal["float32", "bfloat16"]
SCALE_DTYPES: tuple[str, ...] = get_args(ScaleDtype)

PORTABLE_ROWS = (16, 32)
"""Heads per CTA of the portable kernel."""

PART_COUNTS = (1, 2, 4)
"""Numbers of CTAs among which the sm100 kernel may divide the features of o."""

Build = tuple[Any, tuple[Any, ...]]
"""The object to compile, and examples of its arguments."""


def portable_sources(
    heads: int = 64,
    cache_layout: Layout = "per_token_scale",
    scale_dtype: ScaleDtype | None = "float32",
    sink: bool = True,
    lse: bool = True,
) -> list[Source]:
    """The kernel named `portable`, for calls that are too few for the GPU and for those that fill it.

    heads: H. cache_layout: how pages hold their rows. scale_dtype: that of inv_scale, of per_token_scale
    alone. sink: whether there is an attn_sink. lse: whether it is an output.
    """
    dtype = scale_dtype if cache_layout == "per_token_scale" else None
    return [portable_source(heads, cache_layout, dtype, sink, lse, rows) for rows in PORTABLE_ROWS]


def portable_source(
    heads: int,
    cache_layout: Layout,
    scale_dtype: ScaleDtype | None,
    sink: bool,
    lse: bool,
    rows: int,
    pdl: bool = True,
) -> Source:
    """`MmaSyncDecode` with `rows` heads per CTA. `pdl`: programmatic dependent launch."""
    check_options(heads, cache_layout, scale_dtype)
    if rows not in PORTABLE_ROWS:
        raise ValueError(f"rows is {' or '.join(map(str, PORTABLE_ROWS))}, not {rows}")
    return Source.create(
        f"swa_decode.mma_sync_decode_{rows}",
        f"{__name__}:build_portable",
        heads=heads,
        cache_layout=str(cache_layout),
        scale_dtype=scale_dtype,
        sink=sink,
        lse=lse,
        rows=rows,
        pdl=pdl,
    )


def sm100_sources(
    heads: int = 64,
    cache_layout: Layout = "per_token_scale",
    scale_dtype: ScaleDtype | None = "float32",
    sink: bool = True,
    lse: bool = True,
) -> list[Source]:
    """The kernel named `sm100`.

    heads: H. cache_layout: how pages hold their rows. scale_dtype: that of inv_scale, of per_token_scale
    alone. sink: whether there is an attn_sink. lse: whether it is an output.
    """
    dtype = scale_dtype if cache_layout == "per_token_scale" else None
    return [sm100_source(heads, cache_layout, dtype, sink, lse)]


def sm100_source(
    heads: int, cache_layout: Layout, scale_dtype: ScaleDtype | None, sink: bool, lse: bool
) -> Source:
    """`Tcgen05Decode`, which also takes the number of parts and of CTAs per part."""
    check_options(heads, cache_layout, scale_dtype)
    return Source.create(
        "swa_decode.tcgen05_decode",
        f"{__name__}:build_sm100",
        heads=heads,
        cache_layout=str(cache_layout),
        scale_dtype=scale_dtype,
        sink=sink,
        lse=lse,
    )


def check_options(heads: int, cache_layout: Layout, scale_dtype: ScaleDtype | None) -> None:
    """Raises ValueError for options that no kernel supports."""
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"heads is 1 to {MAX_HEADS}, not {heads}")
    if cache_layout not in get_args(Layout):
        raise ValueError(f"cache_layout is {' or '.join(get_args(Layout))}, not {cache_layout!r}")
    scaled = cache_layout == "per_token_scale"
    if scale_dtype not in (SCALE_DTYPES if scaled else (None,)):
        taken = " or ".join(SCALE_DTYPES) if scaled else "none"
        raise ValueError(f"scale_dtype of {cache_layout} is {taken}, not {scale_dtype!r}")


def build_portable(
    heads: int,
    cache_layout: Layout,
    scale_dtype: ScaleDtype | None,
    sink: bool,
    lse: bool,
    rows: int,
    pdl: bool,
) -> Build:
    """The arguments are those of the module."""
    from gdnbench_kernels.swa_decode.kernel_mma import MmaSyncDecode

    kernel = MmaSyncDecode(heads, CacheLayout(cache_layout), rows, pdl)
    return kernel, examples(heads, scale_dtype, sink, lse)


def build_sm100(
    heads: int, cache_layout: Layout, scale_dtype: ScaleDtype | None, sink: bool, lse: bool
) -> Build:
    """The arguments are those of the module, then parts, workers."""
    import cutlass

    from gdnbench_kernels.swa_decode.kernel_sm100 import Tcgen05Decode

    *arguments, stream = examples(heads, scale_dtype, sink, lse)
    return Tcgen05Decode(heads, CacheLayout(cache_layout)), (
        *arguments,
        cutlass.Int32(1),
        cutlass.Int32(1),
        stream,
    )


def examples(heads: int, scale_dtype: ScaleDtype | None, sink: bool, lse: bool) -> tuple[Any, ...]:
    """Examples of the arguments that every kernel takes; they have only types."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    make: Any = make_fake_tensor
    tokens = cute.sym_int()
    rows = ((tokens, heads, HEAD_DIM), (heads * HEAD_DIM, HEAD_DIM, 1))
    scales = None
    if scale_dtype is not None:
        dtype, size = {"float32": (cutlass.Float32, 4), "bfloat16": (cutlass.BFloat16, 2)}[scale_dtype]
        scales = make(dtype, (cute.sym_int(),), (1,), assumed_align=size)
    page_stride = cute.sym_int64(divisibility=ALIGN)
    return (
        make(cutlass.BFloat16, *rows, assumed_align=ALIGN),
        make(cutlass.Uint8, (cute.sym_int(), cute.sym_int()), (page_stride, 1), assumed_align=ALIGN),
        scales,
        make(cutlass.Int32, (tokens, cute.sym_int()), (cute.sym_int64(), 1), assumed_align=4),
        make(cutlass.Int32, (tokens,), (1,), assumed_align=4),
        make(cutlass.Float32, (heads,), (1,), assumed_align=4) if sink else None,
        make(cutlass.BFloat16, *rows, assumed_align=ALIGN),
        make(cutlass.Float32, (tokens, heads), (heads, 1), assumed_align=4) if lse else None,
        cutlass.Float32(1.0),
        cutlass.Int32(1),
        make_fake_stream(),
    )
