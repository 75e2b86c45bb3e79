# SPDX-License-Identifier: Apache-2.0
"""Kimi Delta Attention of packed sequences, each with a state of its own."""

import torch
from kda_pool import over_pool


def prefill(q, k, v, g, beta, initial_state, cu_seqlens, dtype=torch.float32, **more):
    """o, and the final states [N, Hv, V, K] in `dtype`; `initial_state` stays as it is."""
    states = initial_state.to(dtype, copy=True)
    slots = torch.arange(len(states))
    o = over_pool(q, k, v, g, beta, states, cu_seqlens, slots, last_only=True, **more)
    return o, states
