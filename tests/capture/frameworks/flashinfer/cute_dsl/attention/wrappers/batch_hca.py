# SPDX-License-Identifier: Apache-2.0
"""Decode attention over a window and all compressed positions, as documented. Signature of 0.7.2.post1."""

import torch

from tests.capture.swa_engine import Pages, attention_over


def cute_dsl_hca_decode(
    query,
    window_kv_cache,
    compressed_kv_cache,
    workspace_buffer,
    window_indices,
    compressed_block_tables,
    hca_seq_lens,
    sparse_topk_lens,
    window_valid_lens,
    softmax_scale,
    output_scale=1.0,
    sinks=None,
    out=None,
    is_causal=True,
    is_persistent=False,
):
    size = compressed_kv_cache.shape[1]
    slots = (compressed_block_tables.unsqueeze(2) * size + torch.arange(size)).flatten(1)
    segments = [
        Pages(_wide(window_kv_cache.unsqueeze(1)), window_indices, window_valid_lens, "bfloat16"),
        Pages(_wide(compressed_kv_cache), slots, sparse_topk_lens - 128, "bfloat16"),
    ]
    o, _ = attention_over(query.flatten(0, 1).float(), segments, sinks, softmax_scale)
    found = (o * output_scale).bfloat16().view(query.shape)
    return found if out is None else out.copy_(found)


def _wide(cache):
    return cache.float()  # e4m3 has no indexing
