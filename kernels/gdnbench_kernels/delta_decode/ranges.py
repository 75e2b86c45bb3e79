# SPDX-License-Identifier: Apache-2.0
"""Ranges of a call of gdn_decode or kda_decode, given its gates."""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.gdn_ranges import KeyCosines, chunk_sums
from gdnbench_kernels.ranges import extremes, present_ranges, sizes
from gdnbench_kernels.state_slots import SlotPlan


def ranges_of(call: Call, plan: SlotPlan, g: Tensor, beta: Tensor) -> tuple[Ranges, ...]:
    """The ranges of a valid call on the CPU. `plan`: its slots; `g` [A, S, Hv] or [A, S, Hv, K] and `beta`
    [A, S, Hv]: the log decay and the step size of active sequences, fp64."""
    tokens = g.shape[1]
    bounds = range(0, len(g) * tokens + 1, max(1, tokens))
    keys = KeyCosines()
    keys.add(call.tensors["k"][plan.active].flatten(0, 1), bounds)
    return present_ranges(
        (
            extremes("g", "gate g, log decay", g),
            chunk_sums(g.flatten(0, 1), bounds) if tokens > 1 else None,
            extremes("beta", "beta, step size", beta),
            keys.ranges(),
            sizes("state", "states that are read", (call.tensors["state"][slot] for slot in plan.read)),
        )
    )
