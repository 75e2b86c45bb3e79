# SPDX-License-Identifier: Apache-2.0
"""Right kernels of indexer_logits: orders of heads and features, and where factors are applied."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.power import products
from tests.power.indexer_logits_kernel import Logits
from tests.power.library import Shelf


class ScaleFirst(Logits):
    """A key's scale multiplies its scores, which are never negative."""

    def total(self, weights: Tensor, scores: Tensor, scales: Tensor) -> Tensor:
        return weights @ (scores * scales)


class HeadByHead(Logits):
    """One head after another; the last first if `descending`."""

    def __init__(self, *, descending: bool = False) -> None:
        super().__init__()
        self.descending = descending

    def total(self, weights: Tensor, scores: Tensor, scales: Tensor) -> Tensor:
        out = torch.zeros_like(scales)
        order = range(len(weights))
        for h in reversed(order) if self.descending else order:
            out = torch.addcmul(out, weights[h], scores[h])
        return out * scales


class HeadsInHalves(Logits):
    """Two warps have half of the heads each."""

    def total(self, weights: Tensor, scores: Tensor, scales: Tensor) -> Tensor:
        half = (len(weights) + 1) // 2
        return (weights[:half] @ scores[:half] + weights[half:] @ scores[half:]) * scales


class ReluByMax(Logits):
    """relu(x) as (x + |x|) / 2, which is exact."""

    def relu(self, scores: Tensor) -> Tensor:
        return (scores + scores.abs()) * 0.5


class WeightsOfPairs(Logits):
    """Sums over heads in pairs."""

    def total(self, weights: Tensor, scores: Tensor, scales: Tensor) -> Tensor:
        terms = weights.unsqueeze(1) * scores
        while len(terms) > 1:
            odd = terms[len(terms) // 2 * 2 :]
            terms = torch.cat([terms[0 : len(terms) // 2 * 2 : 2] + terms[1::2], odd])
        return terms[0] * scales


class BlocksOfKeys(Logits):
    """Keys in blocks of 32, the last block first."""

    def row(self, q: Tensor, keys: Tensor, weights: Tensor, scales: Tensor) -> Tensor:
        starts = range(0, len(keys), 32)
        rows = [
            super(BlocksOfKeys, self).row(q, keys[i : i + 32], weights, scales[i : i + 32]) for i in starts
        ]
        return torch.cat(rows)


shelf = Shelf("indexer_logits", right=True)
shelf.add("rounding", "in fp32", Logits())
shelf.add("rounding", "in fp64", Logits(compute=torch.float64))
shelf.add("order", "the scale first", ScaleFirst())
shelf.add("order", "head by head", HeadByHead())
shelf.add("order", "head by head, descending", HeadByHead(descending=True))
shelf.add("order", "heads in halves", HeadsInHalves())
shelf.add("order", "heads in pairs", WeightsOfPairs())
shelf.add("order", "keys in blocks", BlocksOfKeys())
shelf.add("order", "relu as half of x + |x|", ReluByMax())
shelf.add("sums", "terms in descending order", Logits(product=products.reversed_sums))
shelf.add("sums", "two halves of each sum", Logits(product=products.split_k(2)))
shelf.add("sums", "pairwise", Logits(product=products.pairwise))
VARIANTS = shelf.done()
