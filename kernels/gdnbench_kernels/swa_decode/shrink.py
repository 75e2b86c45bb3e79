"""Makes calls of swa_decode smaller: requests, heads, columns of the window, entries of a request, unused
pages. Pages keep their size."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gdnbench_kernels.contract import Axis, Call, Operation
from gdnbench_kernels.shrinking import axis_of, optional_axis, pool_axis, with_tensors
from gdnbench_kernels.swa_decode.window import PADDING, attended, flat_indices, shaped_indices


def axes(operation: Operation, call: Call) -> tuple[Axis, ...]:
    requests, heads, _ = call.tensors["q"].shape
    indices, lens = _flat(call), call.tensors["swa_lens"].long()
    window, block_size = indices.shape[1], call.tensors["cache"].shape[1]
    counted = (torch.arange(window) < lens.unsqueeze(1)).nonzero()

    def keep_columns(kept: Sequence[int]) -> Call:
        columns = torch.tensor(list(kept), dtype=torch.long)
        return _with_window(call, indices[:, columns], (columns < lens.unsqueeze(1)).sum(1))

    def keep_entries(kept: Sequence[int]) -> Call:
        stays = torch.arange(window) >= lens.unsqueeze(1)
        stays[tuple(counted[list(kept)].T)] = True
        rows = torch.full_like(indices, PADDING)
        for row, left in enumerate(stays):
            rows[row, : int(left.sum())] = indices[row, left]
        left_of = torch.bincount(counted[list(kept), 0], minlength=requests)
        return _with_window(call, rows, left_of)

    def scales_of(pages: Tensor) -> dict[str, Tensor]:
        if "inv_scale" not in call.tensors:
            return {}
        return {"inv_scale": (pages.unsqueeze(1) * block_size + torch.arange(block_size)).flatten()}

    return (
        axis_of(operation, call, "requests", "T", requests, "sequence"),
        axis_of(operation, call, "heads", "H", heads, "head"),
        Axis("columns of the window", window, keep_columns),
        Axis("entries", len(counted), keep_entries, least=0),
        _page_axis(operation, call, scales_of),
        optional_axis(call, ("attn_sink",), {"output_lse": False}),
    )


def _page_axis(operation: Operation, call: Call, scales_of: Callable[[Tensor], dict[str, Tensor]]) -> Axis:
    """Pages that no request attends to; one page stays if otherwise none would."""
    found = pool_axis(operation, call, "pages not attended to", "cache", scales_of)
    least = 0 if found.units < len(call.tensors["cache"]) else 1
    return replace(found, least=least)


def extent(call: Call) -> dict[str, int]:
    requests, heads, _ = call.tensors["q"].shape
    return {
        "request": requests,
        "head": heads,
        "entry": int(call.tensors["swa_lens"].sum()),
        "column": _flat(call).shape[1],
        "page": len(call.tensors["cache"]),
    }


def level(call: Call) -> dict[str, float]:
    """Queries and rows of ones give scores near 1."""
    return {"q": call.tensors["q"].shape[2] ** -0.5}


def placed(call: Call, rows: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """swa_indices for a cache in which the call's pages are at `rows`. Stale entries become -1."""
    indices, size = _flat(call), call.tensors["cache"].shape[1]
    pages = torch.tensor(list(rows["cache"]), dtype=torch.long)
    found = torch.full_like(indices, PADDING)
    counts = attended(indices, call.tensors["swa_lens"])
    slots = indices[counts].long()
    found[counts] = (pages[slots // size] * size + slots % size).to(indices.dtype)
    return {"swa_indices": shaped_indices(found, _shape(call)).contiguous()}


def _flat(call: Call) -> Tensor:
    return flat_indices(call.tensors["swa_indices"], _shape(call))


def _shape(call: Call) -> str:
    return call.conventions.get("index_shape", "TW")


def _with_window(call: Call, indices: Tensor, lens: Tensor) -> Call:
    given = call.tensors["swa_lens"]
    tensors = {
        "swa_indices": shaped_indices(
            indices.to(call.tensors["swa_indices"].dtype), _shape(call)
        ).contiguous(),
        "swa_lens": lens.to(given.dtype),
    }
    return with_tensors(call, {**call.tensors, **tensors})
