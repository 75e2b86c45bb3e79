# SPDX-License-Identifier: Apache-2.0
"""Where a stage is off, and by how much of what it may: plain JSON of a tensor that was judged."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gdnbench.judge.location import Location, locate
from gdnbench.judge.result import LimitCheck, TensorResult
from gdnbench.judge.tensor import Subject
from gdnbench_kernels.contract import Region


def as_facts(result: TensorResult, subject: Subject, tensor: Tensor, oracle: Tensor) -> dict[str, Any]:
    """A judged tensor: whether it passed, the limit that it comes closest to or exceeds most, and the element
    that is farthest off in the sequence, chunk and head where it does."""
    found: dict[str, Any] = {
        "tensor": result.tensor,
        "stage": result.stage,
        "passed": result.passed,
        "reason": result.reasons[0] if result.reasons else "",
        "dtype": result.dtype,
        "held": None,
        "at": None,
    }
    if result.errors is None:
        return found
    tightest = max(result.held, key=lambda held: held.ratio, default=None)
    worst = result.worst
    if not result.passed and worst is not None and not (tightest is not None and tightest.over):
        # What is not finite where it must be, or the reverse.
        return {**found, "at": _place(worst.at), "x": _number(worst.x), "y": _number(worst.y)}
    if tightest is None:
        return found
    found["held"] = {"what": tightest.what, "error": tightest.error, "limit": tightest.limit}
    index = _farthest(subject, tensor, oracle, tightest)
    if index is not None:
        at = locate(index, subject.partition, subject.axes)
        x, y = float(tensor[index].double()), float(oracle[index].double())
        found |= {"at": _place(at), "x": _number(x), "y": _number(y)}
    return found


def _farthest(subject: Subject, tensor: Tensor, oracle: Tensor, held: LimitCheck) -> tuple[int, ...] | None:
    """The index of the largest |x - y| in the chunk and head of `held` that is farthest off."""
    axis = subject.partition.head_axis
    best, where = -1.0, None
    for region in subject.partition.regions:
        if held.sequence not in (None, region.sequence) or held.chunk not in (None, region.chunk):
            continue
        x, y = (one[region.start : region.stop].double() for one in (tensor, oracle))
        d = (x - y).abs()
        d = d.where(torch.isfinite(d), 0.0)
        if region.tokens is not None:
            d[:, :, region.tokens :] = 0.0
        if held.head is not None and axis is not None:
            other = torch.arange(d.shape[axis]) != held.head
            d = d.movedim(axis, 0)
            d[other] = 0.0
            d = d.movedim(0, axis)
        size = _size(d, axis)
        if d.numel() and size > best:
            best, where = size, _index(d, region)
    return where


def _size(d: Tensor, axis: int | None) -> float:
    """The largest norm of a head: a chunk's share of an error."""
    lines = d.movedim(axis, 0).flatten(1) if axis is not None and d.numel() else d.reshape(1, -1)
    return float(lines.norm(dim=1).max()) if d.numel() else 0.0


def _index(d: Tensor, region: Region) -> tuple[int, ...]:
    inner = [int(i) for i in torch.unravel_index(d.argmax(), d.shape)]
    return (region.start + inner[0], *inner[1:])


def _place(at: Location) -> dict[str, Any]:
    return {
        "index": list(at.index),
        "sequence": at.sequence,
        "chunk": at.chunk,
        "token": at.token,
        "head": at.head,
        "dims": dict(at.dims),
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
