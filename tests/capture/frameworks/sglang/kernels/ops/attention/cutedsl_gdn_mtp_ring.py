# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts [B, T, heads, dim] that keeps its inputs: what it writes of them does not matter."""

import torch
from sglang.kernels.ops.attention.fla.pool import over_pool_raw


def gated_delta_rule_mtp(
    A_log,
    a,
    dt_bias,
    softplus_beta=1.0,
    softplus_threshold=20.0,
    q=None,
    k=None,
    v=None,
    b=None,
    initial_state_source=None,
    initial_state_indices=None,
    output_state_indices=None,
    intermediate_states_buffer=None,
    accepted_steps=None,
    ssm_state_indices=None,
    disable_state_update=False,
    use_qk_l2norm_in_kernel=True,
    scale=None,
    output=None,
    disable_output=False,
    recovery_steps=0,
    cache_ring=False,
    replayssm_rawv=None,
    replayssm_rawk=None,
    replayssm_g=None,
    replayssm_beta=None,
):
    batch, tokens = q.shape[:2]
    replayssm_rawv[initial_state_indices.clamp(min=0).long(), :, :tokens] = v.transpose(1, 2).float()
    packed = [x.flatten(0, 1).unsqueeze(0) for x in (q, k, v)]
    out = over_pool_raw(
        *packed,
        a.flatten(0, 1),
        b.flatten(0, 1),
        A_log,
        dt_bias,
        scale,
        initial_state_source,
        torch.arange(batch + 1) * tokens,
        initial_state_indices,
        use_qk_l2norm_in_kernel,
        update=not disable_state_update,
    )
    return out.view(v.shape)
