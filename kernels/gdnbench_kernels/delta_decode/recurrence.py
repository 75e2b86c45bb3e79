# SPDX-License-Identifier: Apache-2.0
"""Decode in a given arithmetic: every active sequence processes S tokens from the state of its slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.gdn import per_value_head, recur
from gdnbench_kernels.state_slots import PADDING, SlotPlan

# Bytes of state processed together; further sequences take another pass.
STATE_BYTES_AT_ONCE = 256 << 20


@dataclass(frozen=True, slots=True)
class Terms:
    """The inputs of the recurrence: alpha_t [B, S, Hv] or [B, S, Hv, K], beta_t [B, S, Hv], q_t and k_t
    [B, S, H, K]. Rows of padding sequences exist and are ignored."""

    alpha_t: Tensor
    beta_t: Tensor
    q_t: Tensor
    k_t: Tensor


def decode(
    terms: Terms,
    *,
    v: Tensor,
    source: Tensor,
    pool: Tensor,
    o: Tensor,
    plan: SlotPlan,
    scale: float,
    compute: torch.dtype,
) -> Tensor:
    """Read states from `source`, write states to `pool` and outputs to `o`, rounded to the destination's
    dtype; sums and products are in `compute`. Returns delta_t [B, S, Hv, V] in `compute`, NaN for padding
    sequences.

    `source` and `pool` are [slots, Hv, V, K] and may be one tensor: no slot is read by one sequence and
    written by another. The state of a sequence stays in `compute` from token to token; it is not reloaded
    from its slot.
    """
    given = (terms.alpha_t, terms.beta_t, terms.q_t, terms.k_t)
    alpha_t, beta_t, q_t, k_t = (term.to(compute) for term in given)
    delta = torch.full(v.shape, torch.nan, dtype=compute, device=v.device)
    value_heads, bytes_each = v.shape[2], source[:1].numel() * compute.itemsize
    at_once = max(1, STATE_BYTES_AT_ONCE // max(1, bytes_each))
    for start in range(0, len(plan.active), at_once):
        part = slice(start, start + at_once)
        sequences, read, write = plan.active[part], plan.read[part], plan.write[part]
        state = source[read].to(compute).contiguous()
        for token in range(v.shape[1]):
            out, delta[sequences, token] = recur(
                state,
                per_value_head(q_t[sequences, token], value_heads, axis=1),
                per_value_head(k_t[sequences, token], value_heads, axis=1),
                v[sequences, token].to(compute),
                alpha_t[sequences, token],
                beta_t[sequences, token],
            )
            o[sequences, token] = (out * scale).to(o.dtype)
            kept = write[:, token] != PADDING
            pool[write[kept, token]] = state[kept].to(pool.dtype)
    return delta
