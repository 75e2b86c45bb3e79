# SPDX-License-Identifier: Apache-2.0
import torch

from .pool import over_pool, over_pool_raw, split


def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv,
    a,
    b,
    A_log,
    dt_bias,
    scale,
    initial_state,
    out,
    ssm_state_indices,
    use_qk_l2norm_in_kernel=False,
):
    each = torch.arange(len(mixed_qkv) + 1)
    of = (*split(mixed_qkv, initial_state), a, b, A_log, dt_bias, scale, initial_state, each)
    o = over_pool_raw(*of, ssm_state_indices, None, use_qk_l2norm_in_kernel)
    out.copy_(o.nan_to_num().transpose(0, 1))  # padding is zeros to this one
    return out, initial_state


def fused_recurrent_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta=None,
    scale=None,
    initial_state=None,
    inplace_final_state=True,
    cu_seqlens=None,
    ssm_state_indices=None,
    num_accepted_tokens=None,
    use_qk_l2norm_in_kernel=False,
):
    o = over_pool(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        cu_seqlens,
        ssm_state_indices,
        num_accepted_tokens,
        use_qk_l2norm_in_kernel,
    )
    return o, initial_state
