"""The kernels named `sglang` and `sglang_cutedsl` of kda_prefill, each by SGLang's own host function.

    sglang           chunk_kda of its copy of flash-linear-attention, its backend "triton"
    sglang_cutedsl   chunk_kda_cutedsl: a Triton prologue and three CuTe DSL kernels for SM100

SGLang's functions overwrite the initial states with the final ones, and `chunk_kda` v with o. So a launch is
a copy of the initial states, and of v for `chunk_kda`, to another tensor, and the call on that tensor. Before
the launch this module copies inputs that are not contiguous, makes the zero states that the functions
require, and for `sglang_cutedsl` widens beta to fp32. The chunks are of 64 tokens; chunk_size changes the
stages of a call alone. The functions make the chunk tables in the launch, or find those of the same
cu_seqlens, and allocate intermediates.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_prefill.states import OverwrittenStates
from gdnbench_kernels.kda_peers import bias, rate, refuse_engine
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    contiguous_aligned,
    require_dims,
    require_dtypes,
    sglang_call,
    sglang_function,
    warmed_up,
)

CUTE_DSL = "SGLang's CuTe DSL KDA prefill"
TRITON = "SGLang's Triton KDA prefill"
CHUNKED = "kernels.ops.attention.fla.kda"
BLACKWELL = "kernels.ops.attention.linear.kda_blackwell"
HEAD_DIM = 128
HEADS_MULTIPLE = 4
"""The kernels are compiled for rows of beta, float32, that are aligned to 16 bytes."""

takes_any = takes_params(KdaPrefillParams, without=("state_layout",))
takes_call = takes_params(KdaPrefillParams, without=("state_layout", "qk", "lower_bound", "beta_form"))


def _bind(params: KdaPrefillParams) -> PeerLaunch:
    """The arguments of SGLang's Triton function for a call of the contract."""
    _refuse(params, TRITON)
    states = OverwrittenStates(params, sglang_call)
    o = torch.empty_like(params.v, memory_format=torch.contiguous_format)
    inputs = {name: getattr(params, name) for name in ("q", "k", "g", "beta")}
    gates: dict[str, Any] = {"beta_is_raw": params.beta_form == "logit"}
    if params.gate != "log":
        gates |= {"A_log": rate(params), "dt_bias": bias(params), "lower_bound": params.lower_bound}
    call = partial(
        sglang_function("chunk_kda", CHUNKED),
        **{name: contiguous_aligned(x).unsqueeze(0) for name, x in inputs.items()},
        **gates,
        v=o.unsqueeze(0),
        scale=params.scale,
        initial_state=states.pool,
        initial_state_indices=states.slots,
        cu_seqlens=contiguous_aligned(params.cu_seqlens),
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )
    return states.launch(call, lambda result: (result[0], None), copies=((o, params.v),))


def _bind_cutedsl(params: KdaPrefillParams) -> PeerLaunch:
    """The arguments of SGLang's CuTe DSL function for a call of the contract."""
    _refuse(params, CUTE_DSL)
    require_dims(CUTE_DSL, params.k, params.v, HEAD_DIM)
    if (heads := params.v.shape[1]) % HEADS_MULTIPLE:
        raise NotImplementedError(f"{CUTE_DSL} takes a multiple of {HEADS_MULTIPLE} heads, not {heads}")
    require_dtypes(CUTE_DSL, "q, k and v", params.q, torch.bfloat16)
    states = OverwrittenStates(params, sglang_call)
    require_dtypes(CUTE_DSL, "states", states.pool, torch.float32, torch.bfloat16)
    inputs = {name: getattr(params, name) for name in ("q", "k", "v", "g")}
    gates = {} if params.gate == "log" else {"A_log": rate(params), "dt_bias": bias(params)}
    call = partial(
        sglang_function("chunk_kda_cutedsl", BLACKWELL),
        **{name: contiguous_aligned(x) for name, x in inputs.items()},
        **gates,
        beta=contiguous_aligned(params.beta.float()),
        h0=states.pool,
        h0_indices=states.slots,
        cu_seqlens=contiguous_aligned(params.cu_seqlens),
        scale=params.scale,
    )
    return states.launch(call, lambda result: (result[0], None))


def _refuse(params: KdaPrefillParams, peer: str) -> None:
    """Raises NotImplementedError for a call that neither function takes."""
    refuse_engine(params, peer)
    if not len(params.q):
        raise NotImplementedError(f"{peer} launches nothing for no tokens")
    require_dtypes(peer, "q, k and v", params.q, torch.bfloat16, torch.float16)


@takes_any
def sglang(params: KdaPrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K]. Raises NotImplementedError for a call that SGLang's Triton
    kernels do not take, ImportError if SGLang is missing."""
    return dict(_bind(params)())


@takes_any
def prepare(params: KdaPrefillParams) -> Launch:
    """A launch of the call, compiled and tuned."""
    return warmed_up(_bind(params))


@takes_call
def sglang_cutedsl(params: KdaPrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K]. Raises NotImplementedError for a call that SGLang's CuTe
    DSL kernels do not take, ImportError if SGLang is missing."""
    return dict(_bind_cutedsl(params)())


@takes_call
def prepare_cutedsl(params: KdaPrefillParams) -> Launch:
    """A launch of the call, compiled."""
    return warmed_up(_bind_cutedsl(params))
