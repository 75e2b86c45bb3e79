"""The laws of v4_compress: causality, independence and order of sequences, pages that the call does not use,
and a call in two parts."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Operation, Piece, Split, Variant
from gdnbench_kernels.shrinking import take_units, with_tensors
from gdnbench_kernels.v4_compress.shrink import keep_parts
from gdnbench_kernels.v4_compress.windows import NOT_KEPT, windows_of

LOUDER = -8.0


def variants(operation: Operation, call: Call) -> Iterator[Variant]:
    """The end of the longest sequence changed; one sequence changed; sequences and pages in another order;
    and other values in pages that the call does not use.

    - causality: an entry is made of tokens up to the one that closes its window.
    - sequences: no sequence depends on another one.
    - order: a batch and a pool only say where sequences and states are.
    - unused pages: a call reads the states of its windows alone.
    """
    bounds = _bounds(call)
    lengths = [stop - start for start, stop in bounds]
    if not any(lengths):
        return
    longest = max(range(len(lengths)), key=lengths.__getitem__)
    start, stop = bounds[longest]
    if stop - start > 1:
        middle = start + (stop - start) // 2
        other = _changed(call, slice(middle, stop))
        pieces = tuple(
            _entries(call, [(row, row) for row in range(len(call.tensors["kv"])) if not middle <= row < stop])
        )
        yield Variant(
            "causality", f"tokens from {middle - start} of sequence {longest}", other, pieces, exact=True
        )
    if len(bounds) > 1:
        rows = [row for row in range(len(call.tensors["kv"])) if not start <= row < stop]
        other = _changed(call, slice(start, stop))
        yield Variant(
            "sequences",
            f"sequence {longest} changed",
            other,
            tuple(_entries(call, [(r, r) for r in rows])),
            exact=True,
        )
        yield _reordered(call)
    used = operation.touched(call)["state"]
    unused = torch.ones(len(call.tensors["state"]), dtype=torch.bool)
    unused[used] = False
    if bool(unused.any()):
        state = call.tensors["state"].clone()
        state[unused] = torch.nan
        same = [(row, row) for row in range(len(call.tensors["kv"]))]
        pieces = (*_entries(call, same), *_pages({page: page for page in used.tolist()}))
        other = with_tensors(call, {**call.tensors, "state": state})
        yield Variant("unused pages", "pages that are not used hold NaN", other, pieces, exact=True)


def splits(operation: Operation, call: Call) -> Iterator[Split]:
    """Each sequence in two parts, the second from the states that the first left; none where the first part's
    states are not kept."""
    bounds = _bounds(call)
    lengths = [stop - start for start, stop in bounds]
    cuts = [(length + 1) // 2 for length in lengths]
    if not any(0 < cut < length for cut, length in zip(cuts, lengths, strict=True)):
        return
    first = keep_parts(call, [(n, 0, cut) for n, cut in enumerate(cuts)])
    rest = keep_parts(
        call, [(n, cut, length) for n, (cut, length) in enumerate(zip(cuts, lengths, strict=True))]
    )
    try:
        operation.validate(rest)
    except ValueError:  # a page of the first part that the second needs is not kept
        return

    def second(results: Mapping[str, Tensor]) -> Call:
        return with_tensors(rest, {**rest.tensors, "state": results["state"].clone()})

    before, after = [], []
    for n, (start, _) in enumerate(bounds):
        in_first, in_second = int(first.tensors["cu_seqlens"][n]), int(rest.tensors["cu_seqlens"][n])
        before += [(start + place, in_first + place) for place in range(cuts[n])]
        after += [(start + place, in_second + place - cuts[n]) for place in range(cuts[n], lengths[n])]
    pages = operation.touched(rest)["state"].tolist()
    second_pieces = (*_entries(call, after), *_pages({page: page for page in pages}))
    yield Split("in the middle", first, second, tuple(_entries(call, before)), second_pieces)


def _bounds(call: Call) -> list[tuple[int, int]]:
    return list(pairwise(call.tensors["cu_seqlens"].tolist()))


def _entries(call: Call, rows: list[tuple[int, int]]) -> Iterator[Piece]:
    """The rows of entries that close a window: of the first call, and of the other."""
    scalars = call.scalars
    windows = windows_of(
        call.tensors["cu_seqlens"],
        call.tensors["starts"],
        int(scalars.get("ratio", 4) or 0),
        bool(scalars.get("overlap", True)),
    )
    closing = dict(zip(windows.row.tolist(), windows.sequence.tolist(), strict=True))
    for one, other in rows:
        if one in closing:
            yield Piece("entries", f"sequence {closing[one]} token {one}", (one,), (other,), head_axis=0)


def _pages(pages: Mapping[int, int]) -> Iterator[Piece]:
    for one, other in pages.items():
        yield Piece("state", f"page {one}", (one,), (other,), head_axis=0)


def _changed(call: Call, rows: slice) -> Call:
    tensors = dict(call.tensors)
    for name in ("kv", "score"):
        tensors[name] = tensors[name].clone()
        tensors[name][rows] = tensors[name][rows].roll(1, 1) * LOUDER
    return with_tensors(call, tensors)


def _reordered(call: Call) -> Variant:
    bounds = _bounds(call)
    order = list(range(len(bounds)))[::-1]
    tensors = dict(keep_parts(call, [(n, 0, bounds[n][1] - bounds[n][0]) for n in order]).tensors)
    blocks = len(call.tensors["state"])
    tensors["state"] = take_units(call.tensors["state"], 0, range(blocks)[::-1])
    table = tensors["block_table"]
    tensors["block_table"] = torch.where(table == NOT_KEPT, table, blocks - 1 - table)
    theirs = tensors["cu_seqlens"].tolist()
    rows = [
        (row, theirs[len(bounds) - 1 - n] + row - start)
        for n, (start, stop) in enumerate(bounds)
        for row in range(start, stop)
    ]
    what = "sequences and pages in reverse order"
    return Variant("order", what, with_tensors(call, tensors), tuple(_entries(call, rows)), exact=True)
