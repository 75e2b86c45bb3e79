"""The kernels named `flashinfer`, `flashinfer_cp` and `flashinfer_plain` of gdn_prefill: FlashInfer's
chunk_gated_delta_rule.

    flashinfer        as its users call it: context parallelism where few sequences and heads leave SMs idle
    flashinfer_cp     with context parallelism, use_cp=True: chunks of a sequence run at once, in four kernels
    flashinfer_plain  without, use_cp=False: one kernel

The function selects Hopper's or Blackwell's kernels by the device. A launch is that call; a kernel before the
others normalises q and k if they are raw. Before the launch this module widens g and beta to fp32, reads the
length of the longest sequence from cu_seqlens and copies inputs that are not contiguous. The function
allocates its workspaces in the launch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_prefill.chunked import final_dtype
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    contiguous_aligned,
    flashinfer_call,
    flashinfer_module,
    known_arguments,
    output_of,
    require_dims,
    require_dtypes,
    warmed_up,
)

NAME = "FlashInfer's prefill"
HEAD_DIM = 128
CHUNK = 64
HALF = (torch.bfloat16, torch.float16)
STATES = (torch.float32, *HALF)

takes_call = takes_params(PrefillParams, without=("beta_max", "gate", "state_layout"))


def _bind(
    params: PrefillParams, o: Tensor | None, final_state: Tensor | None, use_cp: bool | None = None
) -> PeerLaunch:
    """The arguments of FlashInfer for a call of the contract; `g` is alpha. `use_cp` None: it decides."""
    v, initial_state, output_final_state = params.v, params.initial_state, params.output_final_state
    dtype = final_dtype(initial_state, params.final_state_dtype)
    _refuse(params, dtype if output_final_state else None)
    out, final = output_of(o, v.shape, v.dtype, v.device), None
    if output_final_state:
        shape = (len(params.cu_seqlens) - 1, v.shape[1], HEAD_DIM, HEAD_DIM)
        final = output_of(final_state, shape, dtype, v.device)
    q, k, v, cu_seqlens = map(contiguous_aligned, (params.q, params.k, v, params.cu_seqlens))
    alpha, beta = contiguous_aligned(params.g.float()), contiguous_aligned(params.beta.float())
    first = None if initial_state is None else contiguous_aligned(initial_state)
    state = None if final is None else final.buffer
    factor = default_scale(params.scale, HEAD_DIM)
    function = flashinfer_module("gdn_prefill").chunk_gated_delta_rule
    call = partial(
        function,
        *(q, k, v, alpha, beta, factor, first, output_final_state, cu_seqlens),
        use_qk_l2norm_in_kernel=params.qk == "raw",
        output=out.buffer,
        output_state=state,
        **_options(function, cu_seqlens, use_cp),
    )
    outputs = {"o": out} if final is None else {"o": out, "final_state": final}
    return PeerLaunch(
        partial(flashinfer_call, call),
        lambda result: {name: output.finish() for name, output in outputs.items()},
    )


def _options(function: Callable[..., Any], cu_seqlens: Tensor, use_cp: bool | None) -> dict[str, Any]:
    """The arguments that only newer releases have. NotImplementedError if `use_cp` is asked of one without
    it."""
    options: dict[str, Any] = {"max_seqlen": int(cu_seqlens.diff().max())}
    if use_cp is not None:
        options["use_cp"] = use_cp
    known = known_arguments(function, options)
    if use_cp and "use_cp" not in known:
        raise NotImplementedError(
            f"{NAME} has no argument use_cp in this release; take flashinfer-python 0.6.14 or later"
        )
    return known


@takes_call
def flashinfer(
    params: PrefillParams, *, o: Tensor | None = None, final_state: Tensor | None = None
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K]. Raises NotImplementedError for a call that FlashInfer does
    not take, ImportError if it is missing."""
    return dict(_bind(params, o, final_state)())


@takes_call
def flashinfer_cp(
    params: PrefillParams, *, o: Tensor | None = None, final_state: Tensor | None = None
) -> dict[str, Tensor]:
    """The same with context parallelism, whatever the call's size."""
    return dict(_bind(params, o, final_state, use_cp=True)())


@takes_call
def flashinfer_plain(
    params: PrefillParams, *, o: Tensor | None = None, final_state: Tensor | None = None
) -> dict[str, Tensor]:
    """The same without context parallelism, whatever the call's size."""
    return dict(_bind(params, o, final_state, use_cp=False)())


@takes_call
def prepare(params: PrefillParams, *, o: Tensor | None = None, final_state: Tensor | None = None) -> Launch:
    """A launch of the call, compiled."""
    return warmed_up(_bind(params, o, final_state))


@takes_call
def prepare_cp(
    params: PrefillParams, *, o: Tensor | None = None, final_state: Tensor | None = None
) -> Launch:
    """A launch of the call with context parallelism, compiled."""
    return warmed_up(_bind(params, o, final_state, use_cp=True))


@takes_call
def prepare_plain(
    params: PrefillParams, *, o: Tensor | None = None, final_state: Tensor | None = None
) -> Launch:
    """A launch of the call without context parallelism, compiled."""
    return warmed_up(_bind(params, o, final_state, use_cp=False))


def _refuse(params: PrefillParams, final: torch.dtype | None) -> None:
    """Raises NotImplementedError for a call that FlashInfer's kernels do not take."""
    q, initial_state = params.q, params.initial_state
    require_dims(NAME, params.k, params.v, HEAD_DIM)
    require_dtypes(NAME, "q, k and v", q, *HALF)
    require_dtypes(NAME, "initial_state", initial_state, *STATES)
    if params.chunk_size != CHUNK:
        raise NotImplementedError(f"{NAME} takes chunks of {CHUNK} tokens, not of {params.chunk_size}")
    if not len(q):
        raise NotImplementedError(f"{NAME} launches nothing for no tokens")
    if initial_state is not None and final not in (None, initial_state.dtype):
        # Blackwell's kernel is compiled for one dtype of states, the initial states'.
        raise NotImplementedError(f"{NAME} takes states of one dtype, before and after")
