# SPDX-License-Identifier: Apache-2.0
"""Signatures of FlashInfer's gated delta rule, of its Kimi Delta Attention and of its sparse attention of
DeepSeek-V4, as adapters/flashinfer.py, flashinfer_kda.py and flashinfer_sparse_mla.py expect them."""

from __future__ import annotations

from gdnbench.capture.adapters.signatures import Signature, Signatures

CHUNK = "chunk_gated_delta_rule"
DECODE = "gated_delta_rule_decode"
PRETRANSPOSE = "gated_delta_rule_decode_pretranspose"
MTP = "gated_delta_rule_mtp"
RECURRENT_KDA = "recurrent_kda"
PACKED_KDA = "packed_kda_decode"
SPARSE_MLA = "trtllm_batch_decode_sparse_mla_dsv4"
HCA = "cute_dsl_hca_decode"

_GATES = "A_log a dt_bias b"

SIGNATURES = Signatures(
    distribution="flashinfer-python",
    versions=("0.6.2", "0.7.2.post1"),
    read="2026-11-22",
    functions={
        CHUNK: Signature(
            "q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False,"
            " cu_seqlens=None, use_qk_l2norm_in_kernel=False, output=None, output_state=None,"
            " state_checkpoints=None, checkpoint_cu_starts=None, checkpoint_every_n_tokens=0, use_cp='auto',"
            " state_indices=None, _cp_chunk_len=None, backend='auto', max_seqlen=None",
            needs="q k v g beta scale initial_state output_final_state cu_seqlens use_qk_l2norm_in_kernel"
            " output_state",
        ),
        DECODE: Signature(
            "q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True,"
            " backend='auto'",
            needs=f"q k v state {_GATES} scale use_qk_l2norm",
        ),
        PRETRANSPOSE: Signature(
            "q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True,"
            " initial_state=None, initial_state_indices=None, output_state_indices=None,"
            " intermediate_states_buffer=None, disable_state_update=False, backend='auto'",
            needs=f"q k v state {_GATES} scale use_qk_l2norm",
        ),
        MTP: Signature(
            "q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale=None, output=None,"
            " intermediate_states_buffer=None, ssm_state_indices=None, disable_state_update=None,"
            " use_qk_l2norm=True, output_state_indices=None, cache_replayssm=False, replayssm_rawv=None,"
            " replayssm_rawk=None, replayssm_g=None, replayssm_beta=None",
            needs=f"q k v initial_state initial_state_indices {_GATES} scale use_qk_l2norm"
            " disable_state_update",
        ),
    },
)
"""The pool of gated_delta_rule_decode_pretranspose came with 0.6.6 or shortly before, output_state_indices by
0.6.9, slots of single tokens, state_indices and backend later."""

KDA_SIGNATURES = Signatures(
    distribution="flashinfer-python",
    versions=("0.6.14", "0.7.2.post1"),
    read="2026-11-27",
    functions={
        RECURRENT_KDA: Signature(
            "q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None,"
            " output_final_state=False, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=False,"
            " lower_bound=None, cu_seqlens=None, ssm_state_indices=None, num_spec_tokens=None,"
            " num_accepted_tokens=None, output=None, initial_state_source=None, initial_state_indices=None,"
            " beta_is_logit=False, seq_order=None, prefill_workspace=None, state_checkpoints=None,"
            " checkpoint_cu_starts=None, checkpoint_every_n_tokens=0, checkpoint_state_indices=None, *,"
            " disable_state_update=False, correction_cache=None, kg_cache=None, backend='auto'",
            needs="q k v g beta A_log dt_bias scale initial_state output_final_state use_qk_l2norm_in_kernel"
            " use_gate_in_kernel lower_bound cu_seqlens ssm_state_indices num_accepted_tokens",
        ),
        PACKED_KDA: Signature(
            "mixed_qkv, raw_gate, raw_beta, A_log, dt_bias, state, state_indices, output=None",
            needs="mixed_qkv raw_gate raw_beta A_log dt_bias state state_indices",
        ),
    },
)
"""flashinfer.kda, which also prefills, came with 0.6.18 or shortly before, as did packed_kda_decode;
flashinfer.kda_decode has a function of the same name with fewer parameters."""

SPARSE_MLA_SIGNATURES = Signatures(
    distribution="flashinfer-python",
    versions=("0.6.12", "0.7.2.post1"),
    read="2026-11-26",
    functions={
        SPARSE_MLA: Signature(
            "query, swa_kv_cache, workspace_buffer, sparse_indices=None, compressed_kv_cache=None,"
            " sparse_topk_lens=None, seq_lens=None, out=None, bmm1_scale=1.0, bmm2_scale=1.0, sinks=None,"
            " kv_layout='HND', cum_seq_lens_q=None, max_q_len=None, enable_pdl=None, swa_topk_lens=None,"
            " extra_sparse_indices=None, extra_sparse_topk_lens=None, backend='auto', hca_swa_indices=None,"
            " hca_compressed_block_tables=None, hca_seq_lens=None, hca_is_causal=True,"
            " hca_use_persistent=False, hca_sparse_indices_format=None, remapped_sparse_indices_buffer=None,"
            " sparse_indices_are_storage_offsets=None, dsv4_inv_rope_cos_sin_cache=None,"
            " dsv4_output_scale=None, sparse_topk_lens_offset=0, multi_ctas_kv_counter_buffer=None, *,"
            " kv_cache_format='fp8'",
            needs="query swa_kv_cache sparse_indices sparse_topk_lens seq_lens bmm1_scale bmm2_scale sinks"
            " cum_seq_lens_q",
        ),
        HCA: Signature(
            "query, window_kv_cache, compressed_kv_cache, workspace_buffer, window_indices,"
            " compressed_block_tables, hca_seq_lens, sparse_topk_lens, window_valid_lens, softmax_scale,"
            " output_scale=1.0, sinks=None, out=None, is_causal=True, is_persistent=False",
            needs="query window_kv_cache compressed_kv_cache window_indices compressed_block_tables"
            " sparse_topk_lens window_valid_lens softmax_scale output_scale sinks",
        ),
    },
)
"""0.6.12 calls pages without room between alone; the packed pages of SM120 came by 0.6.14, backend by 0.6.18,
pages that lie apart, outputs rotated back and other formats by 0.7.0. The HCA kernel was read in
0.7.2.post1."""
