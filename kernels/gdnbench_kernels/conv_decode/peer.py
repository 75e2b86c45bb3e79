"""The kernels named `vllm` and `sglang` of conv_decode: each package's causal_conv1d_update, in Triton.

    call                                  x of the function
    a token of each sequence              [N, D]
    several, the same number of each      [N, D, S]
    the windows of all drafts             vLLM: packed [T, D] with query_start_loc; SGLang: [N, D, S]

A launch is that call, on the pool in place; see `conv_peers` for slot 0 of vLLM.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.conv import PADDING
from gdnbench_kernels.conv_decode.params import ConvDecodeParams
from gdnbench_kernels.conv_decode.windows import DecodePlan, plan_windows
from gdnbench_kernels.conv_peers import activation_of, check_taps, even_tokens, owed, pool_of_launch
from gdnbench_kernels.conv_prefill.peer import SGLANG, VLLM
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    call_kind,
    contiguous_aligned,
    sglang_call,
    sglang_function,
    takes_argument,
    vllm_call,
    vllm_module,
    warmed_up,
)

takes_call = takes_params(ConvDecodeParams)


def _bind(peer: str, params: ConvDecodeParams) -> tuple[PeerLaunch, Tensor]:
    """A launch, and the slots that it writes."""
    x, weight, pool = params.x, params.weight, params.conv_state
    check_taps(peer, weight)
    plan = plan_windows(params.cu_seqlens, params.state_indices, params.num_accepted, params.read_indices)
    _refuse(peer, params, plan)
    slots = params.state_indices[:, 0]
    given = pool_of_launch(pool, slots, plan.active, plan.touched, null=0 if peer == "vLLM" else -1)
    function: Any = (
        vllm_module(VLLM).causal_conv1d_update
        if peer == "vLLM"
        else sglang_function("causal_conv1d_update", *SGLANG)
    )
    rows, more = _inputs(peer, params, plan)
    if takes_argument(function, "out"):
        more["out"] = torch.empty_like(rows)
    else:
        rows = rows.clone()  # vLLM before 0.33 writes y there
    call = partial(
        function,
        rows,
        given.states,
        contiguous_aligned(weight),
        params.bias,
        activation_of(params.activation),
        conv_state_indices=given.indices,
        **more,
    )

    def finish(result: Tensor) -> dict[str, Tensor]:
        given.scatter()
        packed = result.transpose(1, 2).flatten(0, 1) if result.ndim == 3 else result
        return {"y": owed(packed, plan.bounds, plan.active)}

    run = partial(vllm_call if peer == "vLLM" else sglang_call, call)
    return PeerLaunch(run, finish), torch.tensor(plan.touched, device=x.device)


def _inputs(peer: str, params: ConvDecodeParams, plan: DecodePlan) -> tuple[Tensor, dict[str, Any]]:
    """x as the function takes it, and the arguments that go with it."""
    x, accepted = contiguous_aligned(params.x), params.num_accepted
    if plan.rolling and peer == "vLLM":
        most = params.conv_state.shape[2] - (params.weight.shape[1] - 1) + 1
        bounds = params.cu_seqlens.int()
        return x, {"num_accepted_tokens": accepted, "query_start_loc": bounds, "max_query_len": most}
    steps = even_tokens(peer, plan.bounds, len(x))
    rows = x if steps == 1 else x.view(len(plan.bounds), steps, -1).transpose(1, 2)
    return rows, {"num_accept_tokens": accepted} if plan.rolling else {}


def _refuse(peer: str, params: ConvDecodeParams, plan: DecodePlan) -> None:
    """Raises NotImplementedError for a call that the package's function does not take."""
    if not plan.active:
        raise NotImplementedError(f"{peer}'s convolution launches nothing where every sequence is padding")
    if params.state_indices.shape[1] != 1:
        raise NotImplementedError(f"{peer}'s convolution keeps the windows of all drafts in one slot")
    if params.read_indices is not None and not torch.equal(
        params.read_indices, params.state_indices[:, 0].int()
    ):
        raise NotImplementedError(f"{peer}'s convolution reads the slot that it writes")
    if any(one.slot == PADDING for windows in plan.write for one in windows):
        raise NotImplementedError(f"{peer}'s convolution writes the slot that it reads")


@takes_call
def vllm(params: ConvDecodeParams) -> dict[str, Tensor]:
    """Update `conv_state` in place and return y [T, D], NaN where no active sequence has tokens. Raises
    NotImplementedError for a call that vLLM does not take, ImportError if it is missing."""
    return dict(_bind("vLLM", params)[0]())


@takes_call
def prepare_vllm(params: ConvDecodeParams) -> Launch:
    """A launch of the call, compiled."""
    launch, slots = _bind("vLLM", params)
    return warmed_up(launch, params.conv_state, slots, once=call_kind("vllm conv", by_name(params)))


@takes_call
def sglang(params: ConvDecodeParams) -> dict[str, Tensor]:
    """As `vllm`, by SGLang's function."""
    return dict(_bind("SGLang", params)[0]())


@takes_call
def prepare_sglang(params: ConvDecodeParams) -> Launch:
    """A launch of the call, compiled."""
    launch, slots = _bind("SGLang", params)
    return warmed_up(launch, params.conv_state, slots, once=call_kind("sglang conv", by_name(params)))
