"""swa_decode in fp64 with torch alone: the reference of a stand-alone reproduction.

    s_j = scale q . row_j over the slots that a request attends to;   o = softmax(s) rows

with the sink as one more logit of the denominator.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rows_of(cache: Tensor, inv_scale: Tensor | None, slots: list[int], cache_layout: str) -> Tensor:
    """The latent rows at `slots`, fp64 [slots, 512]."""
    size, found = cache.shape[1], []
    for slot in slots:
        page, at = cache[slot // size], slot % size
        if cache_layout == "bfloat16":
            found.append(page[at].double())
        elif cache_layout == "per_token_scale":
            assert inv_scale is not None
            codes = page.view(torch.uint8)[at].view(torch.float8_e4m3fn)
            found.append(codes.double() * inv_scale[slot].double())
        else:
            # A page: 448 e4m3 and 64 bfloat16 per token, then 7 ue8m0 scales and a zero per token.
            flat = page.reshape(-1)
            data = flat[at * 576 : at * 576 + 576]
            exponents = flat[size * 576 + at * 8 :][:7].double()
            scales = torch.exp2(exponents - 127).masked_fill(exponents == 255, torch.nan)
            codes = data[:448].view(torch.float8_e4m3fn).double()
            rope = data[448:].clone().view(torch.bfloat16).double()
            found.append(torch.cat([codes * scales.repeat_interleave(64), rope]))
    return torch.stack(found)


def reference(
    *,
    q: Tensor,
    cache: Tensor,
    inv_scale: Tensor | None = None,
    swa_indices: Tensor,
    swa_lens: Tensor,
    attn_sink: Tensor | None = None,
    scale: float | None = None,
    output_lse: bool = False,
    cache_layout: str = "per_token_scale",
    index_shape: str = "TW",
    **others: Any,
) -> dict[str, Tensor]:
    """o [T, H, 512], and on request lse [T, H], without the sink."""
    factor = 512**-0.5 if scale is None else scale
    o = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float64, device=q.device)
    entries = swa_indices.reshape(len(swa_lens), -1).tolist()
    for t, count in enumerate(swa_lens.tolist()):
        slots = [slot for slot in entries[t][:count] if slot != -1]
        if not slots:
            continue
        rows = rows_of(cache, inv_scale, slots, cache_layout)
        scores = factor * q[t].double() @ rows.T
        lse[t] = scores.logsumexp(1)
        total = lse[t] if attn_sink is None else torch.logaddexp(lse[t], attn_sink.double())
        o[t] = (scores - total[:, None]).exp() @ rows
    return {"o": o, "lse": lse} if output_lse else {"o": o}


def unowed(**call: Any) -> dict[str, Tensor]:
    """Rows of outputs that no kernel has to compute, by output: none."""
    return {}
