# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule in fp64, token by token, in the layout of flash-linear-attention and FlashQLA."""

from __future__ import annotations

import torch
from torch import Tensor


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One sequence: q, k [T, H, K], v [T, HV, V], g, beta [T, HV], state
    [HV, K, V]; S' = exp(g) S, S = S' + k (beta (v - k S'))^T, o = scale q S."""
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    out = torch.empty_like(v)
    for t in range(len(v)):
        for head in range(v.shape[1]):
            key, query = (x[t, head // (v.shape[1] // q.shape[1])] for x in (k, q))
            decayed = g[t, head].exp() * state[head]
            update = beta[t, head] * (v[t, head] - key @ decayed)
            state[head] = decayed + torch.outer(key, update)
            out[t, head] = scale * (query @ state[head])
    return out, state


def unit(x: Tensor) -> Tensor:
    return x.double() / ((x.double() ** 2).sum(-1, keepdim=True) + 1e-6).sqrt()
