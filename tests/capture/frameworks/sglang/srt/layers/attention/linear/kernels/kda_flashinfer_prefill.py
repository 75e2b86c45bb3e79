# SPDX-License-Identifier: Apache-2.0
from flashinfer.kda import recurrent_kda


class FlashInferKDAPrefillKernel:
    def extend(
        self,
        q,
        k,
        v,
        g,
        beta,
        *,
        ssm_states,
        cache_indices,
        query_start_loc,
        A_log,
        dt_bias,
        lower_bound,
        return_intermediate_states=False,
        state_checkpoint_cu_starts=None,
        num_state_checkpoints=0,
        state_checkpoint_every_n_tokens=0,
        state_checkpoint_indices=None,
        track_ssm_h_batch_src=None,
        **kwargs,
    ):
        tokens = q.shape[1]
        o = recurrent_kda(
            q,
            k,
            v,
            g[:, :tokens],
            beta[:, :tokens],
            A_log.reshape(-1),
            dt_bias.reshape(-1),
            initial_state=ssm_states,
            use_gate_in_kernel=True,
            lower_bound=lower_bound,
            cu_seqlens=query_start_loc,
            ssm_state_indices=cache_indices,
            beta_is_logit=True,
            backend="cute-dsl",
        )[0]
        return (o, None) if return_intermediate_states else o
