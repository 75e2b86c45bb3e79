# SPDX-License-Identifier: Apache-2.0
"""Signatures of vLLM's gated delta rule, Kimi Delta Attention and sparse attention, as adapters/vllm.py,
vllm_kda.py and vllm_deepseek_v4.py expect them."""

from __future__ import annotations

from gdnbench.capture.adapters.signatures import Signature, Signatures

FORWARD = "ChunkGatedDeltaRule.forward"
CHUNK = "chunk_gated_delta_rule"
CHUNK_FLASHINFER = "fi_chunk_gated_delta_rule"
CHUNK_CUTEDSL = "chunk_gated_delta_rule_cutedsl"
RECURRENT = "fused_recurrent_gated_delta_rule"
PACKED = "fused_recurrent_gated_delta_rule_packed_decode"
SIGMOID = "fused_sigmoid_gating_delta_rule_update"
MTP = "fused_gdn_decode_post_conv_mtp"
MTP_TRITON = "fused_gdn_decode_post_conv_mtp_triton"
FLASH_MLA = "flash_mla_with_kvcache"

_CHUNK_NEEDS = "q k v g beta initial_state cu_seqlens"
_MTP_NEEDS = (
    "mixed_qkv a b A_log dt_bias state_indices cu_seqlens num_accepted_tokens state output_gate out scale"
)

SIGNATURES = Signatures(
    distribution="vllm",
    versions=("0.24.0", "0.33.0"),
    read="2026-11-23",
    functions={
        FORWARD: Signature(
            "self, q, k, v, g, beta, initial_state, output_final_state, cu_seqlens=None, chunk_indices=None,"
            " chunk_offsets=None, use_qk_l2norm_in_kernel=True, core_attn_out=None,"
            " aiter_prefill_metadata=None",
            needs=f"{_CHUNK_NEEDS} output_final_state use_qk_l2norm_in_kernel chunk_indices chunk_offsets",
        ),
        CHUNK: Signature(
            "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None,"
            " chunk_indices=None, chunk_offsets=None, use_qk_l2norm_in_kernel=False, core_attn_out=None",
            needs=f"{_CHUNK_NEEDS} scale output_final_state use_qk_l2norm_in_kernel",
        ),
        CHUNK_FLASHINFER: Signature(
            "q, k, v, g, beta, initial_state, output_final_state, cu_seqlens=None,"
            " use_qk_l2norm_in_kernel=True, state_checkpoints=None, checkpoint_cu_starts=None,"
            " checkpoint_every_n_tokens=0, use_cp='auto'",
            needs=f"{_CHUNK_NEEDS} output_final_state use_qk_l2norm_in_kernel",
        ),
        CHUNK_CUTEDSL: Signature(
            "q, k, v, g, beta, initial_state, cu_seqlens, chunk_indices, chunk_offsets, core_attn_out=None",
            needs=_CHUNK_NEEDS,
        ),
        RECURRENT: Signature(
            "q, k, v, g, beta=None, scale=None, initial_state=None, inplace_final_state=True,"
            " cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None,"
            " use_qk_l2norm_in_kernel=False",
            needs="q k v g beta scale initial_state inplace_final_state cu_seqlens ssm_state_indices"
            " num_accepted_tokens use_qk_l2norm_in_kernel",
        ),
        PACKED: Signature(
            "mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices,"
            " use_qk_l2norm_in_kernel=False",
            needs="mixed_qkv a b A_log dt_bias scale initial_state out ssm_state_indices"
            " use_qk_l2norm_in_kernel",
        ),
        SIGMOID: Signature(
            "A_log, a, b, dt_bias, q, k, v, beta=1.0, threshold=20.0, scale=None, initial_state=None,"
            " inplace_final_state=True, cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None,"
            " use_qk_l2norm_in_kernel=False, is_kda=False",
            needs="A_log a b dt_bias q k v beta scale initial_state inplace_final_state cu_seqlens"
            " ssm_state_indices num_accepted_tokens use_qk_l2norm_in_kernel",
        ),
        MTP: Signature(
            "mixed_qkv, a, b, A_log, dt_bias, state_indices, cu_seqlens, num_accepted_tokens, state,"
            " output_gate, norm_weight, out=None, scale=128 ** (-0.5), norm_eps=1e-05,"
            " output_gate_activation='silu'",
            needs=_MTP_NEEDS,
        ),
        MTP_TRITON: Signature(
            "mixed_qkv, a, b, A_log, dt_bias, state_indices, cu_seqlens, num_accepted_tokens, state,"
            " output_gate, norm_weight, out, scale, norm_eps, output_gate_activation",
            needs=_MTP_NEEDS,
        ),
        "causal_conv1d_fn": Signature(
            "x, weight, bias, conv_states, query_start_loc, cache_indices=None, has_initial_state=None,"
            " activation='silu', pad_slot_id=PAD_SLOT_ID, null_block_id=NULL_BLOCK_ID, metadata=None,"
            " validate_data=False",
            needs="x weight bias conv_states query_start_loc cache_indices has_initial_state activation",
            others="block_idx_first_scheduled_token block_idx_last_scheduled_token initial_state_idx"
            " num_computed_tokens block_size_to_align",
        ),
        "causal_conv1d_update": Signature(
            "x, conv_state, weight, bias=None, activation=None, conv_state_indices=None,"
            " num_accepted_tokens=None, query_start_loc=None, max_query_len=-1, null_block_id=NULL_BLOCK_ID,"
            " validate_data=False, out=None",
            needs="x conv_state weight bias activation conv_state_indices num_accepted_tokens query_start_loc"
            " max_query_len",
            others="pad_slot_id block_idx_last_scheduled_token initial_state_idx",
        ),
        FLASH_MLA: Signature(
            "q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,"
            " softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None,"
            " extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None,"
            " out=None, enable_batch_invariant=False",
            needs="q k_cache indices topk_length softmax_scale attn_sink extra_k_cache"
            " extra_indices_in_kvcache extra_topk_length is_fp8_kvcache",
        ),
    },
)
"""The last function is FlashMLA's, which vLLM vendors; `enable_batch_invariant` came with 0.33.0 or shortly
before. Between 0.24.0 and 0.28.0 vllm.model_executor.layers.fla became
vllm.third_party.flash_linear_attention, and the fused speculative decode came."""

_KDA_CHUNK_NEEDS = "q k v initial_state output_final_state use_qk_l2norm_in_kernel cu_seqlens"
_KDA_GATED = (
    "q, k, v, raw_g, raw_beta, A_log, g_bias, scale=None, initial_state=None, output_final_state=False,"
    " lower_bound=None, use_qk_l2norm_in_kernel=False, cu_seqlens=None, out=None"
)
_KDA_PLAIN = Signature(
    "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,"
    " use_qk_l2norm_in_kernel=False, cu_seqlens=None",
    needs=f"g beta {_KDA_CHUNK_NEEDS}",
    others="safe_gate lower_bound",  # Ling-3.0 gives them, and the function takes no notice
)
_KDA_SLOTS = "initial_state cu_seqlens ssm_state_indices"

KDA_SIGNATURES = Signatures(
    distribution="vllm",
    versions=("0.33.0", "0.33.0"),
    read="2026-11-27",
    functions={
        "kimi_k3.chunk_kda": _KDA_PLAIN,
        "kimi_k3.chunk_kda_with_fused_gate": Signature(
            _KDA_GATED,
            needs=f"raw_g raw_beta A_log g_bias lower_bound {_KDA_CHUNK_NEEDS}",
            others="chunk_indices chunk_offsets",
        ),
        "kimi_k3.fused_recurrent_kda": Signature(
            "q, k, v, raw_g, raw_beta, A_log, dt_bias, lower_bound, initial_state, cu_seqlens,"
            " ssm_state_indices, num_accepted_tokens=None, out=None, fuse_gate=None",
            needs=f"q k v raw_g raw_beta A_log dt_bias lower_bound {_KDA_SLOTS} num_accepted_tokens",
            others="uniform_sequence_length",
        ),
        "kimi_k3.fused_recurrent_kda_packed_decode": Signature(
            "mixed_qkv, raw_g, raw_beta, A_log, dt_bias, lower_bound, initial_state, state_indices,"
            " scale=None, out=None",
            needs="mixed_qkv raw_g raw_beta A_log dt_bias lower_bound initial_state state_indices scale",
        ),
        "kimi_k3.kda_recoverssm_verify": Signature(
            "q, k, v, raw_g, raw_beta, A_log, dt_bias, lower_bound, checkpoint_state, records,"
            " query_start_loc, state_indices, spec_query_len, out=None",
            needs="q k v raw_g raw_beta A_log dt_bias lower_bound checkpoint_state query_start_loc"
            " state_indices spec_query_len",
        ),
        "kimi_k3._flashkda_prefill": Signature(
            "q, k, v, g, beta, A_log, dt_bias, lower_bound, initial_state, cu_seqlens, out, final_state,"
            " workspace, checkpoint_state=None, checkpoint_offsets=None",
            needs="q k v g beta A_log dt_bias lower_bound initial_state cu_seqlens final_state",
        ),
        "kimi_k3._flashinfer_kda_prefill": Signature(
            "q, k, v, raw_g, raw_beta, A_log, dt_bias, lower_bound, initial_state, cu_seqlens, out,"
            " seq_order=None, prefill_workspace=None",
            needs="q k v raw_g raw_beta A_log dt_bias lower_bound initial_state cu_seqlens",
        ),
        "glm5next.chunk_kda_with_fused_gate": Signature(
            "q, k, v, raw_g, beta, A_log, g_bias, scale=None, initial_state=None, output_final_state=False,"
            " use_qk_l2norm_in_kernel=False, cu_seqlens=None, safe_gate=False, lower_bound=-5.0",
            needs=f"raw_g beta A_log g_bias safe_gate lower_bound {_KDA_CHUNK_NEEDS}",
        ),
        "glm5next.fused_recurrent_kda": Signature(
            "q, k, v, g, beta=None, scale=None, initial_state=None, inplace_final_state=True,"
            " use_qk_l2norm_in_kernel=True, cu_seqlens=None, ssm_state_indices=None,"
            " num_accepted_tokens=None, out=None, sigmoid_beta=False, a_log=None, g_bias=None,"
            " compute_gate=False, lower_bound=-5.0",
            needs=f"q k v g beta {_KDA_SLOTS} num_accepted_tokens sigmoid_beta a_log g_bias compute_gate"
            " lower_bound use_qk_l2norm_in_kernel",
        ),
        "glm5next.Glm5NextLinearAttention._flashkda_prefill": Signature(
            "self, q, k, v, g, beta, initial_state, cu_seqlens, out, checkpoint=None, raw_qkv=None,"
            " conv_state=None, recurrent_state=None",
            needs="self q k v g beta initial_state cu_seqlens",
        ),
        "fla.chunk_kda": _KDA_PLAIN,
        "fla.chunk_kda_with_fused_gate": Signature(
            "q, k, v, raw_g, beta, A_log, g_bias, scale=None, initial_state=None, output_final_state=False,"
            " lower_bound=None, use_qk_l2norm_in_kernel=False, cu_seqlens=None",
            needs=f"raw_g beta A_log g_bias lower_bound {_KDA_CHUNK_NEEDS}",
        ),
        "fla.fused_recurrent_kda": Signature(
            "q, k, v, g, beta=None, scale=None, initial_state=None, inplace_final_state=True,"
            " use_qk_l2norm_in_kernel=True, cu_seqlens=None, ssm_state_indices=None",
            needs=f"q k v g beta {_KDA_SLOTS} inplace_final_state use_qk_l2norm_in_kernel",
            others="safe_gate lower_bound",
        ),
        "fla.fused_recurrent_kda_fwd": Signature(
            "q, k, v, g, beta, scale, initial_state, inplace_final_state=True, cu_seqlens=None,"
            " ssm_state_indices=None, num_accepted_tokens=None, use_qk_l2norm_in_kernel=False",
            needs=f"q k v g beta scale {_KDA_SLOTS} num_accepted_tokens use_qk_l2norm_in_kernel",
        ),
    },
)
"""By package, see `vllm_kda`. The copies for AMD have more parameters, which `others` lists."""
