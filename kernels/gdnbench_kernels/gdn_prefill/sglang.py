"""The kernels named `sglang` and `sglang_cutedsl` of gdn_prefill, each by SGLang's own host function.

    sglang           chunk_gated_delta_rule of its copy of flash-linear-attention, its backend "triton"
    sglang_cutedsl   chunk_gated_delta_rule_cutedsl: three CuTe DSL kernels for SM100, its backend "cutedsl"

SGLang's functions overwrite the initial states with the final ones, so a launch is a copy of the initial
states to a second tensor, and the call on that tensor. Before the launch this module makes the chunk tables
of the CuTe DSL kernels by SGLang's own kernel, widens g and beta to fp32, copies inputs that are not
contiguous, and makes the zero states that the functions require. The functions allocate outputs and
intermediates in the launch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_prefill.states import OverwrittenStates
from gdnbench_kernels.gdn_prefill.chunk_cutedsl import CHUNK, gated_inputs, refuse
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    contiguous_aligned,
    require_dtypes,
    sglang_call,
    sglang_function,
    takes_argument,
    warmed_up,
)

CUTE_DSL = "SGLang's CuTe DSL prefill"
TRITON = "SGLang's Triton prefill"
CHUNKED = "kernels.ops.attention.fla.chunk"
BLACKWELL = "kernels.ops.attention.linear.gdn_blackwell"

takes_raw_qk = takes_params(PrefillParams, without=("beta_max", "gate", "state_layout"))
takes_call = takes_params(PrefillParams, without=("beta_max", "gate", "state_layout", "qk"))


def _bind(params: PrefillParams) -> PeerLaunch:
    """The arguments of SGLang's Triton function for a call of the contract."""
    if params.chunk_size != CHUNK:
        raise NotImplementedError(f"{TRITON} takes chunks of {CHUNK} tokens, not of {params.chunk_size}")
    if not len(params.q):
        raise NotImplementedError(f"{TRITON} launches nothing for no tokens")
    require_dtypes(TRITON, "q, k and v", params.q, torch.bfloat16, torch.float16)
    states = OverwrittenStates(params, sglang_call)
    call = partial(
        sglang_function("chunk_gated_delta_rule", CHUNKED),
        **gated_inputs(params),
        scale=params.scale,
        initial_state=states.pool,
        initial_state_indices=states.slots,
        cu_seqlens=contiguous_aligned(params.cu_seqlens),
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )
    return states.launch(call, unpacked)


def _bind_cutedsl(params: PrefillParams) -> PeerLaunch:
    """The arguments of SGLang's CuTe DSL function for a call of the contract."""
    refuse(params, CUTE_DSL)
    function = sglang_function("chunk_gated_delta_rule_cutedsl", BLACKWELL)
    cu_seqlens = contiguous_aligned(params.cu_seqlens)
    chunk_indices, chunk_offsets = sglang_call(
        sglang_function("prepare_metadata_cutedsl", BLACKWELL), cu_seqlens, len(params.q), CHUNK
    )
    states = OverwrittenStates(params, sglang_call)
    call = partial(
        function,
        **gated_inputs(params),
        initial_state=states.pool,
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
        chunk_offsets=chunk_offsets,
    )
    if takes_argument(function, "initial_state_indices"):
        call = partial(call, initial_state_indices=states.slots)
    return states.launch(call, unpacked)


def unpacked(result: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """o [T, Hv, V], and the final states [N, Hv, V, K] unless they are in the pool: what SGLang's functions
    return."""
    return result[0][0], result[1]


@takes_raw_qk
def sglang(params: PrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K]. Raises NotImplementedError for a call that SGLang's Triton
    kernels do not take, ImportError if SGLang is missing."""
    return dict(_bind(params)())


@takes_raw_qk
def prepare(params: PrefillParams) -> Launch:
    """A launch of the call, compiled and tuned."""
    return warmed_up(_bind(params))


@takes_call
def sglang_cutedsl(params: PrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K]. Raises NotImplementedError for a call that SGLang's CuTe
    DSL kernels do not take, ImportError if SGLang is missing."""
    return dict(_bind_cutedsl(params)())


@takes_call
def prepare_cutedsl(params: PrefillParams) -> Launch:
    """A launch of the call, compiled."""
    return warmed_up(_bind_cutedsl(params))
