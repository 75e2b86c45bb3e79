# SPDX-License-Identifier: Apache-2.0
from sglang.kernels.ops.attention.fla.pool import over_pool_raw


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
    tokens, (heads, value_dim, key_dim) = len(mixed_qkv), initial_state.shape[1:]
    width = (mixed_qkv.shape[1] - heads * value_dim) // 2
    q, k, v = mixed_qkv.split([width, width, heads * value_dim], 1)
    out[:, 0] = over_pool_raw(
        q.reshape(1, tokens, -1, key_dim),
        k.reshape(1, tokens, -1, key_dim),
        v.reshape(1, tokens, heads, value_dim),
        a,
        b,
        A_log,
        dt_bias,
        scale,
        initial_state,
        range(tokens + 1),
        ssm_state_indices,
        use_qk_l2norm_in_kernel,
    )[0]
    return out, initial_state
