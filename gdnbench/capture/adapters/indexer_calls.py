# SPDX-License-Identifier: Apache-2.0
"""Shared by adapters of sparse attention's indexers: calls recorded as indexer_logits and indexer_topk.

An engine's logits have room for its longest context: columns of no key are stale. A record has them all,
unless the step says how far its keys reach; `dispatch.columns_as_called` is the number that the caller asked
for. Lengths of a request with several queries, and lengths of packed keys, are made by capture
(`dispatch.made_by_capture`), exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen
from gdnbench.capture.adapters.contract_forms import check_forms

if TYPE_CHECKING:
    from torch import Tensor

SCALED = "queries with scales of their own (MX formats, FP4), which indexer_logits does not have"
FP8 = "queries or keys of another dtype than e4m3, which the adapter does not read"
UNEVEN_LENGTHS = "lengths that are neither of a request nor of a query"
LOGITS_COUNTS = ("lens", "block_table", "row_starts")
TOPK_COUNTS = ("lens", "row_starts")


def first_given(arguments: Mapping[str, Any], *names: str, default: Any = None) -> Any:
    """The argument under the first of `names` that the function has."""
    return next((arguments[name] for name in names if name in arguments), default)


def plain_queries(q: Any) -> Tensor:
    """The e4m3 queries of a call that may give them with a scale. NotCaptured for others."""
    import torch

    values: Tensor = q
    if isinstance(q, tuple | list):
        values, scale = q
        if scale is not None:
            raise NotCaptured(SCALED)
    if values.dtype != torch.float8_e4m3fn:
        raise NotCaptured(FP8)
    return values.detach()


def row_lengths(lens: Tensor, requests: int, queries: int) -> tuple[Seen, bool]:
    """int32 [requests * queries] of lengths of queries or of requests, whose last query sees all keys; and
    whether capture made them. Waits for no device."""
    import torch

    rows, found = requests * queries, lens.detach().reshape(-1)
    if len(found) not in (rows, requests):
        raise NotCaptured(UNEVEN_LENGTHS)
    made = len(found) != rows
    if made:
        before = torch.arange(1 - queries, 1, device=lens.device)
        found = (found.long().unsqueeze(1) + before).clamp(min=0).flatten()
    if found.dtype != torch.int32:
        found, made = found.int(), True
    return Seen(found, None, lens), made


def paged_logits(
    *,
    q: Any,
    cache: Tensor,
    weights: Tensor,
    lens: Tensor,
    block_table: Tensor,
    columns: int,
    clean: bool = False,
    indices: Tensor | None = None,
    reach: int | None = None,
    dispatch: Mapping[str, Any],
) -> Observation:
    """A call over pages [blocks, block_size, 1, D+4] of q [B, S, H, D] or (q, None). `indices`: the request
    of each row. `reach`: no query has more keys."""
    import torch

    values = plain_queries(q)
    requests, queries, heads, features = values.shape
    made = []
    if indices is not None:  # a request for each query, with the pages of its request
        if queries != 1:
            raise NotCaptured("several queries of a request beside their requests' numbers (indices)")
        place = indices.detach().long().clamp(0, max(len(block_table) - 1, 0))
        table, made = block_table.detach().index_select(0, place), ["block_table"]
    else:
        table = block_table.detach()[:requests]
    lengths, lengths_made = row_lengths(lens, requests, queries)
    if lengths_made:
        made.append("lens")
    if table.dtype != torch.int32:
        table = table.int()
        made.append("block_table")
    pages = cache.detach()
    pages = (pages.squeeze(2) if pages.ndim == 4 else pages).view(torch.uint8)
    rows = requests * queries
    tensors = {
        "q": Seen(values, (rows, heads, features)),
        "weights": Seen(weights.detach()[:rows], (rows, heads), weights),
        "lens": lengths,
        "cache": Seen(pages, None, cache),
        "block_table": Seen(table, None, block_table),
    }
    return _logits(tensors, columns, reach, made, {"clean_logits": clean}, dispatch)


def packed_logits(
    *,
    q: Any,
    kv: Any,
    weights: Tensor,
    starts: Tensor,
    ends: Tensor,
    columns: int | None,
    clean: bool = False,
    dispatch: Mapping[str, Any],
) -> Observation:
    """A call over packed keys (k [N, D], scales [N]) of q [T, H, D] or (q, None). `columns`: of logits whose
    column 0 is each query's first key; None: a column for each key."""
    import torch

    values, (k, scale) = plain_queries(q), kv
    if k.dtype != torch.float8_e4m3fn or scale.dtype != torch.float32:
        raise NotCaptured(FP8)
    tensors = {
        "q": Seen(values),
        "weights": Seen(weights.detach(), tuple(values.shape[:2])),
        "lens": Seen((ends.detach().long() - starts.detach()).clamp(min=0).int(), None, ends),
        "k": Seen(k.detach()),
        "k_scale": Seen(scale.detach(), (len(k),)),
        "row_starts": Seen(starts.detach().int(), None, starts),
    }
    scalars = {"clean_logits": clean, "compressed": columns is not None}
    return _logits(tensors, len(k) if columns is None else columns, None, ["lens"], scalars, dispatch)


def _logits(
    tensors: Mapping[str, Seen],
    columns: int,
    reach: int | None,
    made: Sequence[str],
    scalars: Mapping[str, Any],
    dispatch: Mapping[str, Any],
) -> Observation:
    check_forms("indexer_logits", tensors, {}, LOGITS_COUNTS)
    return Observation(
        op="indexer_logits",
        tensors=tensors,
        scalars={"columns": _within(columns, reach), "logits_dtype": "float32", **scalars},
        conventions={},
        dispatch={
            "columns_as_called": columns,
            **({"made_by_capture": list(made)} if made else {}),
            **dispatch,
        },
    )


def logits_of(seen: Observation, logits: Tensor) -> Mapping[str, Seen]:
    """The recorded columns of logits [T, ...]. NotCaptured for those of another dtype than fp32."""
    import torch

    if logits.dtype != torch.float32:
        raise NotCaptured("logits of another dtype than fp32, of kernels for MX formats")
    columns = seen.scalars["columns"]
    assert isinstance(columns, int)
    return {"logits": Seen(logits.detach()[:, :columns], None, logits)}


def topk_observation(
    logits: Tensor,
    lens: Seen,
    top_k: int,
    *,
    starts: Tensor | None = None,
    reach: int | None = None,
    made: Sequence[str] = (),
    dispatch: Mapping[str, Any] | None = None,
) -> Observation:
    """A call that selects `top_k` of each row of logits [R, N]."""
    columns = logits.shape[1]
    tensors = {"logits": Seen(logits.detach()[:, : _within(columns, reach)], None, logits), "lens": lens}
    if starts is not None:
        tensors["row_starts"] = Seen(starts.detach().int(), None, starts)
    check_forms("indexer_topk", tensors, {}, TOPK_COUNTS)
    return Observation(
        op="indexer_topk",
        tensors=tensors,
        scalars={"top_k": top_k},
        conventions={},
        dispatch={
            "columns_as_called": columns,
            **({"made_by_capture": list(made)} if made else {}),
            **(dispatch or {}),
        },
    )


def _within(columns: int, reach: int | None) -> int:
    """`columns`, but no more than `reach`. All of them in a CUDA graph, whose replays may reach further."""
    import torch

    if reach is None or reach >= columns:
        return columns
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return columns
    return max(int(reach), 1)


def positions_of_slots(slots: Tensor, page_table: Tensor, page_size: int, lens: Tensor) -> Tensor:
    """int32 [R, K]: positions in order of the pages of each row, of slots of these pages; -1 stays. Waits for
    no device.

    `page_table` [R, P]: the pages of a row's positions, stale ones after its last. `lens` [R].
    """
    import torch

    pages = -(-lens.reshape(-1, 1).long() // page_size)
    column = torch.arange(page_table.shape[1], device=page_table.device)
    known = page_table.long().masked_fill(column >= pages, torch.iinfo(torch.int64).max)
    ascending, order = known.sort(1)
    asked = (slots.long() // page_size).clamp(min=0)
    place = torch.searchsorted(ascending, asked).clamp(max=page_table.shape[1] - 1)
    found = order.gather(1, place) * page_size + slots.long() % page_size
    right = (slots >= 0) & (ascending.gather(1, place) == asked)
    return found.where(right, -1).int()
