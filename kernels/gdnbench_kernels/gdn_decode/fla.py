"""The kernel named `fla` of gdn_decode: flash-linear-attention's fused_recurrent_gated_delta_rule.

The function has no pool: it reads one state per sequence and returns new states in fp32. A launch is that
call on states gathered before it, in the pool's dtype. Not part of a launch, hence not timed:

    the gather of the states from their slots    reads and writes every state once
    the scatter of the new ones, rounded         the same

A serving engine that uses this function also pays for both, unless its own kernel avoids them. Padding
sequences are left out of the launch. The function allocates states and outputs in the launch.
"""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    call_kind,
    contiguous_aligned,
    fla_module,
    warmed_up,
)
from gdnbench_kernels.state_slots import PADDING, plan_slots

takes_call = takes_params(DecodeParams, without=("num_accepted", "state_layout"))


def _bind(params: DecodeParams) -> PeerLaunch:
    """The arguments of flash-linear-attention for a call of the contract whose pool is [slots, Hv, K, V]."""
    q, v, state = params.q, params.v, params.state
    if q.shape[1] != 1:
        raise NotImplementedError(
            "flash-linear-attention's decode returns one state a sequence, not one a token;"
            f" the call has S = {q.shape[1]}"
        )
    function = fla_module("ops.gated_delta_rule").fused_recurrent_gated_delta_rule
    # With one token per sequence num_accepted can only be 1.
    plan = plan_slots(params.state_indices, None, params.read_indices)
    if not len(plan.active):
        raise NotImplementedError("flash-linear-attention launches nothing where every sequence is padding")
    every = len(plan.active) == len(q)
    inputs = {"q": q, "k": params.k, "v": v, "g": params.g, "beta": params.beta}
    given: dict[str, Any] = {
        name: contiguous_aligned(x if every else x[plan.active]) for name, x in inputs.items()
    }
    if params.gate == "raw" and "use_gate_in_kernel" not in signature(function).parameters:
        raise NotImplementedError("flash-linear-attention before 0.5 takes gates in log space, not raw ones")
    if params.gate == "raw":
        given |= {"use_gate_in_kernel": True, "A_log": params.A_log, "dt_bias": params.dt_bias}
        given |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": params.beta_max == 2}
    call = partial(
        function,
        **given,
        scale=params.scale,
        initial_state=state[plan.read],
        output_final_state=True,
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )

    def finish(result: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        out, final = result
        o = torch.full_like(v, torch.nan)
        o[plan.active] = out
        slots = plan.write[:, 0]
        kept = slots != PADDING
        state[slots[kept]] = final[kept].to(state.dtype)
        return {"o": o}

    return PeerLaunch(call, finish)


@takes_call
def fla(params: DecodeParams) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, K, V] in place and return o [B, 1, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that flash-linear-attention does not take, ImportError if it is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: DecodeParams) -> Launch:
    """A launch of the call, compiled. It does not change the pool until its outputs are read."""
    return warmed_up(_bind(params), once=call_kind("fla", by_name(params)))
