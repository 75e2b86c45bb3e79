# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call of swa_decode."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SwaParams:
    """T requests of one query token each, H heads, windows of up to W slots, a cache of `blocks` pages."""

    q: Tensor
    """[T, H, 512] bfloat16: queries, rope applied."""
    cache: Tensor
    """[blocks, block_size, bytes or values of a row]: the pages, in `cache_layout`."""
    inv_scale: Tensor | None = None
    """[slots] float32 or bfloat16: the factor of a slot's e4m3 values; of per_token_scale alone."""
    swa_indices: Tensor
    """[T, W] int32, axes of `index_shape`: slots attended to, block * block_size + offset; -1 is padding."""
    swa_lens: Tensor
    """[T] int32: how many entries of swa_indices count."""
    attn_sink: Tensor | None = None
    """[H] float32: a logit in the softmax's denominator alone; -inf if absent."""
    scale: float | None = None
    """Factor of the scores; None means 512 ** -0.5."""
    output_lse: bool = False
    """Whether lse is an output."""
    cache_layout: str = "per_token_scale"
    """A value of `layouts.CacheLayout`."""
    index_shape: str = "TW"
    """A key of `window.INDEX_SHAPES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwaBufferParams(SwaParams):
    """A call, and tensors that a kernel fills instead of new ones."""

    o: Tensor | None = None
    """[T, H, 512] bfloat16."""
    lse: Tensor | None = None
    """[T, H] float32; only with `output_lse`."""
