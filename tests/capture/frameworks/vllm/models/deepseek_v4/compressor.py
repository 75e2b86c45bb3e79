# SPDX-License-Identifier: Apache-2.0
"""A compressor's step: states of single tokens, then entries of the windows that close."""

from types import SimpleNamespace

import torch
from torch import nn
from vllm.forward_context import get_forward_context


class DeepseekCompressor(nn.Module):
    def __init__(self, head_dim, compress_ratio, state, prefix):
        super().__init__()
        self.head_dim, self.compress_ratio, self.overlap = head_dim, compress_ratio, compress_ratio == 4
        width = head_dim * (2 if self.overlap else 1)
        generator = torch.Generator().manual_seed(width)
        self.ape = nn.Parameter(torch.randn(compress_ratio, width, generator=generator), requires_grad=False)
        self.state_cache = SimpleNamespace(prefix=f"{prefix}.state_cache", kv_cache=state)
        self.k_cache_prefix = prefix
        self.entries = {}  # by slot of the first token of the window

    def forward(self, kv_score, positions, rotary_emb):
        metadata = get_forward_context().attn_metadata
        if not isinstance(metadata, dict):
            return
        step, state = metadata[self.state_cache.prefix], self.state_cache.kv_cache
        size, width = step.block_size, kv_score.shape[1] // 2
        for token, slot in enumerate(step.slot_mapping.tolist()):
            if slot < 0:
                continue
            place = int(positions[token]) % self.compress_ratio
            state[slot // size, slot % size, :width] = kv_score[token, :width]
            state[slot // size, slot % size, width:] = kv_score[token, width:].float() + self.ape[place]
        for token, slot in enumerate(step.slot_mapping.tolist()):
            position = int(positions[token])
            if slot < 0 or (position + 1) % self.compress_ratio:
                continue
            table = step.block_table[int(step.token_to_req_indices[token])]
            self.entries[slot] = self._entry(state, table, position, size, width)

    def _entry(self, state, table, position, size, width):
        count = self.compress_ratio * (2 if self.overlap else 1)
        values, weights = [], []
        for slot in range(count):
            at = position - count + 1 + slot
            if at < 0:
                continue
            row = state[int(table[at // size]), at % size].double()
            first = 0 if not self.overlap or slot < self.compress_ratio else self.head_dim
            values.append(row[first : first + self.head_dim])
            weights.append(row[width + first : width + first + self.head_dim].exp())
        weights = torch.stack(weights)
        return (torch.stack(values) * weights).sum(0) / weights.sum(0)
