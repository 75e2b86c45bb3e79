"""The minimal cost of a call of gdn_decode or kda_decode: memory traffic and FLOP.

Bytes: every slot that active sequences read is read once, however many read it, and every slot that they
write is written once; with S tokens and a slot for each, one state is read and S are written. q, k, v and
gates are read and o is written for active sequences; q and k are read once for all value heads of a key head.
Index tensors and shared tensors (A_log, dt_bias) are read completely.

FLOP: those of the recurrence, per token and value head: V K for the decay, 2 V K each for S' k and S q, 2 V K
for the update. Gates and norms, below 1 %, are left out.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Shaped, Work
from gdnbench_kernels.state_slots import SlotPlan

BY_SEQUENCE = ("q", "k", "v", "g", "beta")
WHOLE = ("state_indices", "num_accepted", "read_indices", "A_log", "dt_bias")


def work_of(call: Call, plan: SlotPlan, outputs: Mapping[str, Shaped]) -> Work:
    """The cost of a valid call with these slots, and outputs of these shapes and dtypes."""
    tensors, active = call.tensors, len(plan.active)
    state = tensors["state"]
    a_state = math.prod(state.shape[1:])
    read = len(torch.unique(plan.read)) * a_state * state.element_size()
    read += sum(active * _bytes_of_one(tensors[name]) for name in BY_SEQUENCE)
    read += sum(tensors[name].numel() * tensors[name].element_size() for name in WHOLE if name in tensors)
    shape, dtype = outputs["o"]
    written = len(plan.written) * a_state * state.element_size()
    written += active * math.prod(shape[1:]) * dtype.itemsize
    return Work(read, written, flop=active * tensors["q"].shape[1] * 7 * a_state)


def _bytes_of_one(tensor: Tensor) -> int:
    """Bytes of one sequence's rows."""
    return math.prod(tensor.shape[1:]) * tensor.element_size()
