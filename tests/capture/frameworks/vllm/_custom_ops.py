# SPDX-License-Identifier: Apache-2.0
from vllm.third_party.flash_linear_attention.ops.pool import over_pool_raw, split

from tests.capture.indexer_engine import select


def fused_gdn_decode_post_conv_mtp(
    mixed_qkv,
    a,
    b,
    A_log,
    dt_bias,
    state_indices,
    cu_seqlens,
    num_accepted_tokens,
    state,
    output_gate,
    norm_weight,
    out=None,
    scale=128**-0.5,
    norm_eps=1e-5,
    output_gate_activation="silu",
):
    of = (*split(mixed_qkv, state), a, b, A_log, dt_bias, scale, state, cu_seqlens)
    o = over_pool_raw(*of, state_indices, num_accepted_tokens, True)[0].nan_to_num().float()
    root = (o.square().mean(-1, keepdim=True) + norm_eps).sqrt()
    gate = output_gate.float()
    gated = o / root * norm_weight.float() * gate * gate.sigmoid()
    out.copy_(gated.to(out.dtype))
    return out


def top_k_per_row_prefill(
    logits, cu_seqlen_ks, cu_seqlen_ke, raw_topk_indices, num_rows, stride0, stride1, topk_tokens
):
    found = select(logits, cu_seqlen_ks.tolist(), cu_seqlen_ke.tolist(), topk_tokens)
    raw_topk_indices.copy_(found)


def top_k_per_row_decode(logits, next_n, seq_lens, raw_topk_indices, num_rows, stride0, stride1, topk_tokens):
    ends = seq_lens.reshape(-1).tolist()
    raw_topk_indices.copy_(select(logits, [0] * len(ends), ends, topk_tokens))
