# SPDX-License-Identifier: Apache-2.0
"""Signatures of flash-linear-attention's gated delta rule, Kimi Delta Attention and short convolution, as
adapters/fla.py expects them."""

from __future__ import annotations

from gdnbench.capture.adapters.signatures import Signature, Signatures

CHUNK = "chunk_gated_delta_rule"
RECURRENT = "fused_recurrent_gated_delta_rule"
KDA_CHUNK = "chunk_kda"
KDA_RECURRENT = "fused_recurrent_kda"
CONV = "causal_conv1d"
CONV_UPDATE = "causal_conv1d_update"

_NEEDS = "q k v g beta scale initial_state output_final_state use_qk_l2norm_in_kernel cu_seqlens"

SIGNATURES = Signatures(
    distribution="flash-linear-attention",
    versions=("0.3.0", "0.6.0"),
    read="2026-11-22",
    functions={
        CHUNK: Signature(
            "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,"
            " use_qk_l2norm_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False,"
            " state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None, cp_context=None",
            needs=_NEEDS,
            others="chunk_size use_gate_in_kernel A_log dt_bias transpose_state_layout head_first",
        ),
        RECURRENT: Signature(
            "q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None,"
            " output_final_state=False, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None,"
            " dt_bias=None, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False,"
            " cu_seqlens=None",
            needs=_NEEDS,
            others="transpose_state_layout use_exp2 head_first",
        ),
        KDA_CHUNK: Signature(
            "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,"
            " use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False,"
            " allow_neg_eigval=False, safe_gate=False, lower_bound=None, disable_recompute=False,"
            " return_intermediate_states=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None,"
            " cp_context=None, use_graph=False, max_num_seqs=None",
            needs=_NEEDS,
            others="A_log dt_bias chunk_size transpose_state_layout",
        ),
        KDA_RECURRENT: Signature(
            "q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None,"
            " output_final_state=False, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False,"
            " use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, lower_bound=None,"
            " state_v_first=False, cu_seqlens=None",
            needs=_NEEDS,
            others="transpose_state_layout",
        ),
        CONV: Signature(
            "x, weight=None, bias=None, residual=None, initial_state=None, output_final_state=False,"
            " activation=None, backend='triton', cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None,"
            " cp_context=None",
            needs="x weight bias residual activation cu_seqlens",
            others="seq_idx",
        ),
        CONV_UPDATE: Signature(
            "x, cache, residual=None, weight=None, bias=None, activation=None",
            needs="x cache residual weight bias activation",
        ),
    },
)
"""0.4.2 and 0.5.0 call state_v_first transpose_state_layout, which later ones take with a warning; releases
before 0.5.1 make no beta, and chunk_indices came after 0.5.2. Kimi Delta Attention came with 0.4.0 at the
latest, its gate in the kernel by 0.4.2. The convolution of 0.3.0 has no states."""
