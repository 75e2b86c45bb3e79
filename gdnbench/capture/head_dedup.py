# SPDX-License-Identifier: Apache-2.0
"""Deduplication of repeated key heads: finds runs of heads with equal bits and keeps one head of each run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def collapse_repeated_heads(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Keep one head of each run of equal heads of q and k [..., heads, K].

    Returns the tensors and `{"repeated": ratio}`. The ratio is the largest one under which every run of heads
    of both tensors is equal bit for bit, so that value head `hv` still finds its key at `hv // ratio`.
    """
    q, k = tensors["q"], tensors["k"]
    if q.is_meta:
        return tensors, {}  # of a call that is kept as digests
    ratio = next((r for r in _divisors(q.shape[-2]) if _repeats(q, r) and _repeats(k, r)), 1)
    if ratio > 1:
        tensors = tensors | {"q": q[..., ::ratio, :].contiguous(), "k": k[..., ::ratio, :].contiguous()}
    return tensors, {"repeated": ratio}


def _divisors(heads: int) -> list[int]:
    """Divisors above 1, largest first."""
    return [ratio for ratio in range(heads, 1, -1) if heads % ratio == 0]


def _repeats(tensor: Tensor, ratio: int) -> bool:
    """Whether heads [c*ratio, (c+1)*ratio) hold the same bits for every c. `tensor` is contiguous."""
    if tensor.numel() == 0:
        return False
    # Compare integers: NaN equals itself and -0.0 differs from 0.0.
    heads, width = tensor.shape[-2:]
    runs = tensor.view(_WORDS[tensor.element_size()]).view(-1, heads // ratio, ratio, width)
    # Check the last token first: it rejects almost every wrong ratio and costs a few hundred bytes.
    return all(torch.equal(some[:, :, :1].expand_as(some), some) for some in (runs[-1:], runs))
