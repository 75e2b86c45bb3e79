# SPDX-License-Identifier: Apache-2.0
"""Its methods call FlashInfer's functions, the states of a prefill gathered and put back."""

import torch
from delta_rule import unit
from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose, gated_delta_rule_mtp
from flashinfer.gdn_prefill import chunk_gated_delta_rule


class FlashInferGDNKernel:
    def decode(self, q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices, query_start_loc, **kwargs):
        o, _ = gated_delta_rule_decode_pretranspose(
            q[0][:, None],
            k[0][:, None],
            v[0][:, None],
            None,
            A_log,
            a[:, None],
            dt_bias,
            b[:, None],
            initial_state=ssm_states,
            initial_state_indices=cache_indices,
        )
        return o.transpose(0, 1)

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
        state_checkpoint_cu_starts=None,
        num_state_checkpoints=0,
        state_checkpoint_every_n_tokens=0,
        **kwargs,
    ):
        slots = torch.where(cache_indices >= 0, cache_indices, len(ssm_states) - 1).long()
        o, final = chunk_gated_delta_rule(
            unit(q[0]).to(q.dtype),
            unit(k[0]).to(k.dtype),
            v[0],
            g[0].exp(),
            beta[0],
            initial_state=ssm_states[slots].float(),
            output_final_state=True,
            cu_seqlens=query_start_loc.long(),
        )
        ssm_states.index_copy_(0, slots, final.to(ssm_states.dtype))
        return o[None], None, None

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
        stable_rows=False,
        **kwargs,
    ):
        shape = (len(query_start_loc) - 1, -1)
        o, _ = gated_delta_rule_mtp(
            *(x[0].unflatten(0, shape) for x in (q, k, v)),
            ssm_states,
            cache_indices,
            A_log,
            a.unflatten(0, shape),
            dt_bias,
            b.unflatten(0, shape),
            intermediate_states_buffer=intermediate_states_buffer,
            disable_state_update=True,
        )
        return o.flatten(0, 1)[None]
