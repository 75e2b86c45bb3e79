# SPDX-License-Identifier: Apache-2.0
"""Shared by the laws of both operations of the convolution: other values for tokens and windows."""

from __future__ import annotations

import torch
from torch import Tensor

LOUDER = -8.0
"""Factor of changed inputs. A leak of a share e of one moves a sum of unchanged inputs by some 9 e of its
size, above the limit of rounding in bf16, 2^-7, for e from 1e-3."""


def changed_rows(x: Tensor, chosen: Tensor) -> Tensor:
    """`x` [T, D] with other finite values in the `chosen` rows, a mask: exchanged in a cycle, and louder."""
    changed = x.clone()
    changed[chosen] = x[chosen].roll(1, 0) * LOUDER
    return changed


def same_layout(pool: Tensor) -> Tensor:
    """A copy of a pool with its strides; gaps between slots hold zeros."""
    last = sum((size - 1) * stride for size, stride in zip(pool.shape, pool.stride(), strict=True))
    copy = torch.zeros(max(0, last) + 1, dtype=pool.dtype).as_strided(pool.shape, pool.stride())
    return copy.copy_(pool)
