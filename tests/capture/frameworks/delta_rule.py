# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule as it is defined, token by token in fp64, in the place of a framework's kernels.

S' = alpha S;   u = beta (v - S' k);   S = S' + u k^T;   o = scale S q

alpha is a number of each head, or in Kimi Delta Attention one of each key channel.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    return x.double() / ((x.double() ** 2).sum(-1, keepdim=True) + 1e-6).sqrt()


def raw_gates(a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """g = -exp(A_log) softplus(a + dt_bias) and sigmoid(b), of the projections a and b [..., Hv]."""
    shifted = a.double() if dt_bias is None else a.double() + dt_bias.double()
    softplus = torch.logaddexp(shifted, torch.zeros_like(shifted))
    return -A_log.double().exp() * softplus, b.double().sigmoid()


def kda_gates(
    g: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
) -> Tensor:
    """Log decays of the projections g [..., Hv, K]: -exp(A_log) softplus(g + dt_bias), or with a bound
    lower_bound sigmoid(exp(A_log) (g + dt_bias)). A_log has Hv elements and dt_bias Hv K, in any shape."""
    heads = g.shape[-2]
    x = g.double() if dt_bias is None else g.double() + dt_bias.double().reshape(heads, -1)
    rate = torch.ones(heads, 1) if A_log is None else A_log.double().exp().reshape(heads, 1)
    if lower_bound is not None:
        return lower_bound * (rate * x).sigmoid()
    return -rate * torch.logaddexp(x, torch.zeros_like(x))


def tokens_of(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, list[Tensor]]:
    """One sequence: q, k [T, H, K], v [T, Hv, V], alpha [T, Hv] or [T, Hv, K], beta [T, Hv], state
    [Hv, V, K]. o [T, Hv, V] and the state after each token, in fp64."""
    q, k, v, alpha, beta, state = (x.double() for x in (q, k, v, alpha, beta, state))
    ratio = v.shape[1] // q.shape[1]
    q, k = q.repeat_interleave(ratio, 1), k.repeat_interleave(ratio, 1)
    out, states = torch.empty_like(v), []
    for t in range(len(v)):
        decayed = alpha[t].reshape(len(state), 1, -1) * state
        update = beta[t, :, None] * (v[t] - torch.einsum("hvk,hk->hv", decayed, k[t]))
        state = decayed + torch.einsum("hv,hk->hvk", update, k[t])
        out[t] = scale * torch.einsum("hvk,hk->hv", state, q[t])
        states.append(state)
    return out, states
