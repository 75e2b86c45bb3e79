# SPDX-License-Identifier: Apache-2.0
"""A layer without its projections and convolutions."""

from kda_states import prefill
from torch import nn
from vllm.models.glm5next.nvidia.ops.third_party.kda import (
    chunk_kda_with_fused_gate as chunk_kda_with_fused_gate,
)
from vllm.models.glm5next.nvidia.ops.third_party.kda import fused_recurrent_kda as fused_recurrent_kda


class Glm5NextLinearAttention(nn.Module):
    def __init__(self, prefix, **parameters):
        super().__init__()
        self.prefix = prefix
        self.__dict__.update(parameters)

    def _forward(self, function, **given):
        return function(**given)

    def _flashkda_prefill(
        self,
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        cu_seqlens,
        out,
        checkpoint=None,
        raw_qkv=None,
        conv_state=None,
        recurrent_state=None,
    ):
        gates = (self.A_log, self.dt_bias, self.kda_lower_bound)
        return prefill(q, k, v, g, beta, initial_state, cu_seqlens, initial_state.dtype, gates=gates)
