"""The minimal cost of a call of conv_decode: memory traffic and FLOP.

Bytes: x of active sequences, weight, bias, index tensors, and the window that each active sequence reads are
read once; y of active sequences and the columns that they leave in their slots are written once. Windows of
one slot share columns where the slot keeps one for every token.

FLOP: as conv_prefill, 2 W per token and channel.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from gdnbench_kernels.contract import Call, Work
from gdnbench_kernels.conv_decode.windows import DecodePlan, plan_of

WHOLE = ("weight", "bias", "cu_seqlens", "state_indices", "num_accepted", "read_indices")


def work_of(call: Call) -> Work:
    """The cost of a valid call."""
    plan, x, (channels, taps) = plan_of(call.tensors), call.tensors["x"], call.tensors["weight"].shape
    tokens = sum(plan.length(place) for place in range(len(plan.active)))
    a_column = channels * x.element_size()
    there = (call.tensors.get(name) for name in WHOLE)
    read = sum(tensor.numel() * tensor.element_size() for tensor in there if tensor is not None)
    return Work(
        read=read + (tokens + len(plan.active) * (taps - 1)) * a_column,
        written=(tokens + _columns_written(plan, taps)) * a_column,
        flop=2 * taps * tokens * channels,
    )


def _columns_written(plan: DecodePlan, taps: int) -> int:
    places = {
        (one.slot, one.column + column)
        for windows in plan.write
        for one in windows
        for column in range(taps - 1)
    }
    return len(places)
