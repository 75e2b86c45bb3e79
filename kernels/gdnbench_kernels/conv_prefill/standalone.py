"""conv_prefill in fp64 with torch alone, token by token: the reference of a stand-alone reproduction.

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
    bias: Tensor | None = None,
    conv_state: Tensor | None = None,
    state_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    activation: str = "silu",
    **others: Any,
) -> dict[str, Tensor]:
    """y [T, D], NaN where there is no sequence or no slot, and the whole pool after the call, if there is
    one."""
    x, weight = x.double(), weight.double()
    pool = None if conv_state is None else conv_state.double().clone()
    y, bounds = torch.full_like(x, torch.nan), cu_seqlens.tolist()
    for n in range(len(bounds) - 1):
        slot = -1 if state_indices is None else int(state_indices[n])
        if bounds[n] == bounds[n + 1] or (pool is not None and slot == -1):
            continue
        window = x.new_zeros(weight.shape[0], weight.shape[1] - 1)
        if pool is not None and has_initial_state is not None and bool(has_initial_state[n]):
            window = pool[slot].clone()
        for t in range(bounds[n], bounds[n + 1]):
            inputs = torch.cat([window, x[t, :, None]], dim=1)
            a = (inputs * weight).sum(1)
            a = a if bias is None else a + bias.double()
            y[t] = a / (1 + torch.exp(-a)) if activation == "silu" else a
            window = inputs[:, 1:]
        if pool is not None:
            pool[slot] = window
    return {"y": y} if pool is None else {"y": y, "conv_state": pool}


def unowed(
    *, x: Tensor, cu_seqlens: Tensor, state_indices: Tensor | None = None, **others: Any
) -> dict[str, Tensor]:
    """Rows of outputs that no kernel has to compute, by output: those of padding, and past the sequences."""
    bounds = cu_seqlens.tolist()
    owed = torch.zeros(len(x), dtype=torch.bool)
    for n in range(len(bounds) - 1):
        if state_indices is None or int(state_indices[n]) != -1:
            owed[bounds[n] : bounds[n + 1]] = True
    return {"y": ~owed}
