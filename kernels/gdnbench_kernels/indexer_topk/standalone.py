"""indexer_topk with torch alone: the reference of a stand-alone reproduction. Equal logits are in order of
their indices, NaNs last."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def reference(
    *, logits: Tensor, lens: Tensor, row_starts: Tensor | None = None, top_k: int = 512, **others: Any
) -> dict[str, Tensor]:
    """indices [R, K], whole numbers in fp64."""
    found = torch.full((len(lens), top_k), -1, dtype=torch.float64, device=logits.device)
    for row, count in enumerate(lens.tolist()):
        start = 0 if row_starts is None else int(row_starts[row])
        values = (-logits[row, start : start + count].double()).tolist()
        best = sorted(range(count), key=lambda i: (values[i] != values[i], values[i]))[:top_k]
        found[row, : len(best)] = torch.tensor(best, dtype=torch.float64)
    return {"indices": found}
