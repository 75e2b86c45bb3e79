"""Makes calls of conv_decode smaller: sequences, channels, tokens of each sequence, unused slots, optional
tensors."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gdnbench_kernels.contract import Axis, Call, Operation
from gdnbench_kernels.conv import bounds_of, placed_slots
from gdnbench_kernels.shrinking import axis_of, optional_axis, pool_axis, select_units, with_tensors


def axes(operation: Operation, call: Call) -> tuple[Axis, ...]:
    channels, sequences = call.tensors["x"].shape[1], len(call.tensors["cu_seqlens"]) - 1
    steps = max((stop - start for start, stop in bounds_of(call.tensors["cu_seqlens"])), default=0)
    return (
        Axis(
            "sequences",
            sequences,
            lambda kept: keep_sequences(operation, call, kept),
            unit_at=lambda place: place.get("sequence"),
        ),
        axis_of(operation, call, "channels", "D", channels, "D"),
        Axis("tokens a sequence", steps, lambda kept: keep_steps(operation, call, kept)),
        pool_axis(operation, call, "slots not touched", "conv_state"),
        optional_axis(call, ("bias", "read_indices"), {}),
    )


def keep_sequences(operation: Operation, call: Call, sequences: Sequence[int]) -> Call:
    """The call with only those sequences, in that order."""
    bounds = bounds_of(call.tensors["cu_seqlens"])
    return _of_tokens(operation, call, [list(range(*bounds[n])) for n in sequences], sequences)


def keep_steps(operation: Operation, call: Call, kept: Sequence[int]) -> Call:
    """The call with only those tokens of each sequence. Slots of windows stay with the place of a token, and
    num_accepted is that of the step before, as it was."""
    bounds = bounds_of(call.tensors["cu_seqlens"])
    tokens = [[start + step for step in kept if start + step < stop] for start, stop in bounds]
    return _of_tokens(operation, call, tokens, range(len(bounds)))


def extent(call: Call) -> dict[str, int]:
    tokens, channels = call.tensors["x"].shape
    return {
        "token": tokens,
        "sequence": len(call.tensors["cu_seqlens"]) - 1,
        "channel": channels,
        "slot": len(call.tensors["conv_state"]),
    }


def level(call: Call) -> dict[str, float]:
    """Taps that make a mean."""
    return {"weight": 1 / call.tensors["weight"].shape[1]}


def placed(call: Call, rows: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """state_indices and read_indices for a pool in which the call's slots are at `rows`."""
    return placed_slots(call, ("state_indices", "read_indices"), rows["conv_state"])


def _of_tokens(
    operation: Operation, call: Call, tokens: Sequence[Sequence[int]], sequences: Sequence[int]
) -> Call:
    """The call of `sequences`, which have these `tokens` of the original one."""
    kept = [token for own in tokens for token in own]
    tensors = select_units(call, operation.tensors, {"T": kept, "N": list(sequences)})
    offsets = torch.tensor([0, *(len(own) for own in tokens)]).cumsum(0)
    tensors["cu_seqlens"] = offsets.to(call.tensors["cu_seqlens"].dtype)
    return with_tensors(call, tensors)
