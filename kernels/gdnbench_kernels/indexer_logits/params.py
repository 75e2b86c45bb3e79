# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call of indexer_logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsParams:
    """T queries of H heads of D features; keys in pages (`cache`, `block_table`) or one after another
    (`k`)."""

    q: Tensor
    """[T, H, D] float8_e4m3fn, bfloat16 or float32. A scale of q is part of the weights."""
    weights: Tensor
    """[T, H] float32 or bfloat16."""
    lens: Tensor
    """[T] int32: how many keys a query scores."""
    cache: Tensor | None = None
    """[blocks, block_size, D+4] uint8: pages of e4m3 keys with their scales, see `keys`."""
    block_table: Tensor | None = None
    """[B, P] int32: pages of each request; query t belongs to request t // (T / B)."""
    k: Tensor | None = None
    """[N, D] float8_e4m3fn, bfloat16 or float32."""
    k_scale: Tensor | None = None
    """[N] float32: the factor of each row of k; 1 if absent."""
    row_starts: Tensor | None = None
    """[T] int32: a query's first row of k; 0 if absent."""
    columns: int | None = None
    """Columns of logits; None means P * block_size, or N."""
    compressed: bool = False
    """Whether column 0 is a query's first key, not row 0 of k."""
    clean_logits: bool = False
    """Whether columns of no key are -inf; else they may hold anything."""
    logits_dtype: str = "float32"
    """dtype of logits."""
