# SPDX-License-Identifier: Apache-2.0
"""The signature is that of 0.7.2.post1."""

from itertools import pairwise

import torch
from delta_rule import tokens_of, unit


def chunk_gated_delta_rule(
    q,
    k,
    v,
    g=None,
    beta=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    cu_seqlens=None,
    use_qk_l2norm_in_kernel=False,
    output=None,
    output_state=None,
    state_checkpoints=None,
    checkpoint_cu_starts=None,
    checkpoint_every_n_tokens=0,
    use_cp="auto",
    state_indices=None,
    _cp_chunk_len=None,
    backend="auto",
    max_seqlen=None,
):
    bounds = cu_seqlens.tolist()
    count, heads, size = len(bounds) - 1, v.shape[1], v.shape[2]
    alpha = torch.ones(v.shape[:2]) if g is None else g
    beta = torch.ones(v.shape[:2]) if beta is None else beta
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    output = torch.empty_like(v) if output is None else output
    if output_state is None:
        output_state = torch.empty(count, heads, size, size)
    slots = list(range(count)) if state_indices is None else state_indices.tolist()
    for (start, end), slot in zip(pairwise(bounds), slots, strict=True):
        first = torch.zeros(heads, size, size) if initial_state is None else initial_state[slot]
        part = slice(start, end)
        o, after = tokens_of(*(x[part] for x in (q, k, v, alpha, beta)), first, scale or size**-0.5)
        output[part] = o.to(output.dtype)
        output_state[slot] = (after[-1] if after else first).to(output_state.dtype)
    return (output, output_state) if output_final_state else output
