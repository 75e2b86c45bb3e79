"""The kernels named `sglang` and `sglang_cutedsl` of kda_decode, by the function that SGLang has for a call.

    sglang           Triton, its backend "triton"
                     one token a sequence                fused_recurrent_kda_packed_decode, which from 8
                                                         sequences on may call a kernel in CUDA C++ instead:
                                                         such a call is unsupported
                     drafted tokens                      fused_sigmoid_gating_delta_rule_update, is_kda
    sglang_cutedsl   CuTe DSL, its backend "cutedsl"
                     one token a sequence                cutedsl_fused_sigmoid_gating_kda_update

All take gates raw, the first two also bounded, and logits of beta. A launch is that call. With drafted
tokens, or a state that is read from another slot than it is written to, the function leaves the pool
unchanged and stores the state after each token in a buffer [B, S, Hv, V, K]; this module copies the states to
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
from gdnbench_kernels.kda_decode.params import KdaDecodeParams
from gdnbench_kernels.kda_peers import bias, rate
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

TRITON = "SGLang's KDA decode"
CUTE_DSL = "SGLang's CuTe DSL KDA decode"
RECURRENT = "kernels.ops.attention.fla.fused_recurrent"
SIGMOID = "kernels.ops.attention.linear.fused_sigmoid_gating_recurrent"
CUTE = "kernels.ops.attention.cutedsl_kda"
SOFTPLUS = {"softplus_beta": 1.0, "softplus_threshold": 20.0}
"""As SGLang calls its functions: softplus(x) is x above 20."""
HEAD_DIM = 128

takes_call = takes_params(KdaDecodeParams, without=("state_layout", "beta_form"))
takes_raw = takes_params(
    KdaDecodeParams, without=("state_layout", "beta_form", "gate", "lower_bound", "qk"), required=("A_log",)
)


def _bind(params: KdaDecodeParams) -> PeerLaunch:
    """The arguments of SGLang's Triton functions for a call of the contract whose pool is
    [slots, Hv, V, K]."""
    _refuse_beta(params, TRITON)
    if params.gate == "log":
        raise NotImplementedError(f"{TRITON} computes the gate from A_log, so it takes none in log space")
    slots = VerifiedSlots(params, packed=True)
    call = _packed_decode(params, slots) if slots.in_place else _verify(params, slots)
    return PeerLaunch(partial(sglang_call, call), slots.finish)


def _packed_decode(params: KdaDecodeParams, slots: VerifiedSlots) -> Callable[[], Tensor]:
    v = params.v
    call = partial(
        sglang_function("fused_recurrent_kda_packed_decode", RECURRENT),
        mixed_qkv=torch.cat([x.flatten(1) for x in (params.q, params.k, v)], 1),
        a=contiguous_aligned(params.g.flatten(1)),
        b=contiguous_aligned(params.beta[:, 0]),
        A_log=rate(params),
        dt_bias=_bias(params),
        scale=default_scale(params.scale, params.q.shape[-1]),
        initial_state=slots.pool,
        out=torch.empty_like(v, memory_format=torch.contiguous_format),
        ssm_state_indices=slots.read,
        use_qk_l2norm_in_kernel=params.qk == "raw",
        lower_bound=params.lower_bound,
    )

    def run() -> Tensor:
        out: Tensor = call()[0]
        return out

    return run


def _verify(params: KdaDecodeParams, slots: VerifiedSlots) -> Callable[[], Tensor]:
    """SGLang's verification of drafts."""
    return partial(
        sglang_function("fused_sigmoid_gating_delta_rule_update", SIGMOID),
        **_tokens(params),
        **SOFTPLUS,
        scale=params.scale,
        initial_state_source=slots.pool,
        initial_state_indices=slots.read,
        use_qk_l2norm_in_kernel=params.qk == "raw",
        is_kda=True,
        lower_bound=params.lower_bound,
        **slots.verifying(),
    )


def _bind_cutedsl(params: KdaDecodeParams) -> PeerLaunch:
    """The arguments of SGLang's CuTe DSL function for a call of the contract whose pool is
    [slots, Hv, V, K]."""
    _refuse_cutedsl(params)
    slots = VerifiedSlots(params, packed=True)
    if not slots.in_place:
        raise NotImplementedError(f"{CUTE_DSL} writes a state to the slot that it was read from")
    call = partial(
        sglang_function("cutedsl_fused_sigmoid_gating_kda_update", CUTE),
        **_tokens(params),
        **SOFTPLUS,
        scale=params.scale,
        initial_state_source=slots.pool,
        initial_state_indices=slots.read,
        use_qk_l2norm_in_kernel=True,
    )
    return PeerLaunch(partial(sglang_call, call), slots.finish)


def _tokens(params: KdaDecodeParams) -> dict[str, Any]:
    """Sequences one after another, [1, B*S, heads, dim] with cu_seqlens, and the gates, as SGLang lays them
    out."""
    batch, tokens = params.q.shape[:2]
    inputs = {"q": params.q, "k": params.k, "v": params.v, "a": params.g, "b": params.beta}
    rows = {name: contiguous_aligned(x.flatten(0, 1)).unsqueeze(0) for name, x in inputs.items()}
    offsets = torch.arange(batch + 1, dtype=torch.int32, device=params.q.device) * tokens
    return {**rows, "A_log": rate(params), "dt_bias": _bias(params), "cu_seqlens": offsets}


def _bias(params: KdaDecodeParams) -> Tensor:
    """dt_bias [Hv * K], which the functions require: zeros in g's dtype where it is absent."""
    found = bias(params)
    if found is not None:
        return found
    count = params.v.shape[2] * params.k.shape[3]
    return torch.zeros(count, dtype=params.g.dtype, device=params.v.device)


def _refuse_beta(params: KdaDecodeParams, peer: str) -> None:
    """Raises NotImplementedError for a beta of which the functions compute only half."""
    if params.beta_max != 1:
        raise NotImplementedError(f"{peer} computes beta as sigmoid(b), at most 1")


def _refuse_cutedsl(params: KdaDecodeParams) -> None:
    """Raises NotImplementedError for a call that SGLang's CuTe DSL decode does not take."""
    _refuse_beta(params, CUTE_DSL)
    require_dims(CUTE_DSL, params.k, params.v, HEAD_DIM)
    if params.q.shape[1] != 1:
        raise NotImplementedError(f"{CUTE_DSL} takes one token a sequence, not {params.q.shape[1]}")
    given = {"q, k and v": params.q, "a": params.g, "b": params.beta, "dt_bias": params.dt_bias}
    for name, tensor in given.items():
        require_dtypes(CUTE_DSL, name, tensor, torch.bfloat16)
    require_dtypes(CUTE_DSL, "state", params.state, torch.float32)


@takes_call
def sglang(params: KdaDecodeParams) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, V, K] in place and return o [B, S, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that SGLang does not take, ImportError if it is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: KdaDecodeParams) -> Launch:
    """A launch of the call, compiled. With drafted tokens it does not change the pool until its outputs are
    read."""
    return _warmed_up(_bind(params), params, "sglang")


@takes_raw
def sglang_cutedsl(params: KdaDecodeParams) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, V, K] in place and return o [B, 1, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that SGLang's CuTe DSL kernel does not take, ImportError if SGLang is
    missing."""
    return dict(_bind_cutedsl(params)())


@takes_raw
def prepare_cutedsl(params: KdaDecodeParams) -> Launch:
    """A launch of the call, compiled."""
    return _warmed_up(_bind_cutedsl(params), params, "sglang_cutedsl")


def _warmed_up(launch: PeerLaunch, params: KdaDecodeParams, name: str) -> Launch:
    plan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
    return warmed_up(launch, params.state, plan.touched, once=call_kind(name, by_name(params)))
