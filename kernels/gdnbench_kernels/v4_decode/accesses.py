"""The latent rows that the queries of a call attend to, for `gdnbench lineage`."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Accesses, Call
from gdnbench_kernels.swa_decode.layouts import DATA_BYTES, SCALE_BYTES, CacheLayout
from gdnbench_kernels.v4_decode.segments import Segment, segments_of


def accesses(call: Call) -> tuple[Accesses, ...]:
    """A read for each row of the window that counts; the call writes nothing.

    Entry j of a window of n has the position s + j - (n - 1) from the token of the request's first query, s
    being the query: windows are in order of position and end with their query's own token. `gdnbench lineage`
    checks that windows of successive calls fit together before it relies on this. Rows of the extra segment
    are left out: an entry of a top-k does not say which position it is of.
    """
    window, *_ = segments_of(call.tensors, call.conventions)
    return (_window(window, *call.tensors["q"].shape[:2]),)


def _window(window: Segment, requests: int, queries: int) -> Accesses:
    lens, slots = window.lens.cpu().long(), window.slots.cpu()
    row, entry = torch.nonzero(window.counts.cpu(), as_tuple=True)
    position = row % queries + entry - (lens[row] - 1)
    reads = torch.stack([row // queries, slots[row, entry], position], dim=1)
    none = torch.empty((0, 3), dtype=torch.int64)
    return Accesses(
        "window",
        window.names.cache,
        None,
        torch.unique(reads, dim=0),  # queries of a request share rows
        none,
        torch.full((requests,), queries, dtype=torch.int64),
        pooled=True,
        split=window.block_size,
        parts=(DATA_BYTES, SCALE_BYTES) if window.layout is CacheLayout.FP8_DS_MLA else None,
        window=True,
    )
