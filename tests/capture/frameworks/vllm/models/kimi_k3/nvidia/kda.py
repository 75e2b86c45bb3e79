# SPDX-License-Identifier: Apache-2.0
"""A layer without its projections and convolutions, and the backends that its file has."""

from kda_states import prefill
from torch import nn
from vllm.models.kimi_k3.nvidia.ops.recoverssm import kda_recoverssm_verify as kda_recoverssm_verify


def _flashkda_prefill(
    q,
    k,
    v,
    g,
    beta,
    A_log,
    dt_bias,
    lower_bound,
    initial_state,
    cu_seqlens,
    out,
    final_state,
    workspace,
    checkpoint_state=None,
    checkpoint_offsets=None,
):
    gates = (A_log, dt_bias, lower_bound)
    o, states = prefill(q, k, v, g, beta, initial_state, cu_seqlens, final_state.dtype, gates=gates)
    out.copy_(o)
    final_state.copy_(states)
    return out, final_state


def _flashinfer_kda_prefill(
    q,
    k,
    v,
    raw_g,
    raw_beta,
    A_log,
    dt_bias,
    lower_bound,
    initial_state,
    cu_seqlens,
    out,
    seq_order=None,
    prefill_workspace=None,
):
    gates = (A_log, dt_bias, lower_bound)
    o, states = prefill(q, k, v, raw_g, raw_beta, initial_state, cu_seqlens, initial_state.dtype, gates=gates)
    out.copy_(o)
    initial_state.copy_(states)
    return out, initial_state


class KimiK3DeltaAttention(nn.Module):
    def __init__(self, prefix, **parameters):
        super().__init__()
        self.prefix = prefix
        self.__dict__.update(parameters)

    def _forward(self, function, **given):
        return function(**given)
