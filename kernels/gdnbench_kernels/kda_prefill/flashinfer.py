"""The kernels named `flashinfer` and `flashinfer_*` of kda_prefill: FlashInfer's recurrent_kda, its backends.

    flashinfer             backend "auto": for states in bf16 of few sequences and heads that of
                           flashinfer_small_bh, else that of flashinfer_cutedsl
    flashinfer_cutedsl     "cute-dsl": chunks of 16 tokens, tcgen05; one kernel, or two, of preparation and of
                           the chain of states, for few sequences and heads
    flashinfer_small_bh    "small-bh": chunks of 16 tokens, mma.sync, two kernels
    flashinfer_persistent  "cute-dsl-persistent": chunks of 32 tokens, tcgen05, one kernel

All take raw q and k, bounded gates and logits of beta, as Kimi Linear's layers make them, in bf16. The
function overwrites the initial states with the final ones, so a launch is a copy of the initial states to a
second tensor, zeros if there are none, and the call on that tensor. Before the launch this module makes zeros
for A_log or dt_bias if it is absent, and copies inputs that are not contiguous. chunk_size changes the stages
of a call alone. The function allocates its workspaces in the launch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_prefill.states import OverwrittenStates
from gdnbench_kernels.kda_peers import flashinfer_gates
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    contiguous_aligned,
    flashinfer_call,
    flashinfer_module,
    require_dims,
    require_dtypes,
    warmed_up,
)

NAME = "FlashInfer's KDA prefill"
PERSISTENT = "FlashInfer's persistent KDA prefill"
SMALL_BH = "FlashInfer's KDA prefill of few heads"
HEAD_DIM = 128
BLACKWELL = 10  # major compute capability
HEADS = 8  # of which the persistent kernel takes a multiple
LEAST = -5.0  # bound of gates that the persistent kernel takes
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32

takes_call = takes_params(KdaPrefillParams, without=("gate", "beta_form", "state_layout", "qk"))


def _bind(params: KdaPrefillParams, backend: str) -> PeerLaunch:
    """The arguments of FlashInfer for a call of the contract with raw q and k, a bounded gate and logits."""
    states = OverwrittenStates(params, flashinfer_call)
    _refuse(params, states.pool.dtype)
    if backend == "small-bh":
        require_dtypes(SMALL_BH, "states", states.pool, BFLOAT16)
    if backend == "cute-dsl-persistent":
        _refuse_persistent(params, states)
    inputs = {name: getattr(params, name) for name in ("q", "k", "v", "g", "beta")}
    call = partial(
        flashinfer_module("kda").recurrent_kda,
        **{name: contiguous_aligned(x).unsqueeze(0) for name, x in inputs.items()},
        **_gates(params),
        scale=params.scale,
        initial_state=states.pool,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=contiguous_aligned(params.cu_seqlens),
        backend=backend,
    )
    return states.launch(call, lambda result: (result[0][0], result[1]))


def _gates(params: KdaPrefillParams) -> dict[str, Any]:
    """The arguments of gates; zeros for a bias that is absent, which these kernels require."""
    heads = params.v.shape[1]
    bias = params.dt_bias
    if bias is None:
        bias = torch.zeros(heads, HEAD_DIM, dtype=FLOAT32, device=params.v.device)
    return flashinfer_gates(replace(params, gate="bounded", beta_form="logit", dt_bias=bias))


def _refuse(params: KdaPrefillParams, states: torch.dtype) -> None:
    """Raises NotImplementedError for a call that none of the kernels takes."""
    require_dims(NAME, params.k, params.v, HEAD_DIM)
    for name in ("q", "k", "v", "g", "beta"):
        require_dtypes(NAME, name, getattr(params, name), BFLOAT16)
    for name in ("A_log", "dt_bias"):
        require_dtypes(NAME, name, getattr(params, name), FLOAT32)
    tokens, sequences = len(params.q), len(params.cu_seqlens) - 1
    if params.q.shape[1] != params.v.shape[1]:
        raise NotImplementedError(
            f"{NAME} takes as many key heads as value heads, not {params.q.shape[1]} and {params.v.shape[1]}"
        )
    if params.beta_max != 1:
        raise NotImplementedError(
            f"{NAME} makes beta = sigmoid(b), at most 1; beta_max is {params.beta_max:g}"
        )
    if tokens <= sequences:
        raise NotImplementedError(
            f"{NAME} takes more tokens than sequences, not {tokens} and {sequences}: with fewer the function"
            " calls a decode kernel, which computes one token of each sequence"
        )
    if params.initial_state is not None and params.initial_state.dtype != states:
        raise NotImplementedError(f"{NAME} takes states of one dtype, before and after")
    if states not in (BFLOAT16, FLOAT32):
        raise NotImplementedError(f"{NAME} takes states as bfloat16 or float32, not as float16")
    if torch.cuda.get_device_capability()[0] != BLACKWELL:
        # On other devices the function calls a decode kernel, or one for SM120.
        raise NotImplementedError(f"{NAME} runs on compute capability {BLACKWELL}.x")


def _refuse_persistent(params: KdaPrefillParams, states: OverwrittenStates) -> None:
    """Raises NotImplementedError for a call that the persistent kernel does not take."""
    require_dtypes(PERSISTENT, "states", states.pool, FLOAT32)
    if params.v.shape[1] % HEADS:
        raise NotImplementedError(f"{PERSISTENT} takes a multiple of {HEADS} heads, not {params.v.shape[1]}")
    if params.lower_bound is None or params.lower_bound < LEAST:
        raise NotImplementedError(
            f"{PERSISTENT} takes a lower_bound of {LEAST:g} or more, not {params.lower_bound}"
        )
    if int(params.cu_seqlens.diff().min()) < 1:
        raise NotImplementedError(f"{PERSISTENT} takes no sequences without tokens")


@takes_call
def flashinfer(params: KdaPrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K]. Raises NotImplementedError for a call that FlashInfer does
    not take, ImportError if it is missing."""
    return dict(_bind(params, "auto")())


@takes_call
def flashinfer_cutedsl(params: KdaPrefillParams) -> dict[str, Tensor]:
    """The same by the backend "cute-dsl"."""
    return dict(_bind(params, "cute-dsl")())


@takes_call
def flashinfer_small_bh(params: KdaPrefillParams) -> dict[str, Tensor]:
    """The same by the backend "small-bh"."""
    return dict(_bind(params, "small-bh")())


@takes_call
def flashinfer_persistent(params: KdaPrefillParams) -> dict[str, Tensor]:
    """The same by the backend "cute-dsl-persistent"."""
    return dict(_bind(params, "cute-dsl-persistent")())


@takes_call
def prepare(params: KdaPrefillParams) -> Launch:
    """A launch of the call, compiled."""
    return warmed_up(_bind(params, "auto"))


@takes_call
def prepare_cutedsl(params: KdaPrefillParams) -> Launch:
    """A launch of the call by the backend "cute-dsl", compiled."""
    return warmed_up(_bind(params, "cute-dsl"))


@takes_call
def prepare_small_bh(params: KdaPrefillParams) -> Launch:
    """A launch of the call by the backend "small-bh", compiled."""
    return warmed_up(_bind(params, "small-bh"))


@takes_call
def prepare_persistent(params: KdaPrefillParams) -> Launch:
    """A launch of the call by the backend "cute-dsl-persistent", compiled."""
    return warmed_up(_bind(params, "cute-dsl-persistent"))
