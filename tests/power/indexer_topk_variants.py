# SPDX-License-Identifier: Apache-2.0
"""Right kernels of indexer_topk: orders of the indices, choices between ties, radix selection."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.power.indexer_topk_kernel import Topk
from tests.power.library import Shelf


class LastTieFirst(Topk):
    """Of equal candidates the last ones are selected."""

    def order(self, keys: Tensor) -> Tensor:
        return len(keys) - 1 - (-keys.flip(0)).argsort(stable=True)


class Ascending(Topk):
    """Indices in ascending order."""

    def chosen(self, candidates: Tensor, count: int) -> Tensor:
        return super().chosen(candidates, count).sort().values


class Shuffled(Topk):
    """Indices in an order that has nothing to do with the values, the same in every call."""

    def chosen(self, candidates: Tensor, count: int) -> Tensor:
        found = super().chosen(candidates, count)
        return found[torch.randperm(len(found), generator=torch.Generator().manual_seed(3))]


class NanFirst(Topk):
    """A NaN is above all numbers, as in torch.topk."""

    def keys(self, candidates: Tensor) -> Tensor:
        wide = candidates.double()
        return wide.masked_fill(wide.isnan(), torch.inf)


class Bits(Topk):
    """Radix keys: the bits of fp32 as ordered integers, so that -0 is below +0."""

    def keys(self, candidates: Tensor) -> Tensor:
        bits = candidates.float().contiguous().view(torch.int32).long()
        keys = torch.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)
        return keys.masked_fill(candidates.isnan(), -(2**32))


class Radix(Bits):
    """Digits of 8 bits from the top; the boundary's ties in any order."""

    def chosen(self, candidates: Tensor, count: int) -> Tensor:
        if not count:
            return torch.zeros(0, dtype=torch.int64)
        keys = self.keys(candidates) + 2**32
        boundary = keys.sort().values[len(keys) - count]
        above = (keys > boundary).nonzero().flatten()
        ties = (keys == boundary).nonzero().flatten().flip(0)
        return torch.cat([ties[: count - len(above)], above])


class Blocks(Topk):
    """The largest of blocks of 64, then the largest of those."""

    def chosen(self, candidates: Tensor, count: int) -> Tensor:
        keys, found = self.keys(candidates), []
        for first in range(0, len(keys), 64):
            best = self.order(keys[first : first + 64])[:count]
            found.append(best + first)
        if not found:
            return torch.zeros(0, dtype=torch.int64)
        few = torch.cat(found)
        return few[self.order(keys[few])[:count]]


shelf = Shelf("indexer_topk", right=True)
shelf.add("order", "a stable sort", Topk())
shelf.add("order", "ascending indices", Ascending())
shelf.add("order", "shuffled", Shuffled())
shelf.add("ties", "the last of equal ones", LastTieFirst())
shelf.add("ties", "-0 below +0", Bits())
shelf.add("nan", "above all numbers", NanFirst())
shelf.add("selection", "by radix", Radix())
shelf.add("selection", "by blocks", Blocks())
VARIANTS = shelf.done()
