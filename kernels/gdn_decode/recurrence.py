"""Decode in a given arithmetic: every active sequence takes S tokens from the state of its slot."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.gdn import normalised, per_value_head, recur
from gdnbench_kernels.gdn_decode.gates import Gates
from gdnbench_kernels.gdn_decode.slots import PADDING, SlotPlan

# Bytes of state advanced together; sequences beyond that take another pass.
STATE_BYTES_AT_ONCE = 256 << 20


def decode(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    source: Tensor,
    pool: Tensor,
    o: Tensor,
    plan: SlotPlan,
    gates: Gates,
    scale: float,
    qk: str,
    compute: torch.dtype,
) -> None:
    """Reads states from `source`, writes them to `pool` and outputs to `o`, both rounded to the dtype of what
    they are written to; sums and products in `compute`.

    `source` and `pool` are [slots, Hv, V, K], possibly one tensor: no slot is read by one sequence and
    written by another. The state of a sequence is carried in `compute` from token to token, not reloaded from
    its slot.
    """
    value_heads, bytes_each = v.shape[2], source[:1].numel() * compute.itemsize
    at_once = max(1, STATE_BYTES_AT_ONCE // max(1, bytes_each))
    for start in range(0, len(plan.active), at_once):
        part = slice(start, start + at_once)
        sequences, read, write = plan.active[part], plan.read[part], plan.write[part]
        state = source[read].to(compute).contiguous()
        for token in range(q.shape[1]):
            out = recur(
                state,
                per_value_head(normalised(q[sequences, token], qk, compute), value_heads, axis=1),
                per_value_head(normalised(k[sequences, token], qk, compute), value_heads, axis=1),
                v[sequences, token].to(compute),
                gates.alpha(g[sequences, token], compute),
                gates.beta(beta[sequences, token], compute),
            )
            o[sequences, token] = (out * scale).to(o.dtype)
            kept = write[:, token] != PADDING
            pool[write[kept, token]] = state[kept].to(pool.dtype)
