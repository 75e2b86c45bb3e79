# SPDX-License-Identifier: Apache-2.0
"""A layer that reads the running step, and the op that its prefill goes through."""

import torch
import vllm._custom_ops as ops
from torch import nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.ops.causal_conv1d import (
    causal_conv1d_fn,
    causal_conv1d_update,
)
from vllm.third_party.flash_linear_attention.ops import chunk_gated_delta_rule as fla_chunk_gated_delta_rule
from vllm.third_party.flash_linear_attention.ops import (
    fused_recurrent_gated_delta_rule_packed_decode,
    fused_sigmoid_gating_delta_rule_update,
)
from vllm.third_party.flash_linear_attention.ops.pool import split


def fi_chunk_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    initial_state,
    output_final_state,
    cu_seqlens=None,
    use_qk_l2norm_in_kernel=True,
    state_checkpoints=None,
    checkpoint_cu_starts=None,
    checkpoint_every_n_tokens=0,
    use_cp="auto",
):
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    o, final = chunk_gated_delta_rule(
        q=q.squeeze(0),
        k=k.squeeze(0),
        v=v.squeeze(0),
        g=torch.exp(g.squeeze(0).float()),
        beta=beta.squeeze(0).float(),
        initial_state=initial_state.float(),
        output_final_state=True,
        cu_seqlens=cu_seqlens.long(),
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
    )
    return o.unsqueeze(0), final


class ChunkGatedDeltaRule(nn.Module):
    def __init__(self, backend):
        super().__init__()
        self._forward_method = {
            "flashinfer": self.forward_cuda,
            "triton": self.forward_native,
            "cutedsl": self.forward_cutedsl,
            "aiter_flydsl": self.forward_aiter_flydsl,
        }[backend]

    def forward(self, *args, **kwargs):
        return self._forward_method(*args, **kwargs)

    def forward_cuda(
        self,
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        output_final_state,
        cu_seqlens=None,
        chunk_indices=None,
        chunk_offsets=None,
        use_qk_l2norm_in_kernel=True,
        core_attn_out=None,
        aiter_prefill_metadata=None,
    ):
        return fi_chunk_gated_delta_rule(
            q,
            k,
            v,
            g,
            beta,
            initial_state,
            output_final_state,
            cu_seqlens,
            use_qk_l2norm_in_kernel,
        )

    def forward_native(
        self,
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        output_final_state,
        cu_seqlens=None,
        chunk_indices=None,
        chunk_offsets=None,
        use_qk_l2norm_in_kernel=True,
        core_attn_out=None,
        aiter_prefill_metadata=None,
    ):
        return fla_chunk_gated_delta_rule(
            q,
            k,
            v,
            g,
            beta,
            None,
            initial_state,
            output_final_state,
            cu_seqlens,
            chunk_indices,
            chunk_offsets,
            use_qk_l2norm_in_kernel,
            core_attn_out,
        )

    def forward_cutedsl(
        self,
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        output_final_state,
        cu_seqlens=None,
        chunk_indices=None,
        chunk_offsets=None,
        use_qk_l2norm_in_kernel=True,
        core_attn_out=None,
        aiter_prefill_metadata=None,
    ):
        o, final = self.forward_native(
            q, k, v, g, beta, initial_state, True, cu_seqlens, None, None, use_qk_l2norm_in_kernel
        )
        return o, final.to(initial_state.dtype)

    def forward_aiter_flydsl(
        self,
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        output_final_state,
        cu_seqlens=None,
        chunk_indices=None,
        chunk_offsets=None,
        use_qk_l2norm_in_kernel=True,
        core_attn_out=None,
        aiter_prefill_metadata=None,
    ):
        return self.forward_cutedsl(
            q,
            k,
            v,
            g,
            beta,
            initial_state,
            True,
            cu_seqlens,
            None,
            None,
            use_qk_l2norm_in_kernel,
        )


class QwenGatedDeltaNetAttention(nn.Module):
    """Layer `prefix` over `pool` [slots, Hv, V, K]; `core` is what its custom op ends in."""

    def __init__(self, layer_idx, pool, A_log, dt_bias, backend="triton"):
        super().__init__()
        self.layer_idx = layer_idx
        self.prefix = f"model.layers.{layer_idx}.linear_attn"
        self.pool, self.A_log, self.dt_bias = pool, A_log, dt_bias
        self.windows, self.weight = None, None  # of the convolution; a test may set them
        self.chunk_gated_delta_rule = ChunkGatedDeltaRule(backend)

    def _forward_core(self, mixed_qkv, b, a, core_attn_out):
        metadata = get_forward_context().attn_metadata
        step = None if metadata is None else metadata[self.prefix]
        if step is not None and step.num_spec_decodes and step.num_prefills:
            for one, rows in (("spec", step.spec_token_indx), ("rest", step.non_spec_token_indx)):
                out = core_attn_out[rows]
                self._core(step, mixed_qkv[rows], b[rows], a[rows], out, one == "spec")
                core_attn_out[rows] = out
            return
        self._core(step, mixed_qkv, b, a, core_attn_out, step is not None and step.num_spec_decodes)

    def _convolved(self, step, mixed_qkv, drafted):
        if drafted:
            return causal_conv1d_update(
                mixed_qkv,
                self.windows,
                self.weight,
                None,
                "silu",
                conv_state_indices=step.spec_state_indices_tensor[:, 0],
                num_accepted_tokens=step.num_accepted_tokens,
                query_start_loc=step.spec_query_start_loc,
                max_query_len=step.spec_state_indices_tensor.shape[1],
            )
        return causal_conv1d_fn(
            mixed_qkv.T,
            self.weight,
            None,
            conv_states=self.windows,
            query_start_loc=step.non_spec_query_start_loc,
            cache_indices=step.non_spec_state_indices_tensor,
            has_initial_state=step.prefill_has_initial_state,
        ).T

    def _core(self, step, mixed_qkv, b, a, core_attn_out, drafted):
        if self.windows is not None:
            mixed_qkv = self._convolved(step, mixed_qkv, drafted).contiguous()
        q, k, v = split(mixed_qkv, self.pool)
        if step is None:  # kernels are compiled on something
            self.chunk_gated_delta_rule(
                q, k, v, a[None].float(), b[None].float(), None, False, torch.tensor([0, len(a)])
            )
            return
        if drafted:
            o, _ = fused_sigmoid_gating_delta_rule_update(
                A_log=self.A_log,
                a=a,
                b=b,
                dt_bias=self.dt_bias,
                q=q,
                k=k,
                v=v,
                initial_state=self.pool,
                cu_seqlens=step.spec_query_start_loc[: step.num_spec_decodes + 1],
                ssm_state_indices=step.spec_state_indices_tensor,
                num_accepted_tokens=step.num_accepted_tokens,
                use_qk_l2norm_in_kernel=True,
            )
            core_attn_out[:] = o[0]
        elif step.num_decodes:
            fused_recurrent_gated_delta_rule_packed_decode(
                mixed_qkv,
                a,
                b,
                self.A_log,
                self.dt_bias,
                self.pool.shape[-1] ** -0.5,
                self.pool,
                core_attn_out.unsqueeze(1),
                step.non_spec_state_indices_tensor,
                True,
            )
        else:
            states = self.pool[step.prefill_state_indices]
            states[~step.prefill_has_initial_state] = 0
            o, final = self.chunk_gated_delta_rule(
                q,
                k,
                v,
                -a[None].float().abs(),
                b[None].float().sigmoid(),
                initial_state=states,
                output_final_state=True,
                cu_seqlens=step.prefill_query_start_loc,
                chunk_indices=step.chunk_indices,
                chunk_offsets=step.chunk_offsets,
            )
            self.pool[step.prefill_state_indices] = final.to(self.pool.dtype)
            core_attn_out[:] = o[0]


fused_mtp_decode = ops.fused_gdn_decode_post_conv_mtp
