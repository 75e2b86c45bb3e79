# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call of v4_compress."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

CSA_RATIO = 4
EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressParams:
    """T tokens of N sequences; entries of D features; E = 2 D columns with overlapping windows, else D."""

    kv: Tensor
    """[T, E]: what windows are the weighted means of."""
    score: Tensor
    """[T, E], of kv's dtype: learned scores."""
    ape: Tensor
    """[ratio, E] float32: added to the scores of a window's tokens by their place in it."""
    cu_seqlens: Tensor
    """[N+1] int32: sequence n is tokens cu_seqlens[n] .. cu_seqlens[n+1]-1."""
    starts: Tensor
    """[N] int32: tokens of a sequence before this call."""
    state: Tensor
    """[blocks, block_size, 2 E] float32: kv, and score + ape, of a token; updated in place."""
    block_table: Tensor
    """[N, P] int32: the page of position p is block_table[n, p // block_size]; -1 keeps no state."""
    norm_weight: Tensor | None = None
    """[D] float32 or bfloat16: entries are normalised by their root mean square, times this."""
    rope: Tensor | None = None
    """[positions, R] float32: cosines, then sines, of R / 2 pairs; the last R features are rotated."""
    ratio: int = CSA_RATIO
    """Tokens of a window."""
    overlap: bool = True
    """Whether an entry is made of two windows."""
    eps: float = EPS
    """Added to the mean square."""
    entries_dtype: str = "bfloat16"
    """dtype of entries."""

    @property
    def features(self) -> int:
        """D."""
        return self.kv.shape[1] // (2 if self.overlap else 1)
