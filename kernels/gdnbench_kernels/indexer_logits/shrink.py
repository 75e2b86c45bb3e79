# SPDX-License-Identifier: Apache-2.0
"""Makes calls of indexer_logits smaller: requests, queries of packed keys, heads, keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdnbench_kernels.contract import Axis, Call, Operation
from gdnbench_kernels.shrinking import axis_of, optional_axis, pool_axis, select_units, with_tensors


def axes(operation: Operation, call: Call) -> tuple[Axis, ...]:
    rows, heads, _ = call.tensors["q"].shape
    of_heads = axis_of(operation, call, "heads", "H", heads, "head")
    longest = int(call.tensors["lens"].max()) if rows else 0

    def keep_keys(kept: Sequence[int]) -> Call:
        """The first keys of every query, as many as are kept."""
        lens = call.tensors["lens"].clamp(max=len(kept))
        return with_tensors(call, {**call.tensors, "lens": lens})

    keys = Axis("keys of a query", longest, keep_keys, least=0)
    if "cache" not in call.tensors:
        of_queries = axis_of(operation, call, "queries", "T", rows, "sequence")
        return (of_queries, of_heads, keys, optional_axis(call, ("k_scale",), {}))
    requests = len(call.tensors["block_table"])
    group = rows // max(1, requests)

    def keep_requests(kept: Sequence[int]) -> Call:
        queries = [request * group + place for request in kept for place in range(group)]
        tensors = select_units(call, operation.tensors, {"B": kept, "T": queries})
        return with_tensors(call, tensors)

    def request_at(place: Mapping[str, int]) -> int | None:
        return place["sequence"] // max(1, group) if "sequence" in place else None

    return (
        Axis("requests", requests, keep_requests, unit_at=request_at),
        of_heads,
        keys,
        pool_axis(operation, call, "pages not read", "cache"),
    )


def extent(call: Call) -> dict[str, int]:
    rows, heads, _ = call.tensors["q"].shape
    found = {"query": rows, "head": heads, "key": int(call.tensors["lens"].sum())}
    if "cache" in call.tensors:
        found["page"] = len(call.tensors["cache"])
    return found


def level(call: Call) -> dict[str, float]:
    """Queries and keys of ones have a score of D, and weights of 1 / H leave it."""
    return {"weights": 1 / call.tensors["q"].shape[1]}
