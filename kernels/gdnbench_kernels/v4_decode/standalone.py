"""v4_decode in fp64 with torch alone: the reference of a stand-alone reproduction.

    s_j = scale q . row_j over the rows that a query attends to in both caches;   o = softmax(s) rows

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


def slots_of(entries: list[int], count: int, page: int) -> list[int]:
    """The slots of the first `count` entries without padding; or with `page`, rows of a page, the first
    `count` positions of the pages `entries`."""
    if page:
        return [entries[at // page] * page + at % page for at in range(count)]
    return [slot for slot in entries[:count] if slot != -1]


def reference(
    *,
    q: Tensor,
    cache: Tensor,
    inv_scale: Tensor | None = None,
    swa_indices: Tensor,
    swa_lens: Tensor,
    extra_cache: Tensor | None = None,
    extra_inv_scale: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_lens: Tensor | None = None,
    attn_sink: Tensor | None = None,
    scale: float | None = None,
    output_lse: bool = False,
    cache_layout: str = "per_token_scale",
    extra_layout: str = "per_token_scale",
    extra_index_form: str = "indices",
    lens_shape: str = "BS",
    lse_base: str = "e",
    lse_sink: str = "without",
    lse_empty: str = "minus_inf",
    **others: Any,
) -> dict[str, Tensor]:
    """o [B, S, H, 512], and on request lse [B, S, H] in the form asked for."""
    factor = 512**-0.5 if scale is None else scale
    requests, queries, heads, _ = q.shape
    o = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.full((requests, queries, heads), -torch.inf, dtype=torch.float64, device=q.device)
    segments = [(cache, inv_scale, cache_layout, swa_indices, swa_lens, 0)]
    if extra_cache is not None and extra_indices is not None and extra_lens is not None:
        page = extra_cache.shape[1] if extra_index_form == "block_table" else 0
        segments.append((extra_cache, extra_inv_scale, extra_layout, extra_indices, extra_lens, page))
    for b in range(requests):
        for s in range(queries):
            parts = []
            for pool, scales, layout, indices, lens, page in segments:
                row = b * queries + s
                count = int(lens[b] if lens_shape == "B" else lens.reshape(-1)[row])
                slots = slots_of(indices.reshape(requests * queries, -1)[row].tolist(), count, page)
                parts += [rows_of(pool, scales, slots, layout)] if slots else []
            if not parts:
                continue
            rows = torch.cat(parts)
            scores = factor * q[b, s].double() @ rows.T
            lse[b, s] = scores.logsumexp(1)
            total = lse[b, s] if attn_sink is None else torch.logaddexp(lse[b, s], attn_sink.double())
            o[b, s] = (scores - total[:, None]).exp() @ rows
    if lse_sink == "with" and attn_sink is not None:
        lse = torch.logaddexp(lse, attn_sink.double())
    if lse_base == "2":
        lse = lse / torch.tensor(2.0, dtype=torch.float64).log()
    if lse_empty == "plus_inf":
        lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    return {"o": o, "lse": lse} if output_lse else {"o": o}


def unowed(**call: Any) -> dict[str, Tensor]:
    """Rows of outputs that no kernel has to compute, by output: none."""
    return {}
