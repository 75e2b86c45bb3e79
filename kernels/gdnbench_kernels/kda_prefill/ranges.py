# SPDX-License-Identifier: Apache-2.0
"""Ranges of a call of kda_prefill."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.delta_prefill.ranges import ranges_of
from gdnbench_kernels.kda_contract import gates_of_call
from gdnbench_kernels.kda_prefill.sizes import CHUNK


def ranges(call: Call) -> tuple[Ranges, ...]:
    """The ranges of a valid call on the CPU, in any conventions."""
    gates, tensors = gates_of_call(call), call.tensors
    return ranges_of(
        call,
        gates.log_decay(tensors["g"], torch.float64),
        gates.step_size(tensors["beta"], torch.float64),
        int(call.scalars.get("chunk_size") or CHUNK),
    )
