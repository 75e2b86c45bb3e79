# SPDX-License-Identifier: Apache-2.0
"""FlashMLA's function over pages of rows of 584 bytes, with the signature of sgl-flash-mla 1.0.0."""

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
    is_fp8_kvcache=None,
    indices=None,
    attn_sink=None,
    extra_k_cache=None,
    extra_indices_in_kvcache=None,
    topk_length=None,
    extra_topk_length=None,
    enable_batch_invariant=False,
    use_legacy=False,
    kv_format=None,
    descale_q=None,
    descale_k=None,
):
    extra = (extra_k_cache, extra_indices_in_kvcache, extra_topk_length)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return flash_mla(q, k_cache, indices, topk_length, attn_sink, scale, *extra)
