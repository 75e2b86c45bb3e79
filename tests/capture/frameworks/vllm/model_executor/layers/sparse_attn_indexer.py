# SPDX-License-Identifier: Apache-2.0
"""An indexer over its own cache: scores, then top-k, for decoding or for a prefill."""

import torch
from vllm import _custom_ops as ops
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.indexer_topk import SparseIndexerTopk
from vllm.utils.deep_gemm import fp8_fp4_mqa_logits, fp8_fp4_paged_mqa_logits


class SparseAttnIndexer(torch.nn.Module):
    def __init__(self, k_cache, topk_tokens, max_model_len, topk_indices_buffer):
        super().__init__()
        self.k_cache, self.topk_tokens, self.max_model_len = k_cache, topk_tokens, max_model_len
        self.topk_indices_buffer, self.topk = topk_indices_buffer, SparseIndexerTopk()

    def forward(self, q, weights, q_scale=None):
        return self.forward_cuda(q, weights, q_scale)

    def forward_cuda(self, q, weights, q_scale):
        step = get_forward_context().attn_metadata[self.k_cache.prefix]
        if step.prefill is not None:
            starts, ends, kv = step.prefill
            logits = fp8_fp4_mqa_logits((q, q_scale), kv, weights, starts, ends, step.max_seq_len)
            lens = ends - starts
            indices = self.topk_indices_buffer[: len(q), : self.topk_tokens]
            ops.top_k_per_row_prefill(
                logits,
                torch.zeros_like(lens),
                lens,
                indices,
                len(logits),
                *logits.stride(),
                self.topk_tokens,
            )
            return logits, indices
        decode = step.decode
        logits = fp8_fp4_paged_mqa_logits(
            (q, q_scale),
            self.k_cache.kv_cache.unsqueeze(-2),
            weights,
            decode.seq_lens,
            decode.block_table,
            None,
            max_model_len=self.max_model_len,
            indices=decode.indices,
        )
        indices = self.topk_indices_buffer[: len(logits), : self.topk_tokens]
        self.topk(logits, decode.seq_lens, q.shape[1], indices, self.topk_tokens, step.max_seq_len)
        return logits, indices
