# SPDX-License-Identifier: Apache-2.0
from flashinfer.kda_decode import recurrent_kda
from kda_pool import over_pool


class FlashInferKDAKernel:
    def decode(
        self,
        q,
        k,
        v,
        a,
        b,
        *,
        A_log,
        dt_bias,
        ssm_states,
        cache_indices,
        query_start_loc,
        lower_bound=None,
        **kwargs,
    ):
        heads, key_dim = v.shape[2], k.shape[3]
        return recurrent_kda(
            q,
            k,
            v,
            a.reshape(1, -1, heads, key_dim),
            b.sigmoid().reshape(1, -1, heads),
            A_log.reshape(-1),
            dt_bias.reshape(-1),
            initial_state=ssm_states,
            use_gate_in_kernel=True,
            lower_bound=lower_bound,
            cu_seqlens=query_start_loc,
            ssm_state_indices=cache_indices,
        )[0]

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
        lower_bound=None,
        fused_accept_state_indices=None,
        fused_accept_num_accepted=None,
        **kwargs,
    ):
        heads, key_dim = v.shape[2], k.shape[3]
        fused = fused_accept_state_indices is not None
        return over_pool(
            q,
            k,
            v,
            a.reshape(1, -1, heads, key_dim),
            b.reshape(1, -1, heads),
            intermediate_states_buffer.flatten(0, 1) if fused else ssm_states,
            query_start_loc,
            fused_accept_state_indices if fused else cache_indices,
            accepted=fused_accept_num_accepted,
            gates=(A_log, dt_bias, lower_bound),
            update=fused,
        )
