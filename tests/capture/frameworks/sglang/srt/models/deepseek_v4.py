# SPDX-License-Identifier: Apache-2.0
"""A layer that calls the backend of the running step, and the backend."""

import functools

import torch
from sglang.kernels.ops.attention import flash_mla_interface
from sglang.srt.model_executor.forward_context import get_attn_backend
from torch import nn


class Backend:
    def __init__(self, pages, sinks, forward_metadata, use_legacy=True, extra=None, older=False, sm=None):
        """`extra`: pages of compressed keys, their indices [T, E] and lengths [T]."""
        self.pages, self.sinks, self.forward_metadata = pages, sinks, forward_metadata
        self.extra = extra or (None, None, None)
        self.older = older  # than 0.5.23
        self.sm = sm
        self._flash_mla_with_kvcache = functools.partial(
            flash_mla_interface.flash_mla_with_kvcache, use_legacy=use_legacy
        )

    def forward(self, q):
        core = self.forward_metadata.core_attn_metadata
        extra, extra_indices, extra_lengths = self.extra
        if extra is not None:
            extra, extra_indices = extra.unsqueeze(2), extra_indices.unsqueeze(1)
        if self.sm == 120:
            from sglang.kernels.ops.attention.flash_mla_sm120 import flash_mla_with_kvcache_sm120

            return flash_mla_with_kvcache_sm120(
                q=q.unsqueeze(1),
                k_cache=self.pages.unsqueeze(2),
                head_dim_v=512,
                softmax_scale=512**-0.5,
                indices=core.swa_page_indices.unsqueeze(1),
                topk_length=core.swa_topk_lengths,
                attn_sink=self.sinks,
                extra_k_cache=extra,
                extra_indices_in_kvcache=extra_indices,
                extra_topk_length=extra_lengths,
            )[0].squeeze(1)
        if self.sm == 100:
            from sglang.kernels.ops.attention.dsv4.decode_attention_sm100 import swapab_attention

            padded = torch.cat([self.sinks, torch.zeros(2)])
            indices = core.swa_page_indices.unsqueeze(1)
            pages = self.pages.unsqueeze(2)
            return swapab_attention(
                q.unsqueeze(1),
                pages,
                indices,
                core.swa_topk_lengths,
                padded,
                extra,
                extra_indices,
                extra_lengths,
            )
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
            extra_k_cache=extra,
            extra_indices_in_kvcache=extra_indices,
            extra_topk_length=extra_lengths,
        )[0].squeeze(1)


class MQALayer(nn.Module):
    def __init__(self, layer_id):
        super().__init__()
        self.layer_id = layer_id

    def forward(self, x):
        return get_attn_backend().forward(x)
