# SPDX-License-Identifier: Apache-2.0
"""The slots that a row of queries attends to."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

PADDING = -1

INDEX_SHAPES: Mapping[str, tuple[str, ...]] = {
    "TW": ("T", "W"),
    "T1W": ("T", "1", "W"),
    "1TW": ("1", "T", "W"),
}
"""The shapes of swa_indices that callers pass."""


def flat_indices(swa_indices: Tensor, index_shape: str) -> Tensor:
    """`swa_indices` as [T, W], a view."""
    if index_shape == "TW":
        return swa_indices
    return swa_indices.squeeze(INDEX_SHAPES[index_shape].index("1"))


def shaped_indices(indices: Tensor, index_shape: str) -> Tensor:
    """[T, W] in one of the callers' shapes, a view."""
    if index_shape == "TW":
        return indices
    return indices.unsqueeze(INDEX_SHAPES[index_shape].index("1"))


def attended(indices: Tensor, lens: Tensor) -> Tensor:
    """Which entries of `indices` [T, W] count, as bool: those before the row's length that are not
    padding."""
    position = torch.arange(indices.shape[1], device=indices.device)
    return (position < lens.unsqueeze(1)) & (indices != PADDING)
