"""The kernels named `vllm` and `vllm_triton` of gdn_prefill, each by vLLM's own host function.

    vllm         chunk_gated_delta_rule_cutedsl: three CuTe DSL kernels for SM100, its backend "cutedsl"
    vllm_triton  chunk_gated_delta_rule of its copy of flash-linear-attention, its backend "triton"

A launch is that call. Before the launch this module computes the chunk tables, which vLLM makes once for all
layers, by vLLM's own kernel or function; widens g and beta to fp32; copies inputs that are not contiguous;
and makes the zero states that vLLM's functions require. The functions allocate outputs and intermediates in
the launch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.chunks import plan_chunks
from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_prefill.chunked import final_dtype
from gdnbench_kernels.gdn_prefill.chunk_cutedsl import CHUNK, gated_inputs, refuse
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    contiguous_aligned,
    require_dtypes,
    vllm_call,
    vllm_module,
    warmed_up,
)

CUTE_DSL = "vLLM's CuTe DSL prefill"
TRITON = "vLLM's Triton prefill"

takes_call = takes_params(PrefillParams, without=("beta_max", "gate", "state_layout", "qk"))


def _bind(params: PrefillParams) -> PeerLaunch:
    """The arguments of vLLM's CuTe DSL function for a call of the contract."""
    refuse(params, CUTE_DSL)
    module = vllm_module("model_executor.layers.mamba.ops.gdn_chunk_cutedsl")
    cu_seqlens = contiguous_aligned(params.cu_seqlens)
    chunk_indices, chunk_offsets = vllm_call(
        module.prepare_metadata_cutedsl, cu_seqlens, len(params.q), CHUNK
    )
    call = partial(
        module.chunk_gated_delta_rule_cutedsl,
        **gated_inputs(params),
        initial_state=_initial_state(params),
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
        chunk_offsets=chunk_offsets,
    )
    return _launch(params, call)


def _bind_triton(params: PrefillParams) -> PeerLaunch:
    """The arguments of vLLM's Triton function for a call of the contract."""
    if params.chunk_size != CHUNK:
        raise NotImplementedError(f"{TRITON} takes chunks of {CHUNK} tokens, not of {params.chunk_size}")
    if not len(params.q):
        raise NotImplementedError(f"{TRITON} launches nothing for no tokens")
    require_dtypes(TRITON, "q, k and v", params.q, torch.bfloat16, torch.float16)
    plan = plan_chunks(params.cu_seqlens, CHUNK)
    cu_seqlens = contiguous_aligned(params.cu_seqlens)
    call = partial(
        vllm_module("third_party.flash_linear_attention.ops.chunk").chunk_gated_delta_rule,
        **gated_inputs(params),
        scale=params.scale,
        initial_state=_initial_state(params),
        output_final_state=True,
        cu_seqlens=cu_seqlens,
        chunk_indices=torch.stack([plan.sequence, plan.index], 1).to(cu_seqlens),
        chunk_offsets=torch.as_tensor(plan.offsets).to(cu_seqlens),
    )
    return _launch(params, call)


def _initial_state(params: PrefillParams) -> Tensor:
    if params.initial_state is not None:
        return contiguous_aligned(params.initial_state)
    shape = (len(params.cu_seqlens) - 1, params.v.shape[1], params.v.shape[2], params.k.shape[2])
    return torch.zeros(shape, dtype=final_dtype(None, params.final_state_dtype), device=params.q.device)


def _launch(params: PrefillParams, call: partial[Any]) -> PeerLaunch:
    dtype = final_dtype(params.initial_state, params.final_state_dtype)

    def finish(result: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        out, final = result
        return {"o": out[0]} | ({"final_state": final.to(dtype)} if params.output_final_state else {})

    return PeerLaunch(partial(vllm_call, call), finish)


@takes_call
def vllm(params: PrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K]. Raises NotImplementedError for a call that vLLM's CuTe DSL
    kernels do not take, ImportError if vLLM is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: PrefillParams) -> Launch:
    """A launch of the call, compiled."""
    return warmed_up(_bind(params))


@takes_call
def vllm_triton(params: PrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K]. Raises NotImplementedError for a call that vLLM's Triton
    kernels do not take, ImportError if vLLM is missing."""
    return dict(_bind_triton(params)())


@takes_call
def prepare_triton(params: PrefillParams) -> Launch:
    """A launch of the call, compiled and tuned."""
    return warmed_up(_bind_triton(params))
