"""v4_compress in fp64 with torch alone: the reference of a stand-alone reproduction.

entry = sum_s softmax_s(score + ape) kv over the tokens of a window, normalised and rotated
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def reference(
    *,
    kv: Tensor,
    score: Tensor,
    ape: Tensor,
    cu_seqlens: Tensor,
    starts: Tensor,
    state: Tensor,
    block_table: Tensor,
    norm_weight: Tensor | None = None,
    rope: Tensor | None = None,
    ratio: int = 4,
    overlap: bool = True,
    eps: float = 1e-6,
    **others: Any,
) -> dict[str, Tensor]:
    """entries [T, D], zero for tokens that close no window; and the state."""
    columns, size = kv.shape[1], state.shape[1]
    features = columns // 2 if overlap else columns
    entries = torch.zeros(len(kv), features, dtype=torch.float64, device=kv.device)
    after = state.double()
    for n, start in enumerate(starts.tolist()):
        pages = block_table[n].tolist()
        first, last = int(cu_seqlens[n]), int(cu_seqlens[n + 1])
        for row in range(first, last):
            position = start + row - first
            slots = []
            for p in range(max(0, position + 1 - ratio * (2 if overlap else 1)), position + 1):
                if p < start:
                    if (position + 1) % ratio:
                        continue
                    token = state[pages[p // size], p % size].double()
                else:
                    here = first + p - start
                    token = torch.cat([kv[here].double(), score[here].double() + ape[p % ratio].double()])
                half = features if overlap and p > position - ratio else 0
                slots.append((token[half : half + features], token[columns + half :][:features]))
                if p == position and pages[p // size] >= 0:
                    after[pages[p // size], p % size] = token
            if (position + 1) % ratio:
                continue
            x, z = (torch.stack(part) for part in zip(*slots, strict=True))
            entry = (z.softmax(0) * x).sum(0)
            if norm_weight is not None:
                entry = entry / (entry.square().mean() + eps).sqrt() * norm_weight.double()
            if rope is not None and rope.shape[1]:
                cos, sin = rope[position + 1 - ratio].double().chunk(2)
                turned = torch.view_as_complex(entry[-2 * len(cos) :].reshape(-1, 2)) * torch.complex(
                    cos, sin
                )
                entry[-2 * len(cos) :] = torch.view_as_real(turned).flatten()
            entries[row] = entry
    return {"entries": entries, "state": after}
