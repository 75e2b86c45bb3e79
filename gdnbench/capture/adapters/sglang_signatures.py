# SPDX-License-Identifier: Apache-2.0
"""Signatures of SGLang's gated delta rule, Kimi Delta Attention and sparse attention, as adapters/sglang.py,
sglang_kda.py and sglang_deepseek_v4.py expect."""

from __future__ import annotations

from gdnbench.capture.adapters.signatures import Signature, Signatures

EXTEND = "extend"
DECODE = "decode"
PACKED_DECODE = "packed_decode"
VERIFY = "target_verify"
TRITON = "TritonGDNKernel"
FLASHINFER = "FlashInferGDNKernel"
CUTEDSL = "CuteDSLGDNKernel"
CHUNK = "chunk_gated_delta_rule"
PACKED = "fused_recurrent_gated_delta_rule_packed_decode"
SIGMOID = "fused_sigmoid_gating_delta_rule_update"
MTP_RING = "gated_delta_rule_mtp"
KDA_CHUNK = "chunk_kda"
KDA_PACKED = "fused_recurrent_kda_packed_decode"
CUTEDSL_KDA = "cutedsl_fused_sigmoid_gating_kda_update"
FLASHINFER_KDA_PREFILL = "FlashInferKDAPrefillKernel"
FLASH_MLA = "flash_mla_with_kvcache"
FLASH_MLA_SM120 = "flash_mla_with_kvcache_sm120"
SWAPAB = "swapab_attention"

_POOL = "ssm_states cache_indices query_start_loc"
_RAW = "q k v a b A_log dt_bias"
_EXTEND = "self, q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc"
_DECODE = "self, q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices, query_start_loc"
_VERIFY = (
    "self, A_log, dt_bias, q, k, v, a, b, *, ssm_states, cache_indices, query_start_loc,"
    " intermediate_states_buffer, intermediate_state_indices, cache_steps, retrieve_parent_token"
)
_CHECKPOINTS = ("state_checkpoint_cu_starts", "num_state_checkpoints", "state_checkpoint_every_n_tokens")


def _extend(more: str = "", also: str = "") -> Signature:
    """`also`: parameters that this backend ignores in `**kwargs` and another backend names."""
    given = "output layer_id extend_prefix_lens track_state track_chunk_idx"
    return Signature(_EXTEND + more, needs=f"q k v g beta {_POOL}", others=f"{given} {also}")


def _verify(more: str = "", also: str = "") -> Signature:
    return Signature(_VERIFY + more, needs=f"{_RAW} {_POOL} retrieve_parent_token", others=also)


SIGNATURES = Signatures(
    distribution="sglang",
    versions=("0.5.11", "0.5.23"),
    read="2026-11-26",
    functions={
        f"{TRITON}.{EXTEND}": _extend(", inplace_update=True", " ".join(_CHECKPOINTS)),
        f"{FLASHINFER}.{EXTEND}": _extend(
            f", {_CHECKPOINTS[0]}=None, {_CHECKPOINTS[1]}=0, {_CHECKPOINTS[2]}=0"
        ),
        f"{CUTEDSL}.{EXTEND}": _extend(also=" ".join(_CHECKPOINTS)),
        **{
            f"{kernels}.{DECODE}": Signature(_DECODE, needs=f"{_RAW} {_POOL}")
            for kernels in (TRITON, FLASHINFER, CUTEDSL)
        },
        f"{TRITON}.{PACKED_DECODE}": Signature(
            "self, mixed_qkv, a, b, *, A_log, dt_bias, scale, ssm_states, cache_indices, num_v_heads,"
            " head_v_dim",
            needs="mixed_qkv a b A_log dt_bias scale ssm_states cache_indices",
            others="replayssm_d replayssm_k replayssm_g replayssm_write_pos replayssm_force_flush",
        ),
        f"{TRITON}.{VERIFY}": _verify(also="stable_rows"),
        f"{FLASHINFER}.{VERIFY}": _verify(", stable_rows=False"),
        CHUNK: Signature(
            "q, k, v, g, beta, scale=None, initial_state=None, initial_state_indices=None, cu_seqlens=None,"
            " head_first=False, use_qk_l2norm_in_kernel=False, inplace_update=True",
            needs="q k v g beta scale initial_state initial_state_indices cu_seqlens head_first"
            " use_qk_l2norm_in_kernel",
        ),
        "causal_conv1d_fn": Signature(
            "x, weight, bias, conv_states, query_start_loc, seq_lens_cpu, cache_indices=None,"
            " has_initial_state=None, activation='silu', pad_slot_id=PAD_SLOT_ID, validate_data=False,"
            " block_table=None",
            needs="x weight bias conv_states query_start_loc cache_indices has_initial_state activation"
            " pad_slot_id",
        ),
        "causal_conv1d_update": Signature(
            "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None,"
            " num_accept_tokens=None, intermediate_conv_window=None, intermediate_state_indices=None,"
            " retrieve_next_token=None, retrieve_next_sibling=None, retrieve_parent_token=None,"
            " pad_slot_id=PAD_SLOT_ID, metadata=None, validate_data=False",
            needs="x conv_state weight bias activation conv_state_indices pad_slot_id",
        ),
        PACKED: Signature(
            "mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices,"
            " use_qk_l2norm_in_kernel=False",
            needs="mixed_qkv a b A_log dt_bias scale initial_state ssm_state_indices use_qk_l2norm_in_kernel",
        ),
        SIGMOID: Signature(
            "A_log, a, dt_bias, softplus_beta, softplus_threshold, q, k, v, b, initial_state_source,"
            " initial_state_indices, scale=None, use_qk_l2norm_in_kernel=False, cu_seqlens=None,"
            " is_kda=False, lower_bound=None, disable_state_update=False, intermediate_states_buffer=None,"
            " intermediate_state_indices=None, cache_steps=None, retrieve_parent_token=None,"
            " cache_ring=False, replayssm_rawv=None, replayssm_rawk=None, replayssm_g=None,"
            " replayssm_beta=None, match_cutedsl_decode=False",
            needs=f"{_RAW} softplus_beta initial_state_source initial_state_indices scale"
            " use_qk_l2norm_in_kernel cu_seqlens is_kda disable_state_update retrieve_parent_token",
        ),
        FLASH_MLA: Signature(
            "q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,"
            " softmax_scale=None, causal=False, descale_q=None, descale_k=None, is_fp8_kvcache=False,"
            " indices=None, attn_sink=None, extra_k_cache=None, extra_indices_in_kvcache=None,"
            " topk_length=None, extra_topk_length=None, kv_format=None, *, use_legacy=True",
            needs="q k_cache indices topk_length softmax_scale attn_sink extra_k_cache"
            " extra_indices_in_kvcache extra_topk_length is_fp8_kvcache use_legacy",
        ),
        FLASH_MLA_SM120: Signature(
            "",
            needs="q k_cache indices topk_length softmax_scale attn_sink extra_k_cache"
            " extra_indices_in_kvcache extra_topk_length",
            others="q k_cache head_dim_v softmax_scale indices topk_length attn_sink extra_k_cache"
            " extra_indices_in_kvcache extra_topk_length",
        ),
        SWAPAB: Signature(
            "q, kv, indices, lengths, sink, extra_kv=None, extra_indices=None, extra_lengths=None,"
            " inv_rope=None, partial_gluon=None",
            needs="q kv indices lengths sink extra_kv extra_indices extra_lengths",
        ),
        MTP_RING: Signature(
            "A_log, a, dt_bias, softplus_beta=1.0, softplus_threshold=20.0, q=None, k=None, v=None, b=None,"
            " initial_state_source=None, initial_state_indices=None, output_state_indices=None,"
            " intermediate_states_buffer=None, accepted_steps=None, ssm_state_indices=None,"
            " disable_state_update=False, use_qk_l2norm_in_kernel=True, scale=None, output=None,"
            " disable_output=False, recovery_steps=0, cache_ring=False, replayssm_rawv=None,"
            " replayssm_rawk=None, replayssm_g=None, replayssm_beta=None",
            needs=f"{_RAW} softplus_beta initial_state_source initial_state_indices disable_state_update"
            " use_qk_l2norm_in_kernel scale",
        ),
    },
)
"""The methods are those of the kernels of each backend, and take more in `**kwargs`: `others` has what SGLang
gives them so; so does the function for SM120. 0.5.11, 0.5.16, 0.5.20 and 0.5.23 were read; CuTe DSL's prefill
came after the first of these. FlashMLA is sgl_kernel's before 0.5.23. The last three were read in 0.5.21 to
0.5.23."""

_KDA_GATE = "A_log=None, dt_bias=None, lower_bound=None"
_KDA_GIVEN = (
    "output layer_id extend_prefix_lens extend_seq_lens_cpu is_spec_decode return_intermediate_states"
    " beta_is_raw track_state track_chunk_idx track_ssm_h_src track_ssm_h_batch_src"
    f" {' '.join(_CHECKPOINTS)} state_checkpoint_indices chunk_indices chunk_offsets"
)
"""What SGLang gives every backend's prefill, most of which ignore some."""


def _kda_extend(gate: str = _KDA_GATE) -> Signature:
    return Signature(f"{_EXTEND}, {gate}", needs=f"q k v g beta {_POOL} A_log dt_bias", others=_KDA_GIVEN)


def _kda_verify(more: str) -> Signature:
    return Signature(
        f"{_VERIFY}, lower_bound=None{more}",
        needs=f"{_RAW} {_POOL} retrieve_parent_token lower_bound",
        others="cache_ring replayssm_rawv replayssm_rawk replayssm_g replayssm_beta"
        " fused_accept_state_indices fused_accept_num_accepted",
    )


_KDA_DECODE = Signature(f"{_DECODE}, lower_bound=None", needs=f"{_RAW} {_POOL}")
_KDA_DECODE_UNBOUNDED = Signature(_DECODE, needs=f"{_RAW} {_POOL}", others="lower_bound")
_KDA_PACKED_DECODE = Signature(
    "self, mixed_qkv, a, b, *, A_log, dt_bias, scale, ssm_states, cache_indices, num_v_heads, head_v_dim,"
    " lower_bound=None",
    needs="mixed_qkv a b A_log dt_bias scale ssm_states cache_indices lower_bound",
    others="replayssm_d replayssm_k replayssm_g replayssm_write_pos replayssm_force_flush",
)

KDA_SIGNATURES = Signatures(
    distribution="sglang",
    versions=("0.5.23", "0.5.23"),
    read="2026-11-27",
    functions={
        f"TritonKDAKernel.{PACKED_DECODE}": _KDA_PACKED_DECODE,
        f"TritonKDAKernel.{DECODE}": _KDA_DECODE,
        f"TritonKDAKernel.{VERIFY}": _kda_verify(
            ", cache_ring=False, replayssm_rawv=None, replayssm_rawk=None, replayssm_g=None,"
            " replayssm_beta=None"
        ),
        f"TritonKDAKernel.{EXTEND}": _kda_extend(
            f"{_KDA_GATE}, beta_is_raw=False, return_intermediate_states=False"
        ),
        f"FlashInferKDAKernel.{DECODE}": _KDA_DECODE,
        f"FlashInferKDAKernel.{VERIFY}": _kda_verify(
            ", fused_accept_state_indices=None, fused_accept_num_accepted=None"
        ),
        f"{FLASHINFER_KDA_PREFILL}.{EXTEND}": _kda_extend(
            "A_log, dt_bias, lower_bound, return_intermediate_states=False, state_checkpoint_cu_starts=None,"
            " num_state_checkpoints=0, state_checkpoint_every_n_tokens=0, state_checkpoint_indices=None,"
            " track_ssm_h_batch_src=None"
        ),
        f"CuteDSLKDAKernel.{DECODE}": _KDA_DECODE_UNBOUNDED,
        f"CuteDSLKDAKernel.{EXTEND}": _kda_extend(),
        f"FlashKDAKernel.{EXTEND}": _kda_extend(
            f"{_KDA_GATE}, extend_seq_lens_cpu=None, is_spec_decode=False, beta_is_raw=False,"
            " return_intermediate_states=False"
        ),
        f"HelionKDAKernel.{PACKED_DECODE}": _KDA_PACKED_DECODE,
        f"HelionKDAKernel.{DECODE}": _KDA_DECODE_UNBOUNDED,
        f"HelionKDAKernel.{VERIFY}": Signature(
            "self, *, q, k, v, a, b, A_log, dt_bias, ssm_states, cache_indices, query_start_loc,"
            " intermediate_states_buffer, intermediate_state_indices, cache_steps,"
            " retrieve_parent_token=None, lower_bound=None, cache_ring=False",
            needs=f"{_RAW} {_POOL} retrieve_parent_token lower_bound",
            others="replayssm_rawv replayssm_rawk replayssm_g replayssm_beta fused_accept_state_indices"
            " fused_accept_num_accepted",
        ),
        f"HelionKDAKernel.{EXTEND}": _kda_extend(
            f"{_KDA_GATE}, return_intermediate_states=False, beta_is_raw=False"
        ),
        f"NvidiaKDAKernel.{EXTEND}": _kda_extend(
            f"{_KDA_GATE}, return_intermediate_states=False, beta_is_raw=False"
        ),
        f"PtxKDAKernel.{EXTEND}": _kda_extend(f"{_KDA_GATE}, return_intermediate_states=False"),
        KDA_CHUNK: Signature(
            "q, k, v, g, beta, scale=None, initial_state=None, initial_state_indices=None,"
            " use_qk_l2norm_in_kernel=False, cu_seqlens=None, A_log=None, dt_bias=None, lower_bound=None,"
            " output_intermediate_states=False, track_state=None, track_chunk_idx=None, beta_is_raw=False,"
            " chunk_indices=None, chunk_offsets=None",
            needs="q k v g beta scale initial_state initial_state_indices use_qk_l2norm_in_kernel cu_seqlens"
            " A_log dt_bias lower_bound beta_is_raw",
        ),
        KDA_PACKED: Signature(
            "mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices,"
            " use_qk_l2norm_in_kernel=False, lower_bound=None",
            needs="mixed_qkv a b A_log dt_bias scale initial_state ssm_state_indices"
            " use_qk_l2norm_in_kernel lower_bound",
        ),
        CUTEDSL_KDA: Signature(
            "A_log, dt_bias, q, k, v, a, b, initial_state_source, initial_state_indices, cu_seqlens=None,"
            " scale=None, use_qk_l2norm_in_kernel=True, softplus_beta=1.0, softplus_threshold=20.0",
            needs=f"{_RAW} softplus_beta initial_state_source initial_state_indices cu_seqlens scale"
            " use_qk_l2norm_in_kernel",
        ),
    },
)
"""fused_sigmoid_gating_delta_rule_update is for both layers (`is_kda`)."""

KERNEL_SIGNATURES = Signatures(
    distribution="sglang-kernel",
    versions=("0.4.5", "0.4.7"),
    read="2026-11-23",
    functions={
        FLASH_MLA: Signature(
            "q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,"
            " softmax_scale=None, causal=False, descale_q=None, descale_k=None, is_fp8_kvcache=False,"
            " indices=None, attn_sink=None, extra_k_cache=None, extra_indices_in_kvcache=None,"
            " topk_length=None, extra_topk_length=None",
            needs="q k_cache indices topk_length softmax_scale attn_sink extra_k_cache"
            " extra_indices_in_kvcache extra_topk_length is_fp8_kvcache",
        )
    },
)
"""The package sgl_kernel that SGLang 0.5.16 and 0.5.20 require: its pages end with their scales."""
