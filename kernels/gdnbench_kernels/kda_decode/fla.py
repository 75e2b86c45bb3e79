"""The kernels named `fla` and `fla_pool` of kda_decode: flash-linear-attention's recurrent kernel.

    fla       fused_recurrent_kda, its public function, on gathered states: see `delta_decode.fla`
    fla_pool  fused_recurrent_kda_fwd, the function below it, on the pool in place; it takes the slots of
              drafted tokens and the number accepted, as vLLM's copy of it is called

A launch is that call. Padding sequences are left out of it. The functions allocate outputs in the launch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_decode.fla import bind_gathered, refuse_drafts
from gdnbench_kernels.kda_decode.params import KdaDecodeParams
from gdnbench_kernels.kda_peers import fla_gates
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.peers import PeerLaunch, call_kind, contiguous_aligned, fla_module, warmed_up
from gdnbench_kernels.state_slots import PADDING, SlotPlan, plan_slots

POOL = "flash-linear-attention's decode on a pool"

takes_one_token = takes_params(KdaDecodeParams, without=("num_accepted",))
takes_call = takes_params(KdaDecodeParams)


def _bind(params: KdaDecodeParams) -> PeerLaunch:
    """The arguments of flash-linear-attention's public function for a call of the contract."""
    refuse_drafts(params)
    function = fla_module("ops.kda").fused_recurrent_kda
    return bind_gathered(function, params, fla_gates(params) | {"state_v_first": params.state_layout == "VK"})


def _bind_pool(params: KdaDecodeParams) -> PeerLaunch:
    """The arguments of the function below it, which updates the pool."""
    v, state = params.v, params.state
    plan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
    _refuse(params, plan)
    function = fla_module("ops.kda.fused_recurrent").fused_recurrent_kda_fwd

    def of_active(x: Tensor) -> Tensor:
        return contiguous_aligned(x if len(plan.active) == len(v) else x[plan.active])

    inputs = {"q": params.q, "k": params.k, "v": v, "g": params.g, "beta": params.beta}
    call = partial(
        function,
        **{name: of_active(x) for name, x in inputs.items()},
        **fla_gates(params),
        initial_state=state,
        scale=params.scale,
        inplace_final_state=True,
        state_v_first=params.state_layout == "VK",
        ssm_state_indices=of_active(params.state_indices),
        num_accepted_tokens=None if params.num_accepted is None else of_active(params.num_accepted),
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )

    def finish(result: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        o = torch.full_like(v, torch.nan)
        o[plan.active] = result[0]
        return {"o": o}

    return PeerLaunch(call, finish)


def _refuse(params: KdaDecodeParams, plan: SlotPlan) -> None:
    """Raises NotImplementedError for a call that the function on a pool does not take."""
    if not len(plan.active):
        raise NotImplementedError("flash-linear-attention launches nothing where every sequence is padding")
    if params.read_indices is not None and not torch.equal(plan.read, plan.write[:, 0]):
        raise NotImplementedError(f"{POOL} reads the state from a slot of the sequence's own tokens")
    if (plan.write == PADDING).any():
        raise NotImplementedError(f"{POOL} writes the state of a token whose slot is -1 before the pool")
    if not params.state[:1].is_contiguous():
        raise NotImplementedError(f"{POOL} takes slots that are contiguous")


@takes_one_token
def fla(params: KdaDecodeParams) -> dict[str, Tensor]:
    """Update `state` in place and return o [B, 1, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that flash-linear-attention does not take, ImportError if it is missing."""
    return dict(_bind(params)())


@takes_one_token
def prepare(params: KdaDecodeParams) -> Launch:
    """A launch of the call, compiled. It does not change the pool until its outputs are read."""
    return warmed_up(_bind(params), once=call_kind("fla", by_name(params)))


@takes_call
def fla_pool(params: KdaDecodeParams) -> dict[str, Tensor]:
    """Update `state` in place and return o [B, S, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that flash-linear-attention does not take, ImportError if it is missing."""
    return dict(_bind_pool(params)())


@takes_call
def prepare_pool(params: KdaDecodeParams) -> Launch:
    """A launch of the call, compiled; the pool is unchanged."""
    plan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
    return warmed_up(
        _bind_pool(params), params.state, plan.touched, once=call_kind("fla_pool", by_name(params))
    )
