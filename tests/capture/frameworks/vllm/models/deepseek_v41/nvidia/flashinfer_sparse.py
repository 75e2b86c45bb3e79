# SPDX-License-Identifier: Apache-2.0
"""A layer that calls FlashInfer over plain pages, as vLLM does on SM100."""

from flashinfer.decode import trtllm_batch_decode_sparse_mla_dsv4
from torch import nn


class DeepseekV4FlashInferMLAAttention(nn.Module):
    def __init__(self, layer_idx, given):
        super().__init__()
        self.layer_idx, self.given = layer_idx, given

    def forward_mqa(self, q, kv, positions, output):
        trtllm_batch_decode_sparse_mla_dsv4(query=q, out=output, **self.given)
