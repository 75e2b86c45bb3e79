# SPDX-License-Identifier: Apache-2.0
"""Makes calls of gdn_decode and kda_decode smaller: sequences, heads, tokens of a sequence, unused slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gdnbench_kernels.contract import Axis, Call, Operation
from gdnbench_kernels.shrinking import (
    axis_of,
    head_axes,
    optional_axis,
    pool_axis,
    select_units,
    with_tensors,
)


def axes(operation: Operation, call: Call) -> tuple[Axis, ...]:
    batch, steps, key_heads, _ = call.tensors["q"].shape

    def keep_steps(kept: Sequence[int]) -> Call:
        tensors = select_units(call, operation.tensors, {"S": kept})
        if "num_accepted" in tensors:
            tensors["num_accepted"] = _accepted(tensors["num_accepted"], kept)
        return with_tensors(call, tensors)

    return (
        axis_of(operation, call, "sequences", "B", batch, "sequence"),
        *head_axes(operation, call, key_heads, call.tensors["v"].shape[2]),
        Axis("tokens a sequence", steps, keep_steps),
        pool_axis(operation, call, "slots not touched", "state"),
        optional_axis(call, ("num_accepted", "read_indices"), {}),
    )


def extent(call: Call) -> dict[str, int]:
    batch, steps, key_heads, _ = call.tensors["q"].shape
    return {
        "sequence": batch,
        "token a sequence": steps,
        "key head": key_heads,
        "value head": call.tensors["v"].shape[2],
        "slot": len(call.tensors["state"]),
    }


def level(call: Call) -> dict[str, float]:
    """A decay of 1; q and k of norm 1 if they are normalised."""
    found = {"g": 0.0} if call.conventions.get("gate", "log") == "log" else {}
    if call.conventions.get("qk", "normalised") == "normalised":
        unit = call.tensors["k"].shape[3] ** -0.5
        found |= {"q": unit, "k": unit}
    return found


def _accepted(counts: Tensor, kept: Sequence[int]) -> Tensor:
    """num_accepted after removing tokens: the token whose slot is read, or the last remaining one before it,
    else the first. The count of a padding sequence, which may be any number, is clamped to the range."""
    left = torch.tensor(list(kept), dtype=torch.long)
    place = torch.searchsorted(left, counts.long() - 1, right=True)
    return place.clamp(1, len(left)).to(counts.dtype)
