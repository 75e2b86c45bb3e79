"""The kernel named `vllm` of kda_decode: vLLM's fused_recurrent_kda_fwd for Kimi K3, a Triton kernel.

A launch is that call, on the pool in place, the sequences one after another with cu_seqlens. For vLLM slot 0
is no slot: see `PoolWithoutSlot0`. Before the launch this module also makes padding slot 0. On devices of
compute capability 10.x vLLM serves one token a sequence by a kernel in CUDA C++, which is none of these.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_decode.vllm import PoolWithoutSlot0
from gdnbench_kernels.kda_decode.params import KdaDecodeParams
from gdnbench_kernels.kda_peers import bias, rate, refuse_engine
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

NAME = "vLLM's KDA decode"
RECURRENT = "models.kimi_k3.nvidia.ops.third_party.kda.fused_recurrent"

takes_call = takes_params(KdaDecodeParams, without=("state_layout",))


def _bind(params: KdaDecodeParams) -> PeerLaunch:
    """The arguments of vLLM for a call of the contract whose pool is [slots, Hv, V, K]."""
    plan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
    _refuse(params, plan)
    slots = PoolWithoutSlot0(params, plan)
    batch, tokens = params.q.shape[:2]
    inputs = {name: getattr(params, name) for name in ("q", "k", "v", "g", "beta")}
    gates: dict[str, Any] = {"use_beta_sigmoid_in_kernel": params.beta_form == "logit"}
    if params.gate != "log":
        gates |= {"use_gate_in_kernel": True, "A_log": rate(params), "dt_bias": bias(params)}
        gates |= {"lower_bound": params.lower_bound}
    call = partial(
        vllm_module(RECURRENT).fused_recurrent_kda_fwd,
        **{name: contiguous_aligned(x.flatten(0, 1)).unsqueeze(0) for name, x in inputs.items()},
        **gates,
        scale=params.scale,
        initial_state=slots.pool,
        inplace_final_state=True,
        cu_seqlens=torch.arange(batch + 1, dtype=torch.int32, device=slots.pool.device) * tokens,
        ssm_state_indices=slots.indices,
        num_accepted_tokens=params.num_accepted,
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )
    return PeerLaunch(partial(vllm_call, call), lambda result: slots.finish(result[0]))


def _refuse(params: KdaDecodeParams, plan: SlotPlan) -> None:
    """Raises NotImplementedError for a call that vLLM's function does not take."""
    refuse_engine(params, NAME)
    if not len(plan.active):
        raise NotImplementedError(f"{NAME} launches nothing where every sequence is padding")
    if params.read_indices is not None and not torch.equal(plan.read, plan.write[:, 0]):
        raise NotImplementedError(f"{NAME} reads the state from a slot of the sequence's own tokens")


@takes_call
def vllm(params: KdaDecodeParams) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, V, K] in place and return o [B, S, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that vLLM does not take, ImportError if it is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: KdaDecodeParams) -> Launch:
    """A launch of the call, compiled."""
    plan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
    return warmed_up(_bind(params), params.state, plan.touched, once=call_kind("vllm", by_name(params)))
