# SPDX-License-Identifier: Apache-2.0
"""A layer over pages of rows of 584 bytes, and the kernel that its decoding calls."""

from types import SimpleNamespace

from torch import nn
from vllm.forward_context import get_forward_context

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
    is_fp8_kvcache=False,
    indices=None,
    attn_sink=None,
    extra_k_cache=None,
    extra_indices_in_kvcache=None,
    topk_length=None,
    extra_topk_length=None,
    out=None,
    enable_batch_invariant=False,
):
    extra = (extra_k_cache, extra_indices_in_kvcache, extra_topk_length)
    o, lse = flash_mla(q, k_cache, indices, topk_length, attn_sink, softmax_scale, *extra)
    out.copy_(o)
    return out, lse


class DeepseekV4FlashMLAAttention(nn.Module):
    def __init__(self, layer_idx, pages, sinks, extra=None):
        """`extra`: what a layer with compressed keys adds to its call."""
        super().__init__()
        no_extra = dict.fromkeys(("extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length"))
        self.layer_idx, self.sinks, self.extra = layer_idx, sinks, no_extra | (extra or {})
        prefix = f"model.layers.{layer_idx}.attn.swa_cache"
        self.swa_cache_layer = SimpleNamespace(prefix=prefix, kv_cache=pages)

    def forward_mqa(self, q, kv, positions, output):
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            output.zero_()
            return
        step = metadata[self.swa_cache_layer.prefix]
        flash_mla_with_kvcache(
            q=q.unsqueeze(1),
            k_cache=self.swa_cache_layer.kv_cache.unsqueeze(-2),
            block_table=None,
            head_dim_v=512,
            tile_scheduler_metadata=None,
            cache_seqlens=None,
            is_fp8_kvcache=True,
            indices=step.decode_swa_indices,
            topk_length=step.decode_swa_lens,
            softmax_scale=512**-0.5,
            attn_sink=self.sinks,
            **self.extra,
            out=output.unsqueeze(1),
        )
