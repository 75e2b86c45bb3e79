# SPDX-License-Identifier: Apache-2.0
"""The kernel of DeepSeek-V4, where SGLang had it before 0.5.23."""

from tests.capture.swa_engine import flash_mla


def flash_mla_with_kvcache(
    q,
    k_cache,
    block_table,
    cache_seqlens,
    head_dim_v,
    tile_scheduler_metadata,
    num_splits=None,
    softmax_scale=None,
    causal=False,
    descale_q=None,
    descale_k=None,
    is_fp8_kvcache=False,
    indices=None,
    attn_sink=None,
    extra_k_cache=None,
    extra_indices_in_kvcache=None,
    topk_length=None,
    extra_topk_length=None,
):
    extra = (extra_k_cache, extra_indices_in_kvcache, extra_topk_length)
    return flash_mla(q, k_cache, indices, topk_length, attn_sink, softmax_scale, *extra)
