# SPDX-License-Identifier: Apache-2.0
"""indexer_topk in torch, a row at a time, every step of which a variant or a fault replaces.

    indices[r] = the indices, from row_starts[r], of the min(lens[r], K) largest of logits[r, start : start +
                 lens[r]], in any order; then -1

Written from the contract's description.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Topk:
    """A kernel of indexer_topk."""

    calls = 0

    def __call__(
        self,
        *,
        logits: Tensor,
        lens: Tensor,
        indices: Tensor,
        row_starts: Tensor | None = None,
        **_: Any,
    ) -> dict[str, Tensor]:
        for r, given in enumerate(lens.tolist()):
            start = 0 if row_starts is None else self.start(int(row_starts[r]))
            length = self.length(given)
            count = self.count(given, indices.shape[1])
            candidates = logits[r, start : start + length]
            chosen = self.chosen(candidates, min(count, len(candidates)))
            indices[r] = self.row(chosen.int(), indices.shape[1], start, given)
        self.calls += 1
        return {"indices": indices}

    def start(self, given: int) -> int:
        return given

    def length(self, given: int) -> int:
        return given

    def count(self, length: int, k: int) -> int:
        return min(length, k)

    def chosen(self, candidates: Tensor, count: int) -> Tensor:
        """The indices of the `count` largest."""
        return self.order(self.keys(candidates))[:count]

    def keys(self, candidates: Tensor) -> Tensor:
        """What is compared; NaN last."""
        wide = candidates.double()
        return wide.masked_fill(wide.isnan(), -torch.inf)

    def order(self, keys: Tensor) -> Tensor:
        return (-keys).argsort(stable=True)

    def row(self, chosen: Tensor, k: int, start: int, length: int) -> Tensor:
        """An output row [K] of the chosen indices."""
        return torch.cat([chosen[:k], torch.full((k - len(chosen[:k]),), -1, dtype=torch.int32)])
