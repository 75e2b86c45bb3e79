# SPDX-License-Identifier: Apache-2.0
"""The signature is that of 0.7.2.post1. States are updated in place whether or not they are returned."""

import torch
from kda_pool import over_pool


def recurrent_kda(
    q,
    k,
    v,
    g,
    beta,
    A_log=None,
    dt_bias=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=True,
    use_gate_in_kernel=False,
    lower_bound=None,
    cu_seqlens=None,
    ssm_state_indices=None,
    num_spec_tokens=None,
    num_accepted_tokens=None,
    output=None,
    initial_state_source=None,
    initial_state_indices=None,
    beta_is_logit=False,
    seq_order=None,
    prefill_workspace=None,
    state_checkpoints=None,
    checkpoint_cu_starts=None,
    checkpoint_every_n_tokens=0,
    checkpoint_state_indices=None,
    *,
    disable_state_update=False,
    correction_cache=None,
    kg_cache=None,
    backend="auto",
):
    shape = v.shape
    if cu_seqlens is None:
        cu_seqlens = torch.arange(len(q) + 1) * q.shape[1]
    count = len(cu_seqlens) - 1
    steps = 1 if num_spec_tokens is None else num_spec_tokens + 1
    pool = initial_state_source if disable_state_update else initial_state
    pool = initial_state if pool is None else pool
    if pool is None:
        pool = torch.zeros(count, shape[2], shape[3], q.shape[3], dtype=torch.bfloat16)
    slots = ssm_state_indices
    if slots is None:
        slots = torch.arange(count * steps).view(count, steps)
    o = over_pool(
        *(x.flatten(0, 1).unsqueeze(0) for x in (q, k, v, g, beta)),
        pool,
        cu_seqlens,
        slots,
        scale=scale,
        accepted=num_accepted_tokens,
        normalise=use_qk_l2norm_in_kernel,
        gates=(A_log, dt_bias, lower_bound) if use_gate_in_kernel else None,
        logit=beta_is_logit,
        last_only=num_spec_tokens is None,
        update=not disable_state_update,
        read=initial_state_indices,
    ).view(shape)
    return o, pool if output_final_state else None
