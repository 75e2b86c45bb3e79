"""The minimal cost of a call of conv_prefill: memory traffic and FLOP.

Bytes: x of active sequences, weight, bias, index tensors and the windows that are read are read once, y of
active sequences and their windows written once.

FLOP: 2 W per token and channel, those of the sum. Bias and SiLU, four more, are left out: kernels differ in
how they compute exp.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from gdnbench_kernels.contract import Call, Work
from gdnbench_kernels.conv_prefill.windows import plan_of

WHOLE = ("weight", "bias", "cu_seqlens", "state_indices", "has_initial_state")


def work_of(call: Call) -> Work:
    """The cost of a valid call."""
    plan, x, (channels, taps) = plan_of(call.tensors), call.tensors["x"], call.tensors["weight"].shape
    tokens = sum(plan.bounds[n][1] - plan.bounds[n][0] for n in plan.active)
    window, a_token = channels * (taps - 1) * x.element_size(), channels * x.element_size()
    there = (call.tensors.get(name) for name in WHOLE)
    read = sum(tensor.numel() * tensor.element_size() for tensor in there if tensor is not None)
    return Work(
        read=read + tokens * a_token + sum(plan.reads) * window,
        written=tokens * a_token + len(plan.slots) * window,
        flop=2 * taps * tokens * channels,
    )
