"""Ranges of a call of gdn_prefill or kda_prefill, given its gates: gates, their sums over chunks, beta, keys,
and initial states."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.gdn_ranges import KeyCosines, chunk_sums
from gdnbench_kernels.ranges import extremes, present_ranges, sizes


def ranges_of(call: Call, g: Tensor, beta: Tensor, chunk_size: int) -> tuple[Ranges, ...]:
    """The ranges of a valid call on the CPU. `g` [T, Hv] or [T, Hv, K]: the log decay; `beta` [T, Hv]: the
    step size."""
    bounds: list[int] = call.tensors["cu_seqlens"].tolist()
    keys = KeyCosines()
    keys.add(call.tensors["k"], bounds, chunk_size)
    states = call.tensors.get("initial_state")
    return present_ranges(
        (
            extremes("g", "gate g, log decay", g),
            chunk_sums(g, bounds, chunk_size),
            extremes("beta", "beta, step size", beta),
            keys.ranges(),
            None if states is None else sizes("initial_state", "state before the call", states),
        )
    )
