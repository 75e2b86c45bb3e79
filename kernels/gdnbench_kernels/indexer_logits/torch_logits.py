# SPDX-License-Identifier: Apache-2.0
"""The kernel named `torch` of indexer_logits: keys dequantised to fp32, products and sums in fp32."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gdnbench_kernels.indexer_logits.keys import columns_of_keys, read_pages, request_of, width_of
from gdnbench_kernels.indexer_logits.params import LogitsParams
from gdnbench_kernels.params import takes_params

SCORES_AT_ONCE = 1 << 26
"""Scores of all heads that are in memory together: 0.25 GB."""


@takes_params(LogitsParams)
def torch_logits(params: LogitsParams) -> dict[str, Tensor]:
    """logits [T, columns] of `logits_dtype`; -inf in columns of no key. No host synchronisation."""
    rows, heads, _ = params.q.shape
    counts, width = columns_of_keys(params), width_of(params)
    dtype = getattr(torch, params.logits_dtype)
    logits = torch.full((rows, width), -torch.inf, dtype=dtype, device=params.q.device)
    q, weights = params.q.float(), params.weights.float()
    group, keys, scales = _keys(params)
    most = max(1, SCORES_AT_ONCE // max(1, heads * keys.shape[1]))
    for of in _parts(rows, group, most):
        request = of.start // group
        scores = torch.einsum("thd,nd->thn", q[of], keys[request]).relu()
        values = torch.einsum("thn,th->tn", scores, weights[of]) * scales[request]
        logits[of] = _placed(params, values, of, width).where(counts[of], -torch.inf).to(dtype)
    return {"logits": logits}


def _parts(rows: int, group: int, most: int) -> Iterator[slice]:
    """Up to `most` rows of one request of `group` rows, in order."""
    for first in range(0, rows, group):
        last = min(rows, first + group)
        for start in range(first, last, most):
            yield slice(start, min(last, start + most))


def _keys(params: LogitsParams) -> tuple[int, Tensor, Tensor]:
    """How many rows a request has, its keys [B, n, D] and scales [B, n] in fp32."""
    rows = len(params.lens)
    if params.k is not None:
        scales = params.k_scale
        if scales is None:
            scales = torch.ones(len(params.k), device=params.k.device)
        return max(1, rows), params.k.float().unsqueeze(0), scales.float().unsqueeze(0)
    assert params.cache is not None
    assert params.block_table is not None
    tables, blocks = params.block_table, len(params.cache)
    group = max(1, request_of(rows, len(tables)))
    if not blocks or not rows:
        size = tables.shape[1] * params.cache.shape[1]
        shape = (len(tables), size, params.q.shape[2])
        return group, torch.zeros(shape, device=tables.device), torch.zeros(shape[:2], device=tables.device)
    # Entries of no key may be anything: page 0 is read, and its columns are overwritten.
    needed = params.lens.view(len(tables), -1).amax(1, keepdim=True)
    place = torch.arange(tables.shape[1], device=tables.device) * params.cache.shape[1]
    codes, scales = read_pages(params.cache, tables.where(place < needed, 0))
    return group, codes.float().flatten(1, 2), scales.flatten(1)


def _placed(params: LogitsParams, values: Tensor, rows: slice, width: int) -> Tensor:
    """Values of keys [n, keys] in the columns of logits [n, width]; what is in columns of no key does not
    count."""
    if params.compressed and params.row_starts is not None and values.shape[1]:
        place = params.row_starts[rows].long().unsqueeze(1) + torch.arange(width, device=values.device)
        return values.gather(1, place.clamp(max=values.shape[1] - 1))
    if width <= values.shape[1]:
        return values[:, :width]
    return torch.nn.functional.pad(values, (0, width - values.shape[1]))
