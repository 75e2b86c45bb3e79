# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call of v4_decode."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Params:
    """B requests of S query tokens each, H heads, windows of up to W slots of a cache of pages, and perhaps
    up to E entries of an extra segment in a second cache."""

    q: Tensor
    """[B, S, H, 512] bfloat16: queries, rope applied."""
    cache: Tensor
    """[blocks, block_size, bytes or values of a row]: the window's pages, in `cache_layout`."""
    inv_scale: Tensor | None = None
    """[slots] float32 or bfloat16: the factor of a slot's e4m3 values; of per_token_scale alone."""
    swa_indices: Tensor
    """[B, S, W] int32, axes of `index_shape`: slots attended to, block * block_size + offset; -1 is
    padding."""
    swa_lens: Tensor
    """[B, S] int32, axes of `lens_shape`: how many entries of swa_indices count."""
    extra_cache: Tensor | None = None
    """[extra_blocks, extra_block_size, bytes or values of a row]: the compressed pages, in `extra_layout`.
    None: there is no extra segment, and extra_indices and extra_lens are None too."""
    extra_inv_scale: Tensor | None = None
    """[extra_slots] float32 or bfloat16; of per_token_scale alone."""
    extra_indices: Tensor | None = None
    """[B, S, E] int32, axes of `index_shape`: slots of the extra cache, -1 is padding; or, with
    `extra_index_form` block_table, its pages in order of position."""
    extra_lens: Tensor | None = None
    """[B, S] int32, axes of `lens_shape`: how many slots, or positions, count."""
    attn_sink: Tensor | None = None
    """[H] float32: a logit in the softmax's denominator alone; -inf if absent."""
    scale: float | None = None
    """Factor of the scores; None means 512 ** -0.5."""
    output_lse: bool = False
    """Whether lse is an output."""
    cache_layout: str = "per_token_scale"
    """A value of `swa_decode.layouts.CacheLayout`."""
    extra_layout: str = "per_token_scale"
    """The same, of the extra cache."""
    extra_index_form: str = "indices"
    """A value of `segments.IndexForm`."""
    index_shape: str = "BSW"
    """A key of `segments.INDEX_SHAPES`."""
    lens_shape: str = "BS"
    """A key of `segments.LENS_SHAPES`."""
    masked_indices: str = "any"
    """A value of `segments.MaskedIndices`."""
    lse_base: str = "e"
    """A value of `lse_forms.BASES`."""
    lse_sink: str = "without"
    """`without` or `with`: whether lse includes the sink."""
    lse_empty: str = "minus_inf"
    """`minus_inf` or `plus_inf`: lse of a sum over nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class V4BufferParams(V4Params):
    """A call, and tensors that a kernel fills instead of new ones."""

    o: Tensor | None = None
    """[B, S, H, 512] bfloat16."""
    lse: Tensor | None = None
    """[B, S, H] float32; only with `output_lse`."""
