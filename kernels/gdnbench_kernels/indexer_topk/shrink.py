# SPDX-License-Identifier: Apache-2.0
"""Makes calls of indexer_topk smaller: rows, columns, K."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gdnbench_kernels.contract import Axis, Call, Operation
from gdnbench_kernels.shrinking import axis_of, take_units, with_tensors


def axes(operation: Operation, call: Call) -> tuple[Axis, ...]:
    rows, columns = call.tensors["logits"].shape
    top_k = _top_k(call)

    def keep_columns(kept: Sequence[int]) -> Call:
        lens = call.tensors["lens"]
        start = call.tensors.get("row_starts", torch.zeros_like(lens)).unsqueeze(1)
        column = torch.tensor(list(kept)).unsqueeze(0)
        before = column < start
        inside = ~before & (column < start + lens.unsqueeze(1))
        tensors = {**call.tensors, "logits": take_units(call.tensors["logits"], 1, kept)}
        tensors["lens"] = inside.sum(1).to(lens.dtype)
        if "row_starts" in tensors:
            tensors["row_starts"] = before.sum(1).to(lens.dtype)
        return with_tensors(call, tensors)

    def keep_entries(kept: Sequence[int]) -> Call:
        return Call(call.tensors, {**call.scalars, "top_k": len(kept)}, call.conventions)

    return (
        axis_of(operation, call, "rows", "R", rows, "sequence"),
        Axis("columns", columns, keep_columns),
        Axis("selected entries", top_k, keep_entries),
    )


def extent(call: Call) -> dict[str, int]:
    return {
        "row": len(call.tensors["lens"]),
        "candidate": int(call.tensors["lens"].sum()),
        "column": call.tensors["logits"].shape[1],
        "entry": _top_k(call),
    }


def level(call: Call) -> dict[str, float]:
    """Ones are as good as any: all candidates are then equal."""
    return {}


def _top_k(call: Call) -> int:
    value = call.scalars.get("top_k", 512)
    assert isinstance(value, int)
    return value
