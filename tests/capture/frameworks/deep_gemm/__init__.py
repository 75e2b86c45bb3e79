# SPDX-License-Identifier: Apache-2.0
"""Scores of an indexer: the first two functions of sgl-deep-gemm 0.2.3.post2, the others of 0.2.5."""

from tests.capture.indexer_engine import packed_scores, paged_scores


def fp8_paged_mqa_logits(
    q,
    kv_cache,
    weights,
    context_lens,
    block_table,
    schedule_meta,
    max_context_len,
    clean_logits=False,
    indices=None,
):
    fill = float("-inf") if clean_logits else 7.0
    if indices is not None:
        block_table = block_table[indices]
    return paged_scores(q, kv_cache, weights, context_lens, block_table, max_context_len, fill)


def fp8_mqa_logits(q, kv, weights, ks, ke, clean_logits=False, max_seqlen_k=0):
    return packed_scores(q, kv, weights, ks, ke, max_seqlen_k)


def fp8_fp4_paged_mqa_logits(
    q, kv_cache, weights, context_lens, block_table, schedule_meta, max_context_len, indices=None
):
    if indices is not None:
        block_table = block_table[indices]
    return paged_scores(q[0], kv_cache, weights, context_lens, block_table, max_context_len)


def fp8_fp4_mqa_logits(
    q, kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, max_seqlen_k, schedule_meta=None
):
    return packed_scores(q[0], kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, max_seqlen_k)
