# SPDX-License-Identifier: Apache-2.0
"""Scores and top-k of an indexer as engines have them, written from the facts of their layouts.

It shares no code with the project.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scores(q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor) -> Tensor:
    """fp64 [N] of one query q [H, D] e4m3 over keys k [N, D] e4m3: sum_h w_h relu(q_h . k) scale."""
    dots = torch.relu(q.float().double() @ k.float().double().T)
    return (weights.double().unsqueeze(0) @ dots).squeeze(0) * k_scale.double()


def paged_scores(
    q: Tensor, pages: Tensor, weights: Tensor, lens: Tensor, table: Tensor, columns: int, fill: float = 7.0
) -> Tensor:
    """fp32 [B*S, columns] of q [B, S, H, D] over pages [blocks, size, 1, D+4] of bytes: the codes of all keys
    of a page, then their fp32 scales. Columns of no key hold `fill`."""
    requests, queries, _, features = q.shape
    size = pages.shape[1]
    found = torch.full((requests * queries, columns), fill)
    lens = lens.reshape(requests, -1)
    for request in range(requests):
        for query in range(queries):
            length = int(
                lens[request, query] if lens.shape[1] == queries else lens[request, 0] - queries + 1 + query
            )
            if length <= 0:
                continue
            codes, factors = [], []
            for page in table[request, : -(-length // size)].tolist():
                raw = pages[page].reshape(-1)
                codes.append(raw[: size * features].view(torch.float8_e4m3fn).view(size, features))
                factors.append(raw[size * features :].clone().view(torch.float32))
            k, scale = torch.cat([one.view(torch.uint8) for one in codes]), torch.cat(factors)
            k = k.view(torch.float8_e4m3fn)[:length]
            row = request * queries + query
            found[row, :length] = scores(q[request, query], k, scale[:length], weights[row]).float()
    return found


def packed_scores(
    q: Tensor, kv: tuple[Tensor, Tensor], weights: Tensor, starts: Tensor, ends: Tensor, columns: int
) -> Tensor:
    """fp32 [T, columns or N] of q [T, H, D]: column 0 is a query's first key, or with columns 0 key 0."""
    k, scale = kv
    found = torch.full((len(q), columns or len(k)), 7.0)
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end > start:
            first = 0 if columns else start
            found[row, first : first + end - start] = scores(
                q[row], k[start:end], scale[start:end], weights[row]
            ).float()
    return found


def select(logits: Tensor, starts: list[int], ends: list[int], entries: int) -> Tensor:
    """int32 [R, entries]: of each row the columns of its largest logits from its start, in any order, then
    -1."""
    found = torch.full((len(logits), entries), -1, dtype=torch.int32)
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        count = min(entries, max(end - start, 0))
        chosen = logits[row, start:end].float().argsort(descending=True)[:count]
        found[row, :count] = chosen.flip(0).int()
    return found


def slots_of(positions: Tensor, table: Tensor, size: int) -> Tensor:
    """int32: slots of the pages of `table` [R, P] at positions [R, K]; -1 stays."""
    pages = table.gather(1, (positions.clamp(min=0) // size).long())
    return torch.where(positions < 0, -1, pages * size + positions % size).int()
