# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call of indexer_topk."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TopkParams:
    """R rows of N logits."""

    logits: Tensor
    """[R, N] float32, bfloat16 or float16."""
    lens: Tensor
    """[R] int32: how many candidates a row has."""
    row_starts: Tensor | None = None
    """[R] int32: the column of each row's first candidate; 0 if absent."""
    top_k: int = 512
    """K, how many indices a row selects."""

    @property
    def starts(self) -> Tensor:
        """row_starts, or zeros."""
        return self.lens.new_zeros(self.lens.shape) if self.row_starts is None else self.row_starts
