# SPDX-License-Identifier: Apache-2.0
"""What a fault does to a tensor whose axis 1 is heads: gains, noise, and parts set to zero or NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.power.number_formats import normal

Edit = Callable[[Tensor, Any], Tensor]

SIZES = (0.001, 0.005, 0.01, 0.05)
"""Relative sizes of gains and noise."""


SMALL_GAIN = "0.1 % is within what cut operands and chance allow a gain"
SMALL_NOISE = "rounding o to bf16 has a larger error, 1.7e-3"


def excuse(size: float, why: str) -> str | None:
    """`why`, for the smallest of `SIZES` alone."""
    return why if size == SIZES[0] else None


def gain(size: float, head: int | None = None) -> Edit:
    """All values, or those of one head, larger by `size`."""

    def edit(x: Tensor, _: Any) -> Tensor:
        if head is None:
            return x * (1 + size)
        x = x.clone()
        x[:, head % x.shape[1]] *= 1 + size
        return x

    return edit


def noise(size: float, head: int | None = None) -> Edit:
    """Independent normal errors, `size` of each value."""

    def edit(x: Tensor, _: Any) -> Tensor:
        factor = 1 + size * normal(x)
        if head is None:
            return x * factor
        x = x.clone()
        x[:, head % x.shape[1]] *= factor[:, head % x.shape[1]]
        return x

    return edit


def offset(size: float) -> Edit:
    """A constant added, `size` of the RMS of all values."""
    return lambda x, _: x + size * x.square().mean().sqrt()


def without_small_values(share: float) -> Edit:
    """Values below `share` of the largest of their row are 0."""
    return lambda x, _: torch.where(x.abs() < share * x.abs().amax(-1, keepdim=True), torch.zeros_like(x), x)


def without_small_rows(share: float) -> Edit:
    """Rows whose norm is below `share` of the largest row's are 0."""

    def edit(x: Tensor, _: Any) -> Tensor:
        norms = x.norm(dim=-1, keepdim=True)
        return torch.where(norms < share * norms.max(), torch.zeros_like(x), x)

    return edit


def swapped_heads(x: Tensor, _: Any) -> Tensor:
    """Heads 0 and 1 exchanged."""
    order = torch.arange(x.shape[1])
    order[:2] = order[:2].flip(0)
    return x[:, order]


def neighbouring_head(x: Tensor, _: Any) -> Tensor:
    """Each head has the values of the next one."""
    return x.roll(-1, 1)


def transposed(x: Tensor, _: Any) -> Tensor:
    """The last two axes exchanged in memory; the shape stays."""
    return x.mT.contiguous().view(x.shape)
