# SPDX-License-Identifier: Apache-2.0
"""indexer_logits in torch, a query at a time, every step of which a variant or a fault replaces.

    s[h, j]   = relu(q[t, h] . k[j])
    logits[j] = scale[j] sum_h weights[t, h] s[h, j]       in the column of the query's j-th key

A page of n keys holds n D bytes of codes, then n fp32 scales. Written from the contract's description.
`Logits(s=function)` passes that intermediate through `function(s)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.power.products import Product, plain

Edit = Callable[[Tensor], Tensor]


class Logits:
    """A kernel of indexer_logits."""

    calls = 0

    def __init__(
        self, *, compute: torch.dtype = torch.float32, product: Product = plain, **edits: Edit
    ) -> None:
        self.compute, self.product, self.edits = compute, product, edits

    def __call__(
        self,
        *,
        q: Tensor,
        weights: Tensor,
        lens: Tensor,
        logits: Tensor,
        cache: Tensor | None = None,
        block_table: Tensor | None = None,
        k: Tensor | None = None,
        k_scale: Tensor | None = None,
        row_starts: Tensor | None = None,
        compressed: bool = False,
        clean_logits: bool = False,
        **_: Any,
    ) -> dict[str, Tensor]:
        if clean_logits:
            self.clean(logits)
        for t, given in enumerate(lens.tolist()):
            length = self.length(given, logits.shape[1])
            if length <= 0:
                continue
            start = 0
            if k is not None:
                start = 0 if row_starts is None else self.start(int(row_starts[t]))
                keys = k[start : start + length]
                scales = self.packed_scales(k_scale, start, length)
            else:
                assert cache is not None
                assert block_table is not None
                request = self.request(t, len(lens), len(block_table))
                keys, scales = self.paged(cache, block_table[request], length)
            values = self.row(q[t], keys, weights[t], scales[: len(keys)])
            first = self.first_column(start, compressed)
            room = min(len(values), logits.shape[1] - first)
            logits[t, first : first + room] = self.edit("logits", values[:room]).to(logits.dtype)
        return self.finish({"logits": logits}, None)

    def edit(self, name: str, x: Tensor) -> Tensor:
        return self.edits[name](x) if name in self.edits else x

    def clean(self, logits: Tensor) -> None:
        logits.fill_(-torch.inf)

    def length(self, given: int, columns: int) -> int:
        return given

    def start(self, given: int) -> int:
        return given

    def request(self, t: int, rows: int, requests: int) -> int:
        return t // (rows // requests)

    def first_column(self, start: int, compressed: bool) -> int:
        return 0 if compressed else start

    def packed_scales(self, k_scale: Tensor | None, start: int, length: int) -> Tensor:
        return torch.ones(length) if k_scale is None else k_scale[start : start + length]

    def paged(self, cache: Tensor, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """The keys [length, D] e4m3 and scales [length] of a request's pages."""
        size = cache.shape[1]
        position = torch.arange(length)
        place = (position // size).clamp(max=len(table) - 1)
        pages = self.pages(table.long(), place) % len(cache)
        codes, scales = self.parts(cache)
        keys = codes[pages, position % size].contiguous().view(torch.float8_e4m3fn)
        held = scales[pages, self.scale_offset(position % size, size)]
        return keys, held.contiguous().view(torch.float32).squeeze(-1)

    def pages(self, table: Tensor, place: Tensor) -> Tensor:
        return table[place]

    def scale_offset(self, offset: Tensor, size: int) -> Tensor:
        return offset

    def parts(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """The bytes of codes [blocks, n, D] and of scales [blocks, n, 4]."""
        blocks, size, row = cache.shape
        page, at = cache.stride(0), cache.storage_offset()
        codes = cache.as_strided((blocks, size, row - 4), (page, row - 4, 1), at)
        return codes, cache.as_strided((blocks, size, 4), (page, 4, 1), at + size * (row - 4))

    def row(self, q: Tensor, keys: Tensor, weights: Tensor, scales: Tensor) -> Tensor:
        """[n] of a query [h, D] and keys [n, D]."""
        wide = self.edit("k", keys.to(self.compute))
        scores = self.product(self.edit("q", q.to(self.compute)), wide.mT.contiguous())
        positive = self.edit("s", self.relu(scores))
        factors = self.edit("scale", scales.to(self.compute))
        return self.total(self.edit("weights", weights.to(self.compute)), positive, factors)

    def relu(self, scores: Tensor) -> Tensor:
        return scores.relu()

    def total(self, weights: Tensor, scores: Tensor, scales: Tensor) -> Tensor:
        return (weights @ scores) * scales

    def finish(self, found: dict[str, Tensor], _: Any) -> dict[str, Tensor]:
        return found
