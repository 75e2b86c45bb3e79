# SPDX-License-Identifier: Apache-2.0
"""A layer without its projections and convolutions."""

from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from torch import nn


class GatedDeltaNet(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, recurrent=False, **given):
        function = fused_recurrent_gated_delta_rule if recurrent else chunk_gated_delta_rule
        return function(**given)
