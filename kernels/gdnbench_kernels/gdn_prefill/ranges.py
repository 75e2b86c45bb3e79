"""Ranges of a call of gdn_prefill: gates, their sums over chunks, beta, keys, and initial states."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.gdn import log_decay
from gdnbench_kernels.gdn_ranges import CHUNK, KeyCosines, chunk_sums
from gdnbench_kernels.ranges import extremes, present_ranges, sizes


def ranges(call: Call) -> tuple[Ranges, ...]:
    """The ranges of a valid call on the CPU, in any conventions."""
    tensors, chunk = call.tensors, int(call.scalars.get("chunk_size") or CHUNK)
    bounds: list[int] = tensors["cu_seqlens"].tolist()
    g = log_decay(tensors["g"], call.conventions.get("gate", "log"), torch.float64)
    keys = KeyCosines()
    keys.add(tensors["k"], bounds, chunk)
    states = tensors.get("initial_state")
    return present_ranges(
        (
            extremes("g", "gate g, log decay", g),
            chunk_sums(g, bounds, chunk),
            extremes("beta", "beta, step size", tensors["beta"]),
            keys.ranges(),
            None if states is None else sizes("initial_state", "state before the call", states),
        )
    )
