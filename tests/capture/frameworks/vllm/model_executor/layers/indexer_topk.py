# SPDX-License-Identifier: Apache-2.0
"""The top-k of decoding."""

import torch

from tests.capture.indexer_engine import select


class SparseIndexerTopk(torch.nn.Module):
    def forward(self, logits, seq_lens, next_n, topk_indices, topk_tokens, max_seq_len):
        ends = seq_lens.reshape(-1).tolist()
        if len(ends) != len(logits):
            ends = [end - next_n + 1 + query for end in ends for query in range(next_n)]
        topk_indices.copy_(select(logits, [0] * len(ends), ends, topk_tokens))
