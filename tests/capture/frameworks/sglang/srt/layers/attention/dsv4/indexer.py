# SPDX-License-Identifier: Apache-2.0
"""SGLang's own scores and top-k in PyTorch, and the step of its indexer."""

from sglang.kernels.ops.attention.dsv4 import topk_transform_paged, topk_transform_paged_v2

from tests.capture.indexer_engine import paged_scores


def fp8_paged_mqa_logits_torch(
    q_fp8, kvcache_fp8, weight, seq_lens, page_table, deep_gemm_metadata, max_seq_len, clean_logits=True
):
    assert clean_logits is False
    return paged_scores(q_fp8, kvcache_fp8, weight, seq_lens, page_table, max_seq_len, 0.0)


def fp8_paged_mqa_logits_torch_sm120(
    q_fp8, kvcache_fp8, weight, seq_lens, page_table, deep_gemm_metadata, max_seq_len, clean_logits=True
):
    assert clean_logits is False
    return paged_scores(q_fp8, kvcache_fp8, weight, seq_lens, page_table, max_seq_len, float("-inf"))


def topk_transform_pytorch_vectorized(
    scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices=None
):
    topk_transform_paged(scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices)


def topk_transform_paged_bf16(logits, seq_lens, page_table, out_page_indices, page_size):
    topk_transform_paged(logits, seq_lens, page_table, out_page_indices, page_size)


class C4IndexerBackend:
    """What the backend of a step does for an indexer: `how` chooses the functions."""

    def __init__(self, step, how, entries, raw=None):
        self.step, self.how, self.entries, self.raw = step, how, entries, raw

    def forward(self, q):
        step, how = self.step, self.how
        weights = step.weights
        if how == "deep_gemm":
            from deep_gemm import fp8_paged_mqa_logits as scores
        else:
            scores = {"torch": fp8_paged_mqa_logits_torch, "torch sm120": fp8_paged_mqa_logits_torch_sm120}[
                how
            ]
        lens = step.lens.unsqueeze(-1) if how == "deep_gemm" else step.lens
        logits = scores(
            q.unsqueeze(1), step.pages, weights, lens, step.page_table, None, step.max_seq_len, False
        )
        out = logits.new_zeros((len(q), self.entries)).int()
        size = step.pages.shape[1]
        if how == "deep_gemm":
            topk_transform_paged_v2(logits, step.lens, step.page_table, out, size, None, self.raw)
        elif how == "torch":
            topk_transform_pytorch_vectorized(logits, step.lens, step.page_table, out, size, self.raw)
        else:
            topk_transform_paged_bf16(logits.bfloat16(), step.lens, step.page_table, out, size)
        return logits, out
