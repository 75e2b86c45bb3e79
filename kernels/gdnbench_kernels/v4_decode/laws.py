"""The laws of v4_decode: independence and order of queries, order of both caches' pages, slots that no query
attends to, and an extra segment of which nothing counts."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Operation, Piece, Variant
from gdnbench_kernels.latent_pool import WINDOW, rows_of_slots, with_pages
from gdnbench_kernels.shrinking import select_units, take_units, with_tensors
from gdnbench_kernels.v4_decode.segments import EXTRA, Segment, segments_of, shaped_rows

LOUDER = -4.0
"""Factor of the changed queries: their scores differ by several times as much."""


def variants(operation: Operation, call: Call) -> Iterator[Variant]:
    """One query changed; requests in another order; pages of a cache in another order; other values where no
    query attends; and an extra segment without entries for a call that has none.

    - requests: no query depends on another one's values, length or entries, be it of the same request.
    - order: a batch says only where its requests are.
    - pages: entries name the same rows in the same order, wherever their pages are. So the bits are the same.
    - unread slots: a slot that no query attends to is not read, and neither is what an entry past a row's
      length names, be it a live slot. So the bits are the same.
    - empty segment: a sum over nothing adds nothing.
    """
    segments = segments_of(call.tensors, call.conventions)
    requests, queries = call.tensors["q"].shape[:2]
    if not requests:
        return
    if requests * queries > 1:
        yield _one_query(operation, call, segments)
    if requests > 1:
        yield _reordered(operation, call)
    for one in segments:
        if len(one.cache) > 1:
            yield _pages(operation, call, one)
    if any(bool(one.counts.any()) for one in segments):
        yield _unread(operation, call, segments)
    if len(segments) == 1:
        yield _empty_segment(operation, call)


def _pieces(operation: Operation, call: Call, order: Iterable[int]) -> Iterator[Piece]:
    """Each query of the requests in `order`, and the query at its place in the other call."""
    queries = call.tensors["q"].shape[1]
    for place, request in enumerate(order):
        for query in range(queries):
            where = f"request {request}" + (f" query {query}" if queries > 1 else "")
            for name in operation.outputs(call):
                yield Piece(name, where, (request, query), (place, query), head_axis=0)


def _same_pieces(operation: Operation, call: Call) -> tuple[Piece, ...]:
    return tuple(_pieces(operation, call, range(len(call.tensors["q"]))))


def _with_table(call: Call, segment: Segment, table: Tensor) -> dict[str, Tensor]:
    requests, queries = call.tensors["q"].shape[:2]
    shape = call.conventions.get("index_shape", "BSW")
    shaped = shaped_rows(table.to(torch.int32), shape, requests, queries)
    return {segment.names.indices: shaped.contiguous()}


def _one_query(operation: Operation, call: Call, segments: tuple[Segment, ...]) -> Variant:
    """The query with most entries has other values, and attends to half of its slots unless its length is
    that of all queries of its request."""
    queries = call.tensors["q"].shape[1]
    row = int(torch.stack([one.lens.long() for one in segments]).sum(0).argmax())
    chosen = (row // queries, row % queries)
    q = call.tensors["q"].clone()
    q[chosen] = q[chosen].roll(1, 0) * LOUDER
    tensors = {**call.tensors, "q": q}
    if call.conventions.get("lens_shape", "BS") != "B":
        for one in segments:
            lens = call.tensors[one.names.lens].clone()
            lens.view(-1)[row] //= 2
            tensors[one.names.lens] = lens
    kept = tuple(piece for piece in _same_pieces(operation, call) if piece.one != chosen)
    return Variant(
        "requests", f"request {chosen[0]} query {chosen[1]} changed", with_tensors(call, tensors), kept
    )


def _reordered(operation: Operation, call: Call) -> Variant:
    requests, queries = call.tensors["q"].shape[:2]
    order = list(range(requests))[::-1]
    rows = [request * queries + query for request in order for query in range(queries)]
    other = with_tensors(call, select_units(call, operation.tensors, {"B": order, "T": rows}))
    return Variant("order", "requests in reverse order", other, tuple(_pieces(operation, call, order)))


def _pages(operation: Operation, call: Call, one: Segment) -> Variant:
    names, size = one.names, one.block_size
    blocks = len(one.cache)
    table = one.table.long()
    reversed_pages = (
        blocks - 1 - table if one.of_pages else (blocks - 1 - table // size) * size + table % size
    )
    tensors = {**call.tensors, **_with_table(call, one, table.where(~one.followed, reversed_pages))}
    tensors[names.cache] = with_pages(one.cache, take_units(one.cache, 0, range(blocks)[::-1]))
    if one.inv_scale is not None:
        tensors[names.inv_scale] = one.inv_scale.view(blocks, size).flip(0).flatten()
    what = f"pages of {names.cache} in reverse order"
    return Variant("pages", what, with_tensors(call, tensors), _same_pieces(operation, call), exact=True)


def _unread(operation: Operation, call: Call, segments: tuple[Segment, ...]) -> Variant:
    """Slots that no query attends to hold the rows of attended ones, which are finite; entries past a row's
    length name attended slots or their pages, of whichever query."""
    tensors = dict(call.tensors)
    for one in segments:
        if bool(one.counts.any()):
            tensors |= _with_other_rows(call, one)
    what = "slots that no query attends to, and entries past the lengths"
    pieces = _same_pieces(operation, call)
    return Variant("unread slots", what, with_tensors(call, tensors), pieces, exact=True)


def _with_other_rows(call: Call, one: Segment) -> dict[str, Tensor]:
    names, size = one.names, one.block_size
    live = one.slots[one.counts]
    unread = torch.ones(len(one.cache) * size, dtype=torch.bool)
    unread[live] = False
    target = unread.nonzero().squeeze(1)
    source = live[torch.arange(len(target)) % len(live)]
    tensors = {names.cache: with_pages(one.cache, one.cache)}
    for of_slot in rows_of_slots(tensors[names.cache], one.layout):
        of_slot[target // size, target % size] = of_slot[source // size, source % size]
    if one.inv_scale is not None:
        scales = one.inv_scale.clone()
        scales[target] = scales[source]
        tensors[names.inv_scale] = scales
    table, entries = one.table.long().clone(), torch.arange(one.table.shape[1])
    past = entries * (size if one.of_pages else 1) >= one.lens.unsqueeze(1)
    named = live // size if one.of_pages else live
    table[past] = named[torch.arange(int(past.sum())) % len(named)]
    return tensors | _with_table(call, one, table)


def _empty_segment(operation: Operation, call: Call) -> Variant:
    """The window's own cache once more as the extra one; lengths of 0, and entries of 0."""
    tensors = dict(call.tensors)
    for own, other in ((WINDOW.cache, EXTRA.cache), (WINDOW.inv_scale, EXTRA.inv_scale)):
        if own in tensors:
            tensors[other] = tensors[own]
    tensors[EXTRA.indices] = torch.zeros_like(tensors[WINDOW.indices])
    tensors[EXTRA.lens] = torch.zeros_like(tensors[WINDOW.lens])
    layout = call.conventions.get(WINDOW.layout, operation.default_conventions[WINDOW.layout])
    conventions = {**call.conventions, EXTRA.layout: layout, "extra_index_form": "indices"}
    changed = Call(tensors, call.scalars, conventions)
    pieces = _same_pieces(operation, call)
    return Variant("empty segment", "an extra segment of which nothing counts", changed, pieces)
