# SPDX-License-Identifier: Apache-2.0
"""A layer without its projections and convolutions."""

from fla.ops.kda import chunk_kda, fused_recurrent_kda
from torch import nn


class KimiDeltaAttention(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, recurrent=False, **given):
        function = fused_recurrent_kda if recurrent else chunk_kda
        return function(**given)
