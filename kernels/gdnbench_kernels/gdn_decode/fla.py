"""The kernel named `fla` of gdn_decode: flash-linear-attention's fused_recurrent_gated_delta_rule, on
gathered states: see `delta_decode.fla`."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_decode.fla import bind_gathered, refuse_drafts
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.peers import PeerLaunch, call_kind, fla_module, warmed_up

takes_call = takes_params(DecodeParams, without=("num_accepted", "state_layout"))


def _bind(params: DecodeParams) -> PeerLaunch:
    """The arguments of flash-linear-attention for a call of the contract whose pool is [slots, Hv, K, V]."""
    refuse_drafts(params)
    function = fla_module("ops.gated_delta_rule").fused_recurrent_gated_delta_rule
    gates: dict[str, Any] = {}
    if params.gate == "raw" and "use_gate_in_kernel" not in signature(function).parameters:
        raise NotImplementedError("flash-linear-attention before 0.5 takes gates in log space, not raw ones")
    if params.gate == "raw":
        gates = {"use_gate_in_kernel": True, "A_log": params.A_log, "dt_bias": params.dt_bias}
        gates |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": params.beta_max == 2}
    return bind_gathered(function, params, gates)


@takes_call
def fla(params: DecodeParams) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, K, V] in place and return o [B, 1, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that flash-linear-attention does not take, ImportError if it is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: DecodeParams) -> Launch:
    """A launch of the call, compiled. It does not change the pool until its outputs are read."""
    return warmed_up(_bind(params), once=call_kind("fla", by_name(params)))
