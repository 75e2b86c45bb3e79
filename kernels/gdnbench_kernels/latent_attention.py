# SPDX-License-Identifier: Apache-2.0
"""Attention over gathered latent rows, which are keys and values at once, with a sink in the denominator: the
arithmetic that the oracles and the torch kernels of swa_decode and v4_decode share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def exact_row(q: Tensor, rows: Tensor, scale: float, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """o [H, 512] and lse [H] of one query [H, 512] over `rows` [n, 512], n > 0, all fp64. lse excludes the
    sink. A score of +inf makes its row NaN, as in torch's softmax."""
    scores = scale * q @ rows.T
    lse = torch.logsumexp(scores, dim=1)
    total = lse if sink is None else torch.logaddexp(lse, sink)
    return torch.exp(scores - total.unsqueeze(1)) @ rows, lse


def attend(
    q: Tensor, wide: Tensor, counts: Tensor, scale: float, sink: Tensor | None
) -> tuple[Tensor, Tensor]:
    """o [R, H, 512] in q's dtype and lse [R, H] fp32 of queries `q` over `wide` [R, n, 512], fp32 rows that
    are 0 where `counts` [R, n] is False.

    SDPA has the rows in q's dtype; lse is computed from the rows before that rounding and excludes the sink.
    Where nothing counts, o is 0 and lse -inf.
    """
    rows = wide.to(q.dtype)
    none = ~counts.any(1)
    bias = torch.zeros(counts.shape, dtype=torch.float32, device=q.device).masked_fill(~counts, -torch.inf)
    bias = bias.masked_fill(none.unsqueeze(1), 0.0)  # a softmax over nothing is NaN; its row is zeroed below
    scores = torch.einsum("thd,twd->thw", q.float(), wide) * scale + bias.unsqueeze(1)
    lse = torch.logsumexp(scores, dim=2)
    # One key head for all heads; SDPA's sequence axis is the heads of a row.
    o = scaled_dot_product_attention(
        q.unsqueeze(1), rows.unsqueeze(1), rows.unsqueeze(1), bias.to(q.dtype)[:, None, None, :], scale=scale
    ).squeeze(1)
    if sink is not None:
        o = (o.float() * torch.sigmoid(lse - sink.float()).unsqueeze(-1)).to(q.dtype)
    o = o.masked_fill(none[:, None, None], 0.0)
    return o, lse.masked_fill(none.unsqueeze(1), -torch.inf)
