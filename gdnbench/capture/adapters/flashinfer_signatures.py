"""Signatures of FlashInfer's gated delta rule, as adapters/flashinfer.py expects them."""

from __future__ import annotations

from gdnbench.capture.adapters.signatures import Signature, Signatures

CHUNK = "chunk_gated_delta_rule"
DECODE = "gated_delta_rule_decode"
PRETRANSPOSE = "gated_delta_rule_decode_pretranspose"
MTP = "gated_delta_rule_mtp"

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
