# SPDX-License-Identifier: Apache-2.0
"""Tensors laid out as a caller's was: the same order of axes and the same gaps, whatever their sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench.poison import poison


def is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is contiguous and begins at the start of its storage."""
    return tensor.is_contiguous() and tensor.storage_offset() == 0


def in_layout_of(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` with the axes of `like` in memory, as many elements of poison between its rows, and as many
    ahead. An axis that was expanded is one again if the elements still agree, else `tensor` comes back."""
    strides = [0] * tensor.ndim
    reach = like_reach = 1
    expanded = []
    for axis in sorted(range(like.ndim), key=lambda axis: (like.stride(axis), -axis)):
        if like.shape[axis] > 1 and like.stride(axis) == 0:
            expanded.append(axis)
            continue
        gap = max(0, like.stride(axis) - like_reach) if like.shape[axis] > 1 else 0
        strides[axis] = reach + gap
        reach = strides[axis] * tensor.shape[axis]
        like_reach = max(like_reach, like.stride(axis) * like.shape[axis])
    if not tensor.numel() or any(not _agrees(tensor, axis) for axis in expanded):
        return tensor
    offset = like.storage_offset()
    memory = poison(torch.empty(offset + reach, dtype=tensor.dtype))
    found = memory.as_strided(tensor.shape, strides, offset)
    once = tuple(slice(1) if axis in expanded else slice(None) for axis in range(tensor.ndim))
    as_integers(found)[once] = as_integers(tensor)[once]
    return found


def _agrees(tensor: Tensor, axis: int) -> bool:
    bits = as_integers(tensor)
    return bool((bits == bits.narrow(axis, 0, 1)).all())
