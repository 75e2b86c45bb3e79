# SPDX-License-Identifier: Apache-2.0
"""The recurrence of gdn_prefill and kda_prefill over packed sequences in fp64, token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import Gates, PrefillTensors
from gdnbench_kernels.gdn import default_scale, in_vk, normalised, per_value_head, recur

# Bytes of fp64 state processed together; further sequences take another pass over the tokens.
STATE_BYTES_AT_ONCE = 256 << 20


def recurrence(params: PrefillTensors, gates: Gates) -> dict[str, Tensor]:
    """o [T, Hv, V] and, if `params` asks for it, final_state [N, Hv, V, K] in the caller's layout.

    All heads and all sequences that still have tokens advance together. Sequences are sorted by length,
    longest first, so those of one step are a prefix.
    """
    q, k, v, initial_state, qk = params.q, params.k, params.v, params.initial_state, params.qk
    bounds = params.cu_seqlens.cpu().long()
    lengths = bounds.diff()
    value_heads, value_dim, key_dim = v.shape[1], v.shape[2], k.shape[2]
    factor = default_scale(params.scale, key_dim)
    o = torch.empty(v.shape, dtype=torch.float64, device=v.device)
    if initial_state is None:
        final = o.new_zeros(len(lengths), value_heads, value_dim, key_dim)
    else:
        final = in_vk(initial_state, params.state_layout).to(torch.float64, copy=True).contiguous()
    longest_first = lengths.argsort(descending=True, stable=True)
    at_once = max(1, STATE_BYTES_AT_ONCE // max(1, 8 * value_heads * value_dim * key_dim))
    for start in range(0, len(longest_first), at_once):
        sequences = longest_first[start : start + at_once]
        state = final[sequences.to(v.device)]
        for step in range(int(lengths[sequences[0]])):
            active = int((lengths[sequences] > step).sum())
            tokens = (bounds[sequences[:active]] + step).to(v.device)
            out, _ = recur(
                state[:active],
                per_value_head(normalised(q[tokens], qk, torch.float64), value_heads, axis=1),
                per_value_head(normalised(k[tokens], qk, torch.float64), value_heads, axis=1),
                v[tokens].double(),
                gates.alpha(params.g[tokens], torch.float64),
                gates.step_size(params.beta[tokens], torch.float64),
            )
            o[tokens] = out * factor
        final[sequences.to(v.device)] = state
    if not params.output_final_state:
        return {"o": o}
    return {"o": o, "final_state": in_vk(final, params.state_layout).contiguous()}
