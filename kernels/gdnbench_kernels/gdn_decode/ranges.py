"""Ranges of a call of gdn_decode: gates and beta of active sequences, keys if a call has several tokens per
sequence, and the states that are read."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.gdn import log_decay
from gdnbench_kernels.gdn_decode.gates import Gates
from gdnbench_kernels.gdn_decode.slots import SlotPlan
from gdnbench_kernels.gdn_ranges import KeyCosines, chunk_sums
from gdnbench_kernels.ranges import extremes, present_ranges, sizes


def ranges(call: Call, plan: SlotPlan) -> tuple[Ranges, ...]:
    """The ranges of a valid call on the CPU, in any conventions. `plan`: its slots."""
    form = call.conventions.get("gate", "log")
    beta_max = float(call.scalars.get("beta_max") or 1.0)
    gates = Gates(form, call.tensors.get("A_log"), call.tensors.get("dt_bias"), beta_max)
    g, beta, k = (call.tensors[name][plan.active] for name in ("g", "beta", "k"))
    g = gates.log_decay(g, torch.float64) if form == "raw" else log_decay(g, form, torch.float64)
    tokens = g.shape[1]
    bounds = range(0, len(g) * tokens + 1, max(1, tokens))
    keys = KeyCosines()
    keys.add(k.flatten(0, 1), bounds)
    return present_ranges(
        (
            extremes("g", "gate g, log decay", g),
            chunk_sums(g.flatten(0, 1), bounds) if tokens > 1 else None,
            extremes("beta", "beta, step size", gates.beta(beta, torch.float64)),
            keys.ranges(),
            sizes("state", "states that are read", (call.tensors["state"][slot] for slot in plan.read)),
        )
    )
