"""Ranges of a call of kda_decode: gates and beta of active sequences, keys if a call has several tokens per
sequence, and the states that are read."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.delta_decode.ranges import ranges_of
from gdnbench_kernels.kda_contract import gates_of_call
from gdnbench_kernels.state_slots import SlotPlan


def ranges(call: Call, plan: SlotPlan) -> tuple[Ranges, ...]:
    """The ranges of a valid call on the CPU, in any conventions. `plan`: its slots."""
    gates = gates_of_call(call)
    return ranges_of(
        call,
        plan,
        gates.log_decay(call.tensors["g"][plan.active], torch.float64),
        gates.step_size(call.tensors["beta"][plan.active], torch.float64),
    )
