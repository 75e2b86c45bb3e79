# SPDX-License-Identifier: Apache-2.0
from sglang.kernels.ops.attention.fla.chunk import chunk_gated_delta_rule
from sglang.kernels.ops.attention.fla.fused_recurrent import fused_recurrent_gated_delta_rule_packed_decode
from sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent import (
    fused_sigmoid_gating_delta_rule_update,
)


class TritonGDNKernel:
    def packed_decode(
        self,
        mixed_qkv,
        a,
        b,
        *,
        A_log,
        dt_bias,
        scale,
        ssm_states,
        cache_indices,
        num_v_heads,
        head_v_dim,
        **kwargs,
    ):
        out = mixed_qkv.new_empty(len(mixed_qkv), 1, num_v_heads, head_v_dim)
        given = (mixed_qkv, a, b, A_log, dt_bias, scale, ssm_states, out, cache_indices)
        fused_recurrent_gated_delta_rule_packed_decode(*given, use_qk_l2norm_in_kernel=True)
        return out.transpose(0, 1)

    def decode(self, q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices, query_start_loc, **kwargs):
        return fused_sigmoid_gating_delta_rule_update(
            A_log,
            a,
            dt_bias,
            1.0,
            20.0,
            q,
            k,
            v,
            b,
            ssm_states,
            cache_indices,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=query_start_loc,
        )

    def extend(
        self, q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc, inplace_update=True, **kwargs
    ):
        return chunk_gated_delta_rule(
            q,
            k,
            v,
            g,
            beta,
            initial_state=ssm_states,
            initial_state_indices=cache_indices,
            cu_seqlens=query_start_loc,
            use_qk_l2norm_in_kernel=True,
            inplace_update=inplace_update,
        )

    def target_verify(
        self,
        A_log,
        dt_bias,
        q,
        k,
        v,
        a,
        b,
        *,
        ssm_states,
        cache_indices,
        query_start_loc,
        intermediate_states_buffer,
        intermediate_state_indices,
        cache_steps,
        retrieve_parent_token,
        **kwargs,
    ):
        return fused_sigmoid_gating_delta_rule_update(
            A_log,
            a,
            dt_bias,
            1.0,
            20.0,
            q,
            k,
            v,
            b,
            ssm_states,
            cache_indices,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=query_start_loc,
            disable_state_update=True,
            intermediate_states_buffer=intermediate_states_buffer,
            intermediate_state_indices=intermediate_state_indices,
            retrieve_parent_token=retrieve_parent_token,
        )
