"""The laws of indexer_topk: rows are independent, columns outside a row's candidates are not read, and a
factor of 2 changes no order."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator

import torch

from gdnbench_kernels.contract import Call, Operation, Piece, Variant
from gdnbench_kernels.shrinking import select_units, with_tensors

LARGEST = 2.0**14
"""Logits up to this one can be doubled in float16 too."""


def variants(operation: Operation, call: Call) -> Iterator[Variant]:
    """Rows in another order; one row changed; other values outside the candidates; all logits doubled.

    A selection depends on the order of its row's candidates alone, so that all of them are exact.
    """
    logits, lens = call.tensors["logits"], call.tensors["lens"]
    rows = len(lens)
    if rows > 1:
        order = list(range(rows))[::-1]
        other = with_tensors(call, select_units(call, operation.tensors, {"R": order}))
        yield Variant("order", "rows in reverse order", other, _pieces(order), exact=True)
        longest = int(lens.argmax())
        changed = logits.clone()
        changed[longest] = -logits[longest]
        pieces = tuple(piece for piece in _pieces(list(range(rows))) if piece.one != (longest,))
        yield Variant("rows", f"row {longest} negated", _with(call, changed), pieces, exact=True)
    same = _pieces(list(range(rows)))
    outside = ~_candidate(call)
    if bool(outside.any()):
        above = logits[~outside].float().nan_to_num(0.0, 0.0, 0.0)
        level = float(above.max()) + 1 if above.numel() else 1.0
        changed = logits.masked_fill(outside, level)
        yield Variant("unread columns", "columns of no candidate", _with(call, changed), same, exact=True)
    finite = logits[logits.isfinite()]
    if rows and (not finite.numel() or float(finite.abs().max()) <= LARGEST):
        yield Variant("scale", "logits doubled", _with(call, logits * 2), same, exact=True)


def _with(call: Call, logits: torch.Tensor) -> Call:
    return with_tensors(call, {**call.tensors, "logits": logits})


def _candidate(call: Call) -> torch.Tensor:
    """bool [R, N]: which columns are candidates of their row."""
    column = torch.arange(call.tensors["logits"].shape[1])
    lens = call.tensors["lens"]
    start = call.tensors.get("row_starts", torch.zeros_like(lens)).unsqueeze(1)
    return (column >= start) & (column < start + lens.unsqueeze(1))


def _pieces(order: list[int]) -> tuple[Piece, ...]:
    """Each row of the first call in `order`, and the row at its place in the other call."""
    return tuple(
        Piece("indices", f"row {row}", (row,), (place,), head_axis=0) for place, row in enumerate(order)
    )
