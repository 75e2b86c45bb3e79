"""The kernels named `sglang` and `sglang_cutedsl` of gdn_decode, by the function that SGLang has for a call.

    sglang           Triton, its backend "triton"
                     raw gates, one token a sequence     fused_recurrent_gated_delta_rule_packed_decode
                     raw gates, drafted tokens           fused_sigmoid_gating_delta_rule_update
                     gates in log space                  fused_recurrent_gated_delta_rule_update
    sglang_cutedsl   CuTe DSL, its backend "cutedsl"
                     raw gates, one token a sequence     cutedsl_fused_sigmoid_gating_delta_rule_update

A launch is that call. With one token a sequence, whose state is read from the slot that it is written to,
the function updates the pool in place. Otherwise it leaves the pool unchanged, as when SGLang verifies
drafts, and stores the state after each token in a buffer [B, S, Hv, V, K]; this module copies the states to
their slots after the launch. States that are too far apart for the function are gathered into another pool
before the launch, and scattered after it. q, k and v are concatenated for the packed function before the
launch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_decode.sglang import VerifiedSlots
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    call_kind,
    contiguous_aligned,
    require_dims,
    require_dtypes,
    sglang_call,
    sglang_function,
    warmed_up,
)
from gdnbench_kernels.state_slots import plan_slots

TRITON = "SGLang's decode"
CUTE_DSL = "SGLang's CuTe DSL decode"
RECURRENT = "kernels.ops.attention.fla.fused_recurrent"
SIGMOID = (
    "kernels.ops.attention.linear.fused_sigmoid_gating_recurrent",  # since 0.5.23
    "kernels.ops.attention.fla.fused_sigmoid_gating_recurrent",
)
CUTE = "kernels.ops.attention.cutedsl_gdn"
SOFTPLUS = {"softplus_beta": 1.0, "softplus_threshold": 20.0}
"""As SGLang calls its functions: softplus(x) is x above 20."""
HEAD_DIM = 128

takes_call = takes_params(DecodeParams, without=("state_layout",))


def _bind(params: DecodeParams) -> PeerLaunch:
    """The arguments of SGLang's Triton functions for a call of the contract whose pool is
    [slots, Hv, V, K]."""
    _refuse_beta(params, TRITON)
    slots = VerifiedSlots(params, packed=params.gate == "raw")
    if params.gate != "raw":
        call = _recurrent(params, slots)
    else:
        call = _packed_decode(params, slots) if slots.in_place else _verify(params, slots)
    return PeerLaunch(partial(sglang_call, call), slots.finish)


def _packed_decode(params: DecodeParams, slots: VerifiedSlots) -> Callable[[], Tensor]:
    v = params.v
    call = partial(
        sglang_function("fused_recurrent_gated_delta_rule_packed_decode", RECURRENT),
        mixed_qkv=torch.cat([x.flatten(1) for x in (params.q, params.k, v)], 1),
        a=contiguous_aligned(params.g[:, 0]),
        b=contiguous_aligned(params.beta[:, 0]),
        A_log=params.A_log,
        dt_bias=params.dt_bias,
        scale=default_scale(params.scale, params.q.shape[-1]),
        initial_state=slots.pool,
        out=torch.empty_like(v, memory_format=torch.contiguous_format),
        ssm_state_indices=slots.read,
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )

    def run() -> Tensor:
        out: Tensor = call()[0]
        return out

    return run


def _verify(params: DecodeParams, slots: VerifiedSlots) -> Callable[[], Tensor]:
    """SGLang's verification of drafts."""
    function = sglang_function("fused_sigmoid_gating_delta_rule_update", *SIGMOID)
    gates = {
        "a": contiguous_aligned(params.g.flatten(0, 1)),
        "b": contiguous_aligned(params.beta.flatten(0, 1)),
        "A_log": params.A_log,
        "dt_bias": params.dt_bias,
    }
    return partial(function, **gates, **SOFTPLUS, **_tokens(params), **_pool(params, slots))


def _recurrent(params: DecodeParams, slots: VerifiedSlots) -> Callable[[], Tensor]:
    function = sglang_function("fused_recurrent_gated_delta_rule_update", RECURRENT)
    gates = {"g": params.g, "beta": params.beta}
    rows = {name: contiguous_aligned(x.flatten(0, 1)).unsqueeze(0) for name, x in gates.items()}
    return partial(function, **rows, **_tokens(params), **_pool(params, slots))


def _tokens(params: DecodeParams) -> dict[str, Tensor]:
    """Sequences one after another, [1, B*S, heads, dim] with cu_seqlens, as SGLang lays them out."""
    batch, tokens = params.q.shape[:2]
    given = {"q": params.q, "k": params.k, "v": params.v}
    offsets = torch.arange(batch + 1, dtype=torch.int32, device=params.q.device) * tokens
    return {"cu_seqlens": offsets} | {
        name: contiguous_aligned(x.flatten(0, 1)).unsqueeze(0) for name, x in given.items()
    }


def _pool(params: DecodeParams, slots: VerifiedSlots) -> dict[str, Any]:
    return {
        "scale": params.scale,
        "initial_state_source": slots.pool,
        "initial_state_indices": slots.read,
        "use_qk_l2norm_in_kernel": params.qk == "raw",
        **slots.verifying(),
    }


def _bind_cutedsl(params: DecodeParams) -> PeerLaunch:
    """The arguments of SGLang's CuTe DSL function for a call of the contract whose pool is
    [slots, Hv, V, K]."""
    _refuse_cutedsl(params)
    slots = VerifiedSlots(params, packed=params.gate == "raw")
    if not slots.in_place:
        raise NotImplementedError(f"{CUTE_DSL} writes a state to the slot that it was read from")
    call = partial(
        sglang_function("cutedsl_fused_sigmoid_gating_delta_rule_update", CUTE),
        a=contiguous_aligned(params.g.flatten(0, 1)),
        b=contiguous_aligned(params.beta.flatten(0, 1)),
        A_log=params.A_log,
        dt_bias=params.dt_bias,
        **SOFTPLUS,
        **_tokens(params),
        initial_state_source=slots.pool,
        initial_state_indices=slots.read,
        use_qk_l2norm_in_kernel=True,
    )
    return PeerLaunch(partial(sglang_call, call), slots.finish)


def _refuse_beta(params: DecodeParams, peer: str) -> None:
    """Raises NotImplementedError for a raw beta of which the functions compute only half."""
    if params.gate == "raw" and params.beta_max != 1:
        raise NotImplementedError(f"{peer} computes beta as sigmoid(b), at most 1")


def _refuse_cutedsl(params: DecodeParams) -> None:
    """Raises NotImplementedError for a call that SGLang's CuTe DSL decode does not take."""
    _refuse_beta(params, CUTE_DSL)
    require_dims(CUTE_DSL, params.k, params.v, HEAD_DIM)
    if params.q.shape[1] != 1:
        raise NotImplementedError(f"{CUTE_DSL} takes one token a sequence, not {params.q.shape[1]}")
    given = {"q, k and v": params.q, "a": params.g, "b": params.beta, "dt_bias": params.dt_bias}
    for name, tensor in given.items():
        require_dtypes(CUTE_DSL, name, tensor, torch.bfloat16)
    require_dtypes(CUTE_DSL, "state", params.state, torch.float32)
    scale = default_scale(None, HEAD_DIM)
    if default_scale(params.scale, HEAD_DIM) != scale:
        raise NotImplementedError(f"{CUTE_DSL} scales by K ** -0.5 = {scale:.4g}, not by {params.scale}")


@takes_call
def sglang(params: DecodeParams) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, V, K] in place and return o [B, S, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that SGLang does not take, ImportError if it is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: DecodeParams) -> Launch:
    """A launch of the call, compiled. With drafted tokens it does not change the pool until its outputs are
    read."""
    return _warmed_up(_bind(params), params, "sglang")


@takes_call
def sglang_cutedsl(params: DecodeParams) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, V, K] in place and return o [B, 1, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that SGLang's CuTe DSL kernel does not take, ImportError if SGLang is
    missing."""
    return dict(_bind_cutedsl(params)())


@takes_call
def prepare_cutedsl(params: DecodeParams) -> Launch:
    """A launch of the call, compiled."""
    return _warmed_up(_bind_cutedsl(params), params, "sglang_cutedsl")


def _warmed_up(launch: PeerLaunch, params: DecodeParams, name: str) -> Launch:
    plan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
    return warmed_up(launch, params.state, plan.touched, once=call_kind(name, by_name(params)))
