"""A layer that calls the backend of the running step, and the backend."""

import functools

from sglang.kernels.ops.attention import flash_mla_interface
from sglang.srt.model_executor.forward_context import get_attn_backend
from torch import nn


class Backend:
    def __init__(self, pages, sinks, forward_metadata, use_legacy=True, extra=None, older=False):
        self.pages, self.sinks, self.extra, self.forward_metadata = pages, sinks, extra, forward_metadata
        self.older = older  # than 0.5.23
        self._flash_mla_with_kvcache = functools.partial(
            flash_mla_interface.flash_mla_with_kvcache, use_legacy=use_legacy
        )

    def forward(self, q):
        core = self.forward_metadata.core_attn_metadata
        flash_mla_with_kvcache = self._flash_mla_with_kvcache
        if self.older:
            from sgl_kernel.flash_mla import flash_mla_with_kvcache

        return flash_mla_with_kvcache(
            q=q.unsqueeze(1),
            k_cache=self.pages.unsqueeze(2),
            head_dim_v=512,
            block_table=None,
            cache_seqlens=None,
            tile_scheduler_metadata=None,
            softmax_scale=512**-0.5,
            is_fp8_kvcache=True,
            indices=core.swa_page_indices.unsqueeze(1),
            topk_length=core.swa_topk_lengths,
            attn_sink=self.sinks,
            extra_k_cache=self.extra,
        )[0].squeeze(1)


class MQALayer(nn.Module):
    def __init__(self, layer_id):
        super().__init__()
        self.layer_id = layer_id

    def forward(self, x):
        return get_attn_backend().forward(x)
