"""A layer over pages of rows of 584 bytes, and the kernel that its decoding calls."""

from types import SimpleNamespace

import torch
from torch import nn
from vllm.forward_context import get_forward_context

from tests.capture.swa_engine import Metadata, attention


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
):
    seen = Metadata(indices, topk_length)
    o, lse = attention(q.squeeze(1), k_cache.squeeze(2), seen, "fp8_ds_mla", None, attn_sink, softmax_scale)
    out.copy_(o.unsqueeze(1).to(out.dtype))
    return out, torch.where(lse.isinf(), -lse, lse).float().unsqueeze(-1)


class DeepseekV4FlashMLAAttention(nn.Module):
    def __init__(self, layer_idx, pages, sinks, extra=None):
        super().__init__()
        self.layer_idx, self.sinks, self.extra = layer_idx, sinks, extra
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
            extra_k_cache=self.extra,
            out=output.unsqueeze(1),
        )
