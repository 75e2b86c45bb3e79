# SPDX-License-Identifier: Apache-2.0
"""Makes calls of conv_prefill smaller: sequences, channels, tokens, unused slots, optional tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gdnbench_kernels.contract import Axis, Call, Operation
from gdnbench_kernels.conv import bounds_of, placed_slots
from gdnbench_kernels.shrinking import axis_of, optional_axis, pool_axis, select_units, with_tensors


def axes(operation: Operation, call: Call) -> tuple[Axis, ...]:
    tokens, channels = call.tensors["x"].shape
    sequences = len(call.tensors["cu_seqlens"]) - 1
    pool = (
        (pool_axis(operation, call, "slots not touched", "conv_state"),)
        if "conv_state" in call.tensors
        else ()
    )
    return (
        Axis(
            "sequences",
            sequences,
            lambda kept: keep_sequences(operation, call, kept),
            unit_at=lambda place: place.get("sequence"),
        ),
        axis_of(operation, call, "channels", "D", channels, "D"),
        Axis("tokens", tokens, lambda kept: keep_tokens(operation, call, kept), least=0),
        *pool,
        optional_axis(call, ("bias", "has_initial_state"), {}),
    )


def keep_sequences(operation: Operation, call: Call, sequences: Sequence[int]) -> Call:
    """The call with only those sequences, in that order."""
    bounds = bounds_of(call.tensors["cu_seqlens"])
    tokens = [token for n in sequences for token in range(*bounds[n])]
    return _cut(operation, call, tokens, sequences)


def keep_tokens(operation: Operation, call: Call, tokens: Sequence[int]) -> Call:
    """The call with only those tokens, ascending. Every sequence stays, possibly without tokens."""
    return _cut(operation, call, tokens, range(len(call.tensors["cu_seqlens"]) - 1))


def extent(call: Call) -> dict[str, int]:
    tokens, channels = call.tensors["x"].shape
    slots = {"slot": len(call.tensors["conv_state"])} if "conv_state" in call.tensors else {}
    return {"token": tokens, "sequence": len(call.tensors["cu_seqlens"]) - 1, "channel": channels, **slots}


def level(call: Call) -> dict[str, float]:
    """Taps that make a mean."""
    return {"weight": 1 / call.tensors["weight"].shape[1]}


def placed(call: Call, rows: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """state_indices for a pool in which the call's slots are at `rows`."""
    return placed_slots(call, ("state_indices",), rows["conv_state"]) if "conv_state" in rows else {}


def _cut(operation: Operation, call: Call, tokens: Sequence[int], sequences: Sequence[int]) -> Call:
    """The call of `tokens`, those past the last sequence left out."""
    bounds = call.tensors["cu_seqlens"].long()
    kept = torch.tensor([token for token in tokens if token < int(bounds[-1])], dtype=torch.long)
    owner = torch.searchsorted(bounds, kept, right=True) - 1
    lengths = torch.bincount(owner, minlength=len(bounds) - 1)[list(sequences)]
    tensors = select_units(call, operation.tensors, {"T": kept.tolist(), "N": list(sequences)})
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    tensors["cu_seqlens"] = offsets.to(call.tensors["cu_seqlens"].dtype)
    return with_tensors(call, tensors)
