"""The kernel named `flashqla` of gdn_prefill: FlashQLA's chunk_gated_delta_rule, its TileLang kernels.

A launch is that call, as its users call it: a kernel each for gate sums, inverse and outputs, before them one
or two that normalise raw q and k, and where FlashQLA splits sequences three more, which drop what the gates
have made small of a state. nvcc compiles the kernels at the first call. Before the launch this module reads
cu_seqlens: the function plans its split on the host, once for one tensor, so equal calls share it. After the
launch it converts final states from fp32 to another dtype. The function allocates outputs and intermediates
in the launch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_prefill.chunked import final_dtype
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    contiguous_aligned,
    flashqla_function,
    require_dims,
    require_dtypes,
    warmed_up,
)

NAME = "FlashQLA"
CHUNK = 64
HEAD_DIM = 128

takes_call = takes_params(PrefillParams, without=("beta_max", "gate", "state_layout"))


def _bind(params: PrefillParams) -> PeerLaunch:
    """The arguments of FlashQLA for a call of the contract, with states in layout KV."""
    bounds = tuple(params.cu_seqlens.tolist())
    _refuse(params, bounds)
    initial_state = params.initial_state
    inputs = {"q": params.q, "k": params.k, "v": params.v, "g": params.g, "beta": params.beta}
    call = partial(
        flashqla_function("chunk_gated_delta_rule"),
        **{name: contiguous_aligned(x).unsqueeze(0) for name, x in inputs.items()},
        scale=params.scale,
        initial_state=None if initial_state is None else contiguous_aligned(initial_state),
        output_final_state=params.output_final_state,
        use_qk_l2norm_in_kernel=params.qk == "raw",
        cu_seqlens=_shared(bounds, params.cu_seqlens.dtype, params.q.device),
    )
    dtype = final_dtype(initial_state, params.final_state_dtype)

    def finish(result: tuple[Tensor, Tensor | None]) -> dict[str, Tensor]:
        out, final = result
        return {"o": out[0]} if final is None else {"o": out[0], "final_state": final.to(dtype)}

    return PeerLaunch(call, finish)


def _refuse(params: PrefillParams, bounds: tuple[int, ...]) -> None:
    """Raises NotImplementedError for a call that FlashQLA's kernels do not take."""
    require_dims(NAME, params.k, params.v, HEAD_DIM)
    require_dtypes(NAME, "q, k and v", params.q, torch.bfloat16, torch.float16)
    if params.chunk_size != CHUNK:
        raise NotImplementedError(f"{NAME} takes chunks of {CHUNK} tokens, not of {params.chunk_size}")
    if any(start == stop for start, stop in pairwise(bounds)):
        raise NotImplementedError(f"{NAME} takes no sequence without tokens")


@cache
def _shared(bounds: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """cu_seqlens [N+1], one tensor for equal values."""
    return torch.tensor(bounds, dtype=dtype, device=device)


@takes_call
def flashqla(params: PrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, K, V]; states have layout KV. Raises NotImplementedError for a
    call or a GPU that FlashQLA does not take, ImportError if it is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: PrefillParams) -> Launch:
    """A launch of the call, compiled."""
    return warmed_up(_bind(params))
