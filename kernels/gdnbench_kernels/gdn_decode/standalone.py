"""gdn_decode in fp64 with torch alone: the reference of a stand-alone reproduction.

    S' = alpha S;   u = beta (v - S' k);   S = S' + u k^T;   o = scale S q

for each of S tokens of a sequence, whose state is read from one slot of the pool and written to one per
token.
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
    state: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
    read_indices: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    beta_max: float = 1.0,
    gate: str = "log",
    state_layout: str = "VK",
    qk: str = "normalised",
    **others: Any,
) -> dict[str, Tensor]:
    """o [B, S, Hv, V], NaN for padding sequences, and the whole pool after the call."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    if qk == "raw":
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    factor = q.shape[3] ** -0.5 if scale is None else scale
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (q, k))
    if gate == "raw":
        assert A_log is not None
        assert dt_bias is not None
        x = g + dt_bias.double()
        g, beta = -A_log.double().exp() * torch.logaddexp(x, torch.zeros_like(x)), beta_max * beta.sigmoid()
    alpha = g if gate == "linear" else g.exp()
    before = state.double().transpose(-1, -2) if state_layout == "KV" else state.double()
    pool, o = before.clone(), torch.full_like(v, torch.nan)
    reads = slots_read(state_indices, num_accepted, read_indices)
    for i, (slots, read) in enumerate(zip(state_indices.tolist(), reads, strict=True)):
        if read == -1:
            continue
        carried = before[read]
        for t, slot in enumerate(slots):
            carried = alpha[i, t, :, None, None] * carried
            u = beta[i, t, :, None] * (v[i, t] - torch.einsum("hvk,hk->hv", carried, k[i, t]))
            carried = carried + u[:, :, None] * k[i, t, :, None, :]
            o[i, t] = factor * torch.einsum("hvk,hk->hv", carried, q[i, t])
            if slot != -1:
                pool[slot] = carried
    return {"o": o, "state": pool.transpose(-1, -2) if state_layout == "KV" else pool}


def slots_read(state_indices: Tensor, num_accepted: Tensor | None, read_indices: Tensor | None) -> list[int]:
    """The slot that each sequence reads, -1 for padding."""
    if read_indices is not None:
        return [int(read) for read in read_indices]
    if num_accepted is None:
        return [int(slots[0]) for slots in state_indices]
    last = num_accepted.long().clamp(1, state_indices.shape[1]) - 1
    return [int(slots[at]) for slots, at in zip(state_indices, last.tolist(), strict=True)]


def unowed(
    *,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
    read_indices: Tensor | None = None,
    **call: Any,
) -> dict[str, Tensor]:
    """Rows of outputs that no kernel has to compute, by output: those of padding."""
    reads = slots_read(state_indices, num_accepted, read_indices)
    return {"o": torch.tensor([read == -1 for read in reads])}
