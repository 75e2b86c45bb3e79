"""Makes calls of v4_decode smaller: requests, queries, heads, columns and entries of both tables, unused
pages of both caches, the extra segment. Pages keep their size."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gdnbench_kernels.contract import Axis, Call, ContractError, Operation
from gdnbench_kernels.latent_pool import PoolNames, slots_of_pages
from gdnbench_kernels.shrinking import axis_of, optional_axis, pool_axis, select_units, with_tensors
from gdnbench_kernels.swa_decode.window import PADDING
from gdnbench_kernels.v4_decode.checks import lens_in
from gdnbench_kernels.v4_decode.segments import EXTRA, POOLS, Segment, segments_of, shaped_rows

TITLES = {"swa_indices": "the window", "extra_indices": "the extra segment"}


def axes(operation: Operation, call: Call) -> tuple[Axis, ...]:
    requests, queries, heads, _ = call.tensors["q"].shape
    segments = segments_of(call.tensors, call.conventions)

    def keep_requests(kept: Sequence[int]) -> Call:
        return _with_rows(operation, call, kept, range(queries))

    def keep_queries(kept: Sequence[int]) -> Call:
        return _with_rows(operation, call, range(requests), kept)

    found = [
        Axis("requests", requests, keep_requests, unit_at=lambda place: place.get("sequence")),
        Axis("queries", queries, keep_queries, unit_at=lambda place: place.get("token")),
        axis_of(operation, call, "heads", "H", heads, "head"),
    ]
    extra = len(segments) - 1
    found.append(Axis("extra segments", extra, lambda kept: call if kept else _without_extra(call), least=0))
    for names in POOLS:
        one = next((one for one in segments if one.names is names), None)
        found += _segment_axes(operation, call, names, one)
    return (*found, optional_axis(call, ("attn_sink",), {"output_lse": False}))


def _segment_axes(
    operation: Operation, call: Call, names: PoolNames, one: Segment | None
) -> tuple[Axis, Axis, Axis]:
    """Columns, entries and unused pages of a segment; without units where the call has none."""
    title, pages = TITLES[names.indices], f"pages of {names.cache} not attended to"
    absent = [Axis(f"columns of {title}", 0, lambda kept: call, least=0)]
    absent += [Axis(f"entries of {title}", 0, lambda kept: call, least=0)]
    absent += [Axis(pages, 0, lambda kept: call, least=0)]
    if one is None:
        return absent[0], absent[1], absent[2]
    entries = absent[1] if one.of_pages else _entries(call, one)
    return _columns(call, one), entries, _page_axis(operation, call, names, pages)


def _with_rows(operation: Operation, call: Call, requests: Sequence[int], queries: Sequence[int]) -> Call:
    """The call with these requests and these of their queries."""
    count = call.tensors["q"].shape[1]
    rows = [request * count + query for request in requests for query in queries]
    kept = {"B": list(requests), "S": list(queries), "T": rows}
    return with_tensors(call, select_units(call, operation.tensors, kept))


def _without_extra(call: Call) -> Call:
    gone = (EXTRA.cache, EXTRA.inv_scale, EXTRA.indices, EXTRA.lens)
    return with_tensors(call, {name: one for name, one in call.tensors.items() if name not in gone})


def _columns(call: Call, one: Segment) -> Axis:
    """Columns of a table; a length loses the entries, or the positions of pages, that it counted there."""
    size = one.block_size if one.of_pages else 1
    first = torch.arange(one.table.shape[1]) * size
    counted = (one.lens.long().unsqueeze(1) - first).clamp(0, size)

    def keep(kept: Sequence[int]) -> Call:
        columns = list(kept)
        return _with_table(call, one, one.table[:, columns], counted[:, columns].sum(1))

    return Axis(f"columns of {TITLES[one.names.indices]}", one.table.shape[1], keep)


def _entries(call: Call, one: Segment) -> Axis:
    """Entries below the lengths. Rows move up; entries past their new lengths are those that were there, and
    -1 below the length of another query that has the same one."""
    rows, width = one.table.shape
    counted = (torch.arange(width) < one.lens.unsqueeze(1)).nonzero()

    def keep(kept: Sequence[int]) -> Call:
        left = counted[list(kept)]
        table = one.table.clone()
        lens = torch.bincount(left[:, 0], minlength=rows)
        place = torch.arange(len(left)) - (lens.cumsum(0) - lens)[left[:, 0]]
        table[left[:, 0], place] = one.table[left[:, 0], left[:, 1]]
        if call.conventions.get("lens_shape", "BS") == "B":
            if one.legal:
                raise ContractError("a row without some of its entries has another length than its request's")
            queries, own = call.tensors["q"].shape[1], lens
            lens = own.view(-1, queries).amax(1).repeat_interleave(queries)
            entries = torch.arange(width)
            table[(entries >= own.unsqueeze(1)) & (entries < lens.unsqueeze(1))] = PADDING
        return _with_table(call, one, table, lens)

    return Axis(f"entries of {TITLES[one.names.indices]}", len(counted), keep, least=0)


def _page_axis(operation: Operation, call: Call, names: PoolNames, title: str) -> Axis:
    """Pages that no query attends to; one page stays if otherwise none would."""
    size = call.tensors[names.cache].shape[1]

    def scales_of(pages: Tensor) -> dict[str, Tensor]:
        return {names.inv_scale: slots_of_pages(pages, size)} if names.inv_scale in call.tensors else {}

    found = pool_axis(operation, call, title, names.cache, scales_of)
    least = 0 if found.units < len(call.tensors[names.cache]) else 1
    return replace(found, least=least)


def extent(call: Call) -> dict[str, int]:
    requests, queries, heads, _ = call.tensors["q"].shape
    found = {"request": requests, "query": queries, "head": heads}
    segments = segments_of(call.tensors, call.conventions)
    for names, entry, prefix in zip(POOLS, ("entry", "compressed row"), ("", "extra "), strict=True):
        one = next((one for one in segments if one.names is names), None)
        found |= {
            entry: 0 if one is None else int(one.lens.sum()),
            f"{prefix}column": 0 if one is None else one.table.shape[1],
            f"{prefix}page": 0 if one is None else len(one.cache),
        }
    return found


def level(call: Call) -> dict[str, float]:
    """Queries and rows of ones give scores near 1."""
    return {"q": call.tensors["q"].shape[3] ** -0.5}


def placed(call: Call, rows: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """The index tensors for caches in which the call's pages are at `rows`. Entries that no kernel may follow
    name the first of these, or -1 if they are negative."""
    found = {}
    for one in segments_of(call.tensors, call.conventions):
        if one.names.cache not in rows:
            continue
        size = 1 if one.of_pages else one.block_size
        pages = torch.tensor(list(rows[one.names.cache]), dtype=torch.long)
        table, followed = one.table.long(), one.followed
        new = torch.where(table < 0, PADDING, pages[:1].sum() * size)
        kept = table[followed]
        new[followed] = pages[kept // size] * size + kept % size
        found[one.names.indices] = _shaped(call, new)
    return found


def _with_table(call: Call, one: Segment, table: Tensor, lens: Tensor) -> Call:
    requests, queries = call.tensors["q"].shape[:2]
    shape = call.conventions.get("lens_shape", "BS")
    tensors = {
        one.names.indices: _shaped(call, table),
        one.names.lens: lens_in(lens.to(torch.int32), "T", shape, requests, queries),
    }
    return with_tensors(call, {**call.tensors, **tensors})


def _shaped(call: Call, table: Tensor) -> Tensor:
    requests, queries = call.tensors["q"].shape[:2]
    shape = call.conventions.get("index_shape", "BSW")
    return shaped_rows(table.to(torch.int32), shape, requests, queries).contiguous()
