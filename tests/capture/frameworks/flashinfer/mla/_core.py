"""Sparse attention of DeepSeek-V4 by its documentation, row by row. Signatures are those of 0.7.2.post1."""

import torch

from tests.capture.swa_engine import Metadata, attention


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
    q = query.reshape(-1, *query.shape[-2:])
    pages = swa_kv_cache.squeeze(1 if kv_layout == "HND" else 2) if swa_kv_cache.ndim == 4 else swa_kv_cache
    if pages.shape[-1] == 584:
        seen = Metadata(sparse_indices, swa_topk_lens)
        o, _ = attention(q, pages, seen, "fp8_ds_mla", None, sinks, bmm1_scale)
    else:
        rows = _rows(pages, sparse_indices, sparse_indices_are_storage_offsets)
        lengths = _lengths(query, seq_lens, cum_seq_lens_q, len(q))
        o = torch.zeros(q.shape, dtype=torch.float64)
        for t, length in enumerate(lengths):
            if length > 0:
                weights = (bmm1_scale * q[t].double() @ rows[t, :length].T).exp()
                o[t] = weights @ rows[t, :length] / (weights.sum(1) + sinks.double().exp())[:, None]
    if dsv4_inv_rope_cos_sin_cache is not None:
        return o.to(torch.float8_e4m3fn), dsv4_output_scale
    found = o.bfloat16().view(query.shape)
    if out is None:
        return found
    out.copy_(found)
    return out


def _rows(pages, indices, storage):
    """[T, 128, 512] in fp64; row 0 for indices below 0."""
    indices = indices[:, :128].clamp(min=0).long()
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
