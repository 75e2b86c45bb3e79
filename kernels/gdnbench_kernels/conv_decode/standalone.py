"""conv_decode in fp64 with torch alone, token by token: the reference of a stand-alone reproduction.

a_t = bias + sum_j weight[j] x_{t - (W-1) + j};   y_t = a_t / (1 + exp(-a_t))
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def reference(
    *,
    x: Tensor,
    weight: Tensor,
    cu_seqlens: Tensor,
    conv_state: Tensor,
    state_indices: Tensor,
    bias: Tensor | None = None,
    num_accepted: Tensor | None = None,
    read_indices: Tensor | None = None,
    activation: str = "silu",
    **others: Any,
) -> dict[str, Tensor]:
    """y [T, D], NaN where there is no sequence or no window, and the whole pool after the call."""
    x, weight = x.double(), weight.double()
    before = conv_state.double()
    y, pool, bounds = torch.full_like(x, torch.nan), before.clone(), cu_seqlens.tolist()
    each, columns = state_indices.shape[1], weight.shape[1] - 1
    for n in range(len(bounds) - 1):
        read, first = window_read(n, state_indices, num_accepted, read_indices)
        if bounds[n] == bounds[n + 1] or read == -1:
            continue
        rolling = num_accepted is not None and each == 1
        window = before[read, :, first : first + columns]
        for i, t in enumerate(range(bounds[n], bounds[n + 1])):
            inputs = torch.cat([window, x[t, :, None]], dim=1)
            a = (inputs * weight).sum(1)
            a = a if bias is None else a + bias.double()
            y[t] = a / (1 + torch.exp(-a)) if activation == "silu" else a
            window = inputs[:, 1:]
            slot, at = int(state_indices[n, i if each > 1 else 0]), i if rolling else 0
            if slot != -1 and (each > 1 or rolling or t == bounds[n + 1] - 1):
                pool[slot, :, at : at + columns] = window
    return {"y": y, "conv_state": pool}


def window_read(
    n: int, state_indices: Tensor, num_accepted: Tensor | None, read_indices: Tensor | None
) -> tuple[int, int]:
    """The slot that sequence n reads, -1 for padding, and from which column."""
    if read_indices is not None:
        return int(read_indices[n]), 0
    place = 0 if num_accepted is None else int(num_accepted[n]) - 1
    if state_indices.shape[1] == 1:
        return int(state_indices[n, 0]), place
    return int(state_indices[n, min(max(place, 0), state_indices.shape[1] - 1)]), 0


def unowed(
    *,
    x: Tensor,
    cu_seqlens: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
    read_indices: Tensor | None = None,
    **others: Any,
) -> dict[str, Tensor]:
    """Rows of outputs that no kernel has to compute, by output: those of padding, and past the sequences."""
    bounds = cu_seqlens.tolist()
    owed = torch.zeros(len(x), dtype=torch.bool)
    for n in range(len(bounds) - 1):
        if window_read(n, state_indices, num_accepted, read_indices)[0] != -1:
            owed[bounds[n] : bounds[n + 1]] = True
    return {"y": ~owed}
