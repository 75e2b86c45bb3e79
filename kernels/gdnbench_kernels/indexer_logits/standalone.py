"""indexer_logits in fp64 with torch alone: the reference of a stand-alone reproduction.

logits_j = sum_h weights_h relu(q_h . k_j) scale_j
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def reference(
    *,
    q: Tensor,
    weights: Tensor,
    lens: Tensor,
    cache: Tensor | None = None,
    block_table: Tensor | None = None,
    k: Tensor | None = None,
    k_scale: Tensor | None = None,
    row_starts: Tensor | None = None,
    columns: int | None = None,
    compressed: bool = False,
    **others: Any,
) -> dict[str, Tensor]:
    """logits [T, columns]; -inf in columns of no key."""
    width = columns
    if width is None:
        if k is not None:
            width = len(k)
        else:
            assert block_table is not None
            assert cache is not None
            width = block_table.shape[1] * cache.shape[1]
    found = torch.full((len(q), width), -torch.inf, dtype=torch.float64, device=q.device)
    for t, count in enumerate(lens.tolist()):
        start = 0 if row_starts is None else int(row_starts[t])
        first = 0 if compressed else start
        for j in range(count):
            if k is not None:
                key, scale = k[start + j].double(), 1.0
                if k_scale is not None:
                    scale = float(k_scale[start + j])
            else:
                assert block_table is not None
                assert cache is not None
                size, features = cache.shape[1], q.shape[2]
                table = block_table[t // (len(q) // len(block_table))]
                page = cache[int(table[j // size])].reshape(-1)
                # A page: the e4m3 codes of its keys, then their fp32 scales.
                code, at = j % size * features, size * features + 4 * (j % size)
                key = page[code : code + features].view(torch.float8_e4m3fn).double()
                scale = float(page[at : at + 4].clone().view(torch.float32))
            scores = (q[t].double() @ key).clamp(min=0)
            found[t, first + j] = (weights[t].double() * scores).sum() * scale
    return {"logits": found}
