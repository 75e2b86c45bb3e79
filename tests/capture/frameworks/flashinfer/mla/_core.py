# SPDX-License-Identifier: Apache-2.0
"""Sparse attention of DeepSeek-V4 by its documentation, row by row. Signatures are those of 0.7.2.post1."""

from types import SimpleNamespace

import torch

from tests.capture.swa_engine import Pages, attention_over


def trtllm_batch_decode_sparse_mla_dsv4(
    query,
    swa_kv_cache,
    workspace_buffer,
    sparse_indices=None,
    compressed_kv_cache=None,
    sparse_topk_lens=None,
    seq_lens=None,
    out=None,
    bmm1_scale=1.0,
    bmm2_scale=1.0,
    sinks=None,
    kv_layout="HND",
    cum_seq_lens_q=None,
    max_q_len=None,
    enable_pdl=None,
    swa_topk_lens=None,
    extra_sparse_indices=None,
    extra_sparse_topk_lens=None,
    backend="auto",
    hca_swa_indices=None,
    hca_compressed_block_tables=None,
    hca_seq_lens=None,
    hca_is_causal=True,
    hca_use_persistent=False,
    hca_sparse_indices_format=None,
    remapped_sparse_indices_buffer=None,
    sparse_indices_are_storage_offsets=None,
    dsv4_inv_rope_cos_sin_cache=None,
    dsv4_output_scale=None,
    sparse_topk_lens_offset=0,
    multi_ctas_kv_counter_buffer=None,
    *,
    kv_cache_format="fp8",
):
    if backend == "cute-dsl" and hca_swa_indices is not None:
        from ..cute_dsl.attention.wrappers.batch_hca import cute_dsl_hca_decode

        return cute_dsl_hca_decode(
            query,
            _plain(swa_kv_cache, kv_layout).reshape(-1, 512),
            _plain(compressed_kv_cache, kv_layout),
            workspace_buffer,
            hca_swa_indices,
            hca_compressed_block_tables,
            hca_seq_lens,
            sparse_topk_lens,
            swa_topk_lens,
            bmm1_scale,
            bmm2_scale,
            sinks,
            out,
        )
    o = _attend(SimpleNamespace(**locals()))
    if dsv4_inv_rope_cos_sin_cache is not None:
        return o.to(torch.float8_e4m3fn), dsv4_output_scale
    found = o.bfloat16().view(query.shape)
    if out is None:
        return found
    out.copy_(found)
    return out


def _attend(given):
    """o [T, H, 512] in fp64."""
    q = given.query.reshape(-1, *given.query.shape[-2:])
    pages = _plain(given.swa_kv_cache, given.kv_layout)
    other = None if given.compressed_kv_cache is None else _plain(given.compressed_kv_cache, given.kv_layout)
    if pages.shape[-1] == 584:
        segments = [Pages(pages, given.sparse_indices, given.swa_topk_lens)]
        if given.extra_sparse_indices is not None:
            segments.append(Pages(other, given.extra_sparse_indices, given.extra_sparse_topk_lens))
        o, _ = attention_over(q, segments, given.sinks, given.bmm1_scale)
    else:
        total = (
            given.sparse_topk_lens
            if given.sparse_topk_lens is not None
            else given.extra_sparse_topk_lens + 128
        )
        total = (total + given.sparse_topk_lens_offset).tolist()
        apart = given.extra_sparse_indices is not None
        table = given.extra_sparse_indices if apart else given.sparse_indices[:, 128:]
        rows = _rows(pages, given.sparse_indices[:, :128], given.sparse_indices_are_storage_offsets)
        lengths = _lengths(given.query, given.seq_lens, given.cum_seq_lens_q, len(q))
        o = torch.zeros(q.shape, dtype=torch.float64)
        for t, length in enumerate(lengths):
            found = rows[t, :length][given.sparse_indices[t, :length] >= 0]
            slots = table[t : t + 1, : max(total[t] - 128, 0)]
            slots = slots[:, slots[0] >= 0]
            if slots.numel():
                found = torch.cat([found, _rows(other, slots, given.sparse_indices_are_storage_offsets)[0]])
            if len(found):
                weights = (given.bmm1_scale * q[t].double() @ found.T).exp()
                o[t] = weights @ found / (weights.sum(1) + given.sinks.double().exp())[:, None]
    return o


def _plain(cache, kv_layout):
    """Without the axis of the head."""
    return cache.squeeze(1 if kv_layout == "HND" else 2) if cache.ndim == 4 else cache


def _rows(pages, indices, storage):
    """[T, entries, 512] in fp64; row 0 for indices below 0."""
    indices = indices.clamp(min=0).long()
    if storage:
        token = pages.stride(1)
        place = pages.as_strided((pages.stride(0) // token * len(pages), 512), (token, 1))
        return place.double()[indices] if pages.element_size() > 1 else place.float().double()[indices]
    return pages[indices // pages.shape[1], indices % pages.shape[1]].double()


def _lengths(query, seq_lens, bounds, rows):
    """min(seq_lens[b] - q_lens[b] + q_idx + 1, 128) of every row."""
    if bounds is None:
        tokens = query.shape[1]
        bounds = torch.arange(len(seq_lens) + 1) * tokens
    found = [0] * rows
    for b, length in enumerate(seq_lens.tolist()):
        first, last = int(bounds[b]), int(bounds[b + 1])
        for i, row in enumerate(range(first, last)):
            found[row] = min(length - (last - first) + i + 1, 128)
    return found
