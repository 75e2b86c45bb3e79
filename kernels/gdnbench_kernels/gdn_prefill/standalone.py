"""gdn_prefill in fp64 with torch alone, token by token: the reference of a stand-alone reproduction.

S' = alpha S;   u = beta (v - S' k);   S = S' + u k^T;   o = scale S q
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def reference(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None = None,
    scale: float | None = None,
    output_final_state: bool = True,
    gate: str = "log",
    state_layout: str = "VK",
    qk: str = "normalised",
    **others: Any,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], or [N, Hv, K, V] in layout KV."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    if qk == "raw":
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    factor = q.shape[2] ** -0.5 if scale is None else scale
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], dim=1) for x in (q, k))
    alpha = g if gate == "linear" else g.exp()
    bounds = cu_seqlens.tolist()
    o, states = torch.zeros_like(v), []
    for n in range(len(bounds) - 1):
        state = v.new_zeros(v.shape[1], v.shape[2], k.shape[2])
        if initial_state is not None:
            first = initial_state[n].double()
            state = first.transpose(-1, -2) if state_layout == "KV" else first
        for t in range(bounds[n], bounds[n + 1]):
            state = alpha[t, :, None, None] * state
            u = beta[t, :, None] * (v[t] - torch.einsum("hvk,hk->hv", state, k[t]))
            state = state + u[:, :, None] * k[t, :, None, :]
            o[t] = factor * torch.einsum("hvk,hk->hv", state, q[t])
        states.append(state.transpose(-1, -2) if state_layout == "KV" else state)
    return {"o": o, "final_state": torch.stack(states)} if output_final_state else {"o": o}


def unowed(**call: Any) -> dict[str, Tensor]:
    """Rows of outputs that no kernel has to compute, by output: none."""
    return {}
