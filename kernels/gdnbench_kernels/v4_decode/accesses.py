# SPDX-License-Identifier: Apache-2.0
"""The latent rows that the queries of a call attend to, for `gdnbench lineage`."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Accesses, Call
from gdnbench_kernels.swa_decode.layouts import page_parts
from gdnbench_kernels.v4_decode.segments import Segment, segments_of


def accesses(call: Call) -> tuple[Accesses, ...]:
    """A read for each row of the window that counts, and for each of the extra segment; the call writes
    nothing.

    Entry j of a window of n has the position s + j - (n - 1) from the token of the request's first query, s
    being the query: windows are in order of position and end with their query's own token. `gdnbench lineage`
    checks that windows of successive calls fit together before it relies on this. Entries of the extra
    segment are all compressed positions in order, or a selection of as many as the table has room for.
    """
    window, *extra = segments_of(call.tensors, call.conventions)
    requests, queries = call.tensors["q"].shape[:2]
    return (_window(window, requests, queries), *(_compressed(one, requests, queries) for one in extra))


def _window(window: Segment, requests: int, queries: int) -> Accesses:
    lens, slots = window.lens.cpu().long(), window.slots.cpu()
    row, entry = torch.nonzero(window.counts.cpu(), as_tuple=True)
    position = row % queries + entry - (lens[row] - 1)
    reads = torch.stack([row // queries, slots[row, entry], position], dim=1)
    reads = torch.unique(reads, dim=0)  # queries of a request share rows
    return _reads("window", window, reads, requests, queries)


def _compressed(extra: Segment, requests: int, queries: int) -> Accesses:
    slots = extra.slots.cpu()
    row, entry = torch.nonzero(extra.counts.cpu(), as_tuple=True)
    reads = torch.stack([row // queries, slots[row, entry], row % queries], dim=1)
    # A table of pages has all positions, however many there are.
    room = extra.capacity + 1 if extra.of_pages else extra.capacity
    return _reads("compressed", extra, reads, requests, queries, room)


def _reads(
    chain: str, segment: Segment, reads: torch.Tensor, requests: int, queries: int, compressed: int = 0
) -> Accesses:
    return Accesses(
        chain,
        segment.names.cache,
        None,
        reads,
        torch.empty((0, 3), dtype=torch.int64),
        torch.full((requests,), queries, dtype=torch.int64),
        pooled=True,
        split=segment.block_size,
        parts=page_parts(segment.layout),
        window=True,
        compressed=compressed,
    )
