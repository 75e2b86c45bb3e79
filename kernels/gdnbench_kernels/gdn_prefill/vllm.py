"""The kernels named `vllm` and `vllm_triton` of gdn_prefill, each by vLLM's own host function.

    vllm         chunk_gated_delta_rule_cutedsl: three CuTe DSL kernels for SM100, its backend "cutedsl"
    vllm_triton  chunk_gated_delta_rule of its copy of flash-linear-attention, its backend "triton"

A launch is that call. Before the launch this module computes the chunk tables, which vLLM makes once for all
layers, by vLLM's own kernel or function; widens g and beta to fp32; copies inputs that are not contiguous;
and makes the zero states that vLLM's functions require. The functions allocate outputs and intermediates in
the launch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.chunks import plan_chunks
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.torch_chunked import final_dtype
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    contiguous_aligned,
    require_dims,
    require_dtypes,
    vllm_call,
    vllm_module,
    warmed_up,
)

CUTE_DSL = "vLLM's CuTe DSL prefill"
TRITON = "vLLM's Triton prefill"
HEAD_DIM = 128
CHUNK = 64
HEADS = 4  # of fp32 gates in 16 bytes: the CuTe DSL kernels are compiled for rows that are multiples of it

takes_call = takes_params(PrefillParams, without=("beta_max", "gate", "state_layout", "qk"))


def _bind(params: PrefillParams) -> PeerLaunch:
    """The arguments of vLLM's CuTe DSL function for a call of the contract."""
    _refuse(params)
    module = vllm_module("model_executor.layers.mamba.ops.gdn_chunk_cutedsl")
    cu_seqlens = contiguous_aligned(params.cu_seqlens)
    chunk_indices, chunk_offsets = vllm_call(
        module.prepare_metadata_cutedsl, cu_seqlens, len(params.q), CHUNK
    )
    call = partial(
        module.chunk_gated_delta_rule_cutedsl,
        **_inputs(params),
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
        **_inputs(params),
        scale=params.scale,
        initial_state=_initial_state(params),
        output_final_state=True,
        cu_seqlens=cu_seqlens,
        chunk_indices=torch.stack([plan.sequence, plan.index], 1).to(cu_seqlens),
        chunk_offsets=torch.as_tensor(plan.offsets).to(cu_seqlens),
    )
    return _launch(params, call)


def _inputs(params: PrefillParams) -> dict[str, Tensor]:
    """q, k, v [1, T, heads, 128], and g and beta [1, T, Hv] in fp32, as vLLM makes them."""
    inputs = {"q": params.q, "k": params.k, "v": params.v, "g": params.g.float(), "beta": params.beta.float()}
    return {name: contiguous_aligned(x).unsqueeze(0) for name, x in inputs.items()}


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


def _refuse(params: PrefillParams) -> None:
    """Raises NotImplementedError for a call that vLLM's CuTe DSL kernels do not take."""
    require_dims(CUTE_DSL, params.k, params.v, HEAD_DIM)
    require_dtypes(CUTE_DSL, "q, k and v", params.q, torch.bfloat16)
    require_dtypes(CUTE_DSL, "initial_state", params.initial_state, torch.float32, torch.bfloat16)
    if params.chunk_size != CHUNK:
        raise NotImplementedError(f"{CUTE_DSL} takes chunks of {CHUNK} tokens, not of {params.chunk_size}")
    if not len(params.q):
        raise NotImplementedError(f"{CUTE_DSL} launches nothing for no tokens")
    if params.v.shape[1] % HEADS:
        raise NotImplementedError(
            f"{CUTE_DSL} takes a multiple of {HEADS} value heads, not {params.v.shape[1]}"
        )
    scale = default_scale(None, HEAD_DIM)
    if default_scale(params.scale, HEAD_DIM) != scale:
        raise NotImplementedError(f"{CUTE_DSL} scales by K ** -0.5 = {scale:.4g}, not by {params.scale}")
    if params.initial_state is None and final_dtype(None, params.final_state_dtype) is torch.float16:
        raise NotImplementedError(f"{CUTE_DSL} takes states as float32 or bfloat16, not as float16")


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
