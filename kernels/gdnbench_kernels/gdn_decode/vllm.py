"""The kernel named `vllm` of gdn_decode: vLLM's Triton kernels, by the function that vLLM has for a call.

    raw gates, one token a sequence        fused_recurrent_gated_delta_rule_packed_decode
    raw gates, drafted tokens              fused_sigmoid_gating_delta_rule_update
    gates in log space                     fused_recurrent_gated_delta_rule

A launch is that call, on the pool in place. For vLLM slot 0 is no slot: a sequence that has it is padding.
Where a call has a state in slot 0, the states that it names are gathered before the launch into a pool whose
slot 0 is empty, and scattered back after it. Before the launch this module also makes padding slot 0, and
concatenates q, k and v for the first function, which takes them as the convolution leaves them.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_decode.vllm import PoolWithoutSlot0
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    call_kind,
    contiguous_aligned,
    vllm_call,
    vllm_module,
    warmed_up,
)
from gdnbench_kernels.state_slots import SlotPlan, plan_slots

NAME = "vLLM's decode"
OPS = "third_party.flash_linear_attention.ops"

takes_call = takes_params(DecodeParams, without=("state_layout",))


def _bind(params: DecodeParams) -> PeerLaunch:
    """The arguments of vLLM for a call of the contract whose pool is [slots, Hv, V, K]."""
    plan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
    _refuse(params, plan)
    slots = PoolWithoutSlot0(params, plan)
    call = (
        _packed_decode(params, slots.pool, slots.indices)
        if _is_packed(params)
        else _recurrent(params, slots.pool, slots.indices)
    )
    return PeerLaunch(partial(vllm_call, call), lambda result: slots.finish(result[0]))


def _is_packed(params: DecodeParams) -> bool:
    return params.gate == "raw" and params.q.shape[1] == 1


def _packed_decode(params: DecodeParams, pool: Tensor, indices: Tensor) -> partial[Any]:
    v = params.v
    return partial(
        vllm_module(f"{OPS}.fused_recurrent").fused_recurrent_gated_delta_rule_packed_decode,
        mixed_qkv=torch.cat([x.flatten(1) for x in (params.q, params.k, v)], 1),
        a=contiguous_aligned(params.g[:, 0]),
        b=contiguous_aligned(params.beta[:, 0]),
        A_log=params.A_log,
        dt_bias=params.dt_bias,
        scale=default_scale(params.scale, params.q.shape[-1]),
        initial_state=pool,
        out=torch.empty_like(v, memory_format=torch.contiguous_format),
        ssm_state_indices=indices[:, 0].contiguous(),
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )


def _recurrent(params: DecodeParams, pool: Tensor, indices: Tensor) -> partial[Any]:
    """Sequences one after another, [1, B*S, ...] with cu_seqlens, as vLLM lays them out."""
    batch, tokens = params.q.shape[:2]
    inputs = {name: getattr(params, name) for name in ("q", "k", "v", "g", "beta")}
    given: dict[str, Any] = {
        name: contiguous_aligned(x.flatten(0, 1)).unsqueeze(0) for name, x in inputs.items()
    }
    raw = params.gate == "raw"
    if raw:
        given = {"a": given.pop("g"), "b": given.pop("beta"), **given}
        given |= {"A_log": params.A_log, "dt_bias": params.dt_bias}
        function = vllm_module(f"{OPS}.fused_sigmoid_gating").fused_sigmoid_gating_delta_rule_update
    else:
        function = vllm_module(f"{OPS}.fused_recurrent").fused_recurrent_gated_delta_rule
    return partial(
        function,
        **given,
        scale=params.scale,
        initial_state=pool,
        inplace_final_state=True,
        cu_seqlens=torch.arange(batch + 1, dtype=torch.int32, device=pool.device) * tokens,
        ssm_state_indices=indices,
        num_accepted_tokens=params.num_accepted,
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )


def _refuse(params: DecodeParams, plan: SlotPlan) -> None:
    """Raises NotImplementedError for a call that vLLM's decode kernels do not take."""
    if not len(plan.active):
        raise NotImplementedError(f"{NAME} launches nothing where every sequence is padding")
    if params.read_indices is not None and not torch.equal(plan.read, plan.write[:, 0]):
        raise NotImplementedError(f"{NAME} reads the state from a slot of the sequence's own tokens")
    if params.gate == "raw" and params.beta_max != 1:
        raise NotImplementedError(f"{NAME} computes beta as sigmoid(b), at most 1")


@takes_call
def vllm(params: DecodeParams) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, V, K] in place and return o [B, S, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that vLLM does not take, ImportError if it is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: DecodeParams) -> Launch:
    """A launch of the call, compiled."""
    plan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
    return warmed_up(_bind(params), params.state, plan.touched, once=call_kind("vllm", by_name(params)))
