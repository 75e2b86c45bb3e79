# SPDX-License-Identifier: Apache-2.0
"""A layer whose kernel rotates queries and outputs. What it computes does not matter."""

from torch import nn
from vllm.forward_context import get_forward_context


class DeepseekV4MegaAttnAttention(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx

    def forward_mqa(self, q, kv, positions, output):
        if get_forward_context().attn_metadata is None:
            output.zero_()
            return
        self._forward_decode_mega(q, output)

    def _forward_decode_mega(self, q, out):
        out.copy_(-q)
