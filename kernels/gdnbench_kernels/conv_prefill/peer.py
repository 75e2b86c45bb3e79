"""The kernels named `vllm` and `sglang` of conv_prefill: each package's causal_conv1d_fn, in Triton.

A launch is that call, on the pool in place; see `conv_peers` for slot 0 of vLLM. Without a pool the call has
one of zeros. vLLM's table of programs is made before the launch, as its step metadata is.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.conv_peers import activation_of, check_taps, owed, pool_of_launch, program_table
from gdnbench_kernels.conv_prefill.params import ConvPrefillParams
from gdnbench_kernels.conv_prefill.windows import PrefillPlan, plan_windows
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    call_kind,
    contiguous_aligned,
    sglang_call,
    sglang_function,
    vllm_call,
    vllm_module,
    warmed_up,
)

VLLM = "model_executor.layers.mamba.ops.causal_conv1d"
SGLANG = ("kernels.ops.mamba.causal_conv1d_triton", "srt.layers.attention.mamba.causal_conv1d_triton")

takes_call = takes_params(ConvPrefillParams)


def _bind(peer: str, params: ConvPrefillParams) -> tuple[PeerLaunch, Tensor, Tensor]:
    """A launch, the pool that it updates, and the slots of that pool that it writes."""
    x, weight, pool = params.x, params.weight, params.conv_state
    check_taps(peer, weight)
    plan = plan_windows(
        params.cu_seqlens, None if pool is None else params.state_indices, params.has_initial_state
    )
    if not plan.active:
        raise NotImplementedError(f"{peer}'s convolution launches nothing for no tokens")
    slots, touched = params.state_indices, plan.slots
    if pool is None or slots is None:
        pool = torch.zeros(plan.sequences + 1, *weight.shape, dtype=x.dtype, device=x.device)[..., 1:]
        slots, touched = torch.arange(1, plan.sequences + 1), [n + 1 for n in plan.active]
    given = pool_of_launch(pool, slots, plan.active, sorted(touched), null=0 if peer == "vLLM" else -1)
    call = partial(
        _function(peer),
        contiguous_aligned(x).T,
        contiguous_aligned(weight),
        params.bias,
        conv_states=given.states,
        query_start_loc=params.cu_seqlens.int(),
        cache_indices=given.indices,
        has_initial_state=_initial(plan, x.device),
        activation=activation_of(params.activation),
        **_programs(peer, plan, x.device),
    )

    def finish(result: Tensor) -> dict[str, Tensor]:
        given.scatter()
        return {"y": owed(result.T, plan.bounds, plan.active)}

    run = partial(vllm_call if peer == "vLLM" else sglang_call, call)
    return PeerLaunch(run, finish), pool, torch.tensor(sorted(touched), device=x.device)


def _function(peer: str) -> Any:
    if peer == "vLLM":
        return vllm_module(VLLM).causal_conv1d_fn
    return sglang_function("causal_conv1d_fn", *SGLANG)


def _initial(plan: PrefillPlan, device: torch.device) -> Tensor:
    found = torch.zeros(plan.sequences, dtype=torch.bool)
    for n, reads in zip(plan.active, plan.reads, strict=True):
        found[n] = reads
    return found.to(device)


def _programs(peer: str, plan: PrefillPlan, device: torch.device) -> dict[str, Any]:
    if peer == "vLLM":
        return {"metadata": program_table(plan.bounds, device)}
    return {"seq_lens_cpu": [stop - start for start, stop in plan.bounds]}


@takes_call
def vllm(params: ConvPrefillParams) -> dict[str, Tensor]:
    """Update `conv_state` in place, if given, and return y [T, D], NaN where no active sequence has tokens.
    Raises NotImplementedError for a call that vLLM does not take, ImportError if it is missing."""
    return dict(_bind("vLLM", params)[0]())


@takes_call
def prepare_vllm(params: ConvPrefillParams) -> Launch:
    """A launch of the call, compiled."""
    launch, pool, slots = _bind("vLLM", params)
    return warmed_up(launch, pool, slots, once=call_kind("vllm conv", by_name(params)))


@takes_call
def sglang(params: ConvPrefillParams) -> dict[str, Tensor]:
    """As `vllm`, by SGLang's function."""
    return dict(_bind("SGLang", params)[0]())


@takes_call
def prepare_sglang(params: ConvPrefillParams) -> Launch:
    """A launch of the call, compiled."""
    launch, pool, slots = _bind("SGLang", params)
    return warmed_up(launch, pool, slots, once=call_kind("sglang conv", by_name(params)))
