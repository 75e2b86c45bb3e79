# SPDX-License-Identifier: Apache-2.0
import torch
from kda_pool import over_pool, split


def fused_recurrent_kda(
    q,
    k,
    v,
    raw_g,
    raw_beta,
    A_log,
    dt_bias,
    lower_bound,
    initial_state,
    cu_seqlens,
    ssm_state_indices,
    num_accepted_tokens=None,
    out=None,
    fuse_gate=None,
):
    o = over_pool(
        q,
        k,
        v,
        raw_g,
        raw_beta,
        initial_state,
        cu_seqlens,
        ssm_state_indices,
        accepted=num_accepted_tokens,
        gates=(A_log, dt_bias, lower_bound),
        null=0,
    )
    return o, initial_state


def fused_recurrent_kda_packed_decode(
    mixed_qkv,
    raw_g,
    raw_beta,
    A_log,
    dt_bias,
    lower_bound,
    initial_state,
    state_indices,
    scale=None,
    out=None,
):
    o = over_pool(
        *split(mixed_qkv, initial_state),
        raw_g,
        raw_beta,
        initial_state,
        torch.arange(len(mixed_qkv) + 1),
        state_indices,
        scale=scale,
        gates=(A_log, dt_bias, lower_bound),
        null=0,
    )
    return o, initial_state
