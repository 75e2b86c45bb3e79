"""The kernel named `vllm` of kda_prefill: the Triton kernels of Kimi K3 in vLLM, by vLLM's host function.

    gates in log space, beta a value      chunk_kda
    gates raw or bounded, beta a logit    chunk_kda_with_fused_gate, which for bounded gates has matrix
                                          products with one anchor for each block of 16 tokens

A launch is that call. Before the launch this module copies inputs that are not contiguous, and makes zero
states, which the first function requires. `chunk_kda` writes o over v, so its launch includes a copy of v.
The chunks are of 64 tokens; chunk_size changes the stages of a call alone. The functions make the chunk table
in the launch, or find that of the same cu_seqlens, and allocate intermediates.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_prefill.chunked import final_dtype
from gdnbench_kernels.kda_peers import bias, rate, refuse_engine
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    contiguous_aligned,
    require_dtypes,
    vllm_call,
    vllm_module,
    warmed_up,
)

NAME = "vLLM's KDA prefill"
CHUNKED = "models.kimi_k3.nvidia.ops.third_party.kda.chunk"

takes_call = takes_params(KdaPrefillParams, without=("state_layout",))


def _bind(params: KdaPrefillParams) -> PeerLaunch:
    """The arguments of vLLM for a call of the contract."""
    _refuse(params)
    module, o = vllm_module(CHUNKED), torch.empty_like(params.v, memory_format=torch.contiguous_format)
    inputs = {
        name: contiguous_aligned(getattr(params, name)).unsqueeze(0) for name in ("q", "k", "g", "beta")
    }
    given: dict[str, Any] = {
        "scale": params.scale,
        "initial_state": _initial_state(params),
        "output_final_state": True,
        "cu_seqlens": contiguous_aligned(params.cu_seqlens),
        "use_qk_l2norm_in_kernel": params.qk == "raw",
    }
    fused = params.gate != "log"
    if fused:
        inputs = {"raw_g": inputs.pop("g"), "raw_beta": inputs.pop("beta"), **inputs}
        given |= {"A_log": rate(params), "g_bias": bias(params), "lower_bound": params.lower_bound}
        given |= {"v": contiguous_aligned(params.v).unsqueeze(0), "out": o.unsqueeze(0)}
        call = partial(module.chunk_kda_with_fused_gate, **inputs, **given)
    else:
        call = partial(module.chunk_kda, **inputs, v=o.unsqueeze(0), **given)
    dtype = final_dtype(params.initial_state, params.final_state_dtype)

    def run() -> Any:
        if not fused:
            o.copy_(params.v)
        return vllm_call(call)

    def finish(result: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        out, final = result
        return {"o": out[0]} | ({"final_state": final.to(dtype)} if params.output_final_state else {})

    return PeerLaunch(run, finish)


def _initial_state(params: KdaPrefillParams) -> Tensor:
    if params.initial_state is not None:
        return contiguous_aligned(params.initial_state)
    shape = (len(params.cu_seqlens) - 1, params.v.shape[1], params.v.shape[2], params.k.shape[2])
    return torch.zeros(shape, dtype=final_dtype(None, params.final_state_dtype), device=params.q.device)


def _refuse(params: KdaPrefillParams) -> None:
    """Raises NotImplementedError for a call that vLLM's functions do not take."""
    refuse_engine(params, NAME)
    if (params.gate != "log") != (params.beta_form == "logit"):
        raise NotImplementedError(
            f"{NAME} takes a log gate with a value of beta, or a raw or bounded gate with a logit"
        )
    if not len(params.q):
        raise NotImplementedError(f"{NAME} launches nothing for no tokens")
    require_dtypes(NAME, "q, k and v", params.q, torch.bfloat16, torch.float16)


@takes_call
def vllm(params: KdaPrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K]. Raises NotImplementedError for a call that vLLM's kernels
    do not take, ImportError if vLLM is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: KdaPrefillParams) -> Launch:
    """A launch of the call, compiled and tuned."""
    return warmed_up(_bind(params))
