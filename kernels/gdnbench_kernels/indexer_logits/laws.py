"""The laws of indexer_logits: requests are independent, weights are linear, the order of heads does not
matter, and keys that no query scores are not read."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Operation, Piece, Variant
from gdnbench_kernels.indexer_logits.keys import page_parts
from gdnbench_kernels.shrinking import select_units, with_tensors

LOUDER = -4.0


def variants(operation: Operation, call: Call) -> Iterator[Variant]:
    """One query changed; weights doubled; heads in reverse order; other keys where no query scores one.

    - queries: a query's logits depend on its own heads and weights alone.
    - weights: doubling them doubles the logits bit for bit, short of overflow.
    - heads: their order is that of a sum, so results may differ by rounding.
    - unread keys: what a page holds past a request's keys, and pages of no request, are not read.
    """
    rows = len(call.tensors["lens"])
    if not rows:
        return
    same = _pieces(range(rows))
    if rows > 1:
        chosen = int(call.tensors["lens"].argmax())
        q, weights = call.tensors["q"].float(), call.tensors["weights"].clone()
        q[chosen] = q[chosen].roll(1, 0)
        weights[chosen] = weights[chosen] * LOUDER
        other = _with(call, q=q.to(call.tensors["q"].dtype), weights=weights)
        kept = tuple(piece for piece in same if piece.one != (chosen,))
        yield Variant("queries", f"query {chosen} changed", other, kept, exact=True)
    doubled = tuple(Piece(p.tensor, p.where, p.one, p.other, 0, factor=2.0) for p in same)
    weights = call.tensors["weights"]
    if float(weights.abs().nan_to_num(0.0).max()) < 1e30:
        yield Variant("weights", "weights doubled", _with(call, weights=weights * 2), doubled, exact=True)
    heads = call.tensors["q"].shape[1]
    if heads > 1:
        order = list(range(heads))[::-1]
        other = with_tensors(call, select_units(call, operation.tensors, {"H": order}))
        yield Variant("heads", "heads in reverse order", other, same)
    if "cache" in call.tensors:
        other = _with(call, cache=_other_unread(call))
        yield Variant("unread keys", "keys that no query scores", other, same, exact=True)


def _pieces(rows: range) -> tuple[Piece, ...]:
    return tuple(Piece("logits", f"query {row}", (row,), (row,), head_axis=0) for row in rows)


def _with(call: Call, **tensors: Tensor) -> Call:
    return with_tensors(call, {**call.tensors, **tensors})


def _other_unread(call: Call) -> Tensor:
    """The cache, of the same strides, with keys of ones where no query scores a key."""
    cache, tables = call.tensors["cache"], call.tensors["block_table"].long()
    blocks, size, _ = cache.shape
    read = torch.zeros(blocks * size, dtype=torch.bool)
    longest = call.tensors["lens"].long().view(len(tables), -1).amax(1).tolist()
    for table, length in zip(tables, longest, strict=True):
        pages = table[: -(-length // size)]
        slots = (pages.unsqueeze(1) * size + torch.arange(size)).flatten()[:length]
        read[slots] = True
    last = (
        sum((n - 1) * stride for n, stride in zip(cache.shape, cache.stride(), strict=True)) if blocks else -1
    )
    held = torch.zeros(last + 1, dtype=torch.uint8).as_strided(cache.shape, cache.stride())
    held.copy_(cache)
    codes, scales = page_parts(held)
    unread = ~read.view(blocks, size)
    codes[unread] = int(torch.ones(1).to(torch.float8_e4m3fn).view(torch.uint8))
    scales[unread] = torch.ones(1).view(torch.uint8)
    return held
