"""Ranges of a call of gdn_decode: gates and beta of active sequences, keys if a call has several tokens per
sequence, and the states that are read."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.delta_decode.ranges import ranges_of
from gdnbench_kernels.gdn import log_decay
from gdnbench_kernels.gdn_decode.gates import Gates
from gdnbench_kernels.state_slots import SlotPlan


def ranges(call: Call, plan: SlotPlan) -> tuple[Ranges, ...]:
    """The ranges of a valid call on the CPU, in any conventions. `plan`: its slots."""
    form = call.conventions.get("gate", "log")
    beta_max = float(call.scalars.get("beta_max") or 1.0)
    gates = Gates(form, call.tensors.get("A_log"), call.tensors.get("dt_bias"), beta_max)
    g, beta = (call.tensors[name][plan.active] for name in ("g", "beta"))
    g = gates.log_decay(g, torch.float64) if form == "raw" else log_decay(g, form, torch.float64)
    return ranges_of(call, plan, g, gates.beta(beta, torch.float64))
