"""The kernel named `fla` of gdn_prefill: flash-linear-attention's chunk_gated_delta_rule, its Triton kernels.

A launch is that call: a kernel each for gate sums, inverse, states and outputs, and first normalised q and k
if they are raw. Before the launch this module computes the chunks of cu_seqlens, which the function would
count on the host and caches by the tensor's identity; equal calls therefore share one tensor. Releases before
0.6 count them in the launch, and releases before 0.5 take as many heads of q and k as of v: they are repeated
before the launch. After the launch it converts final states from fp32 to another dtype. The function
allocates outputs and intermediates in the launch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_prefill.chunked import final_dtype
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.peers import (
    PeerLaunch,
    contiguous_aligned,
    fla_module,
    fla_release,
    known_arguments,
    warmed_up,
)

CHUNKS = (16, 32, 64)
CHUNK = 64
CHOICE_OF_CHUNKS = (0, 5, 2)
"""The first release whose chunk size is an argument."""
GROUPED_HEADS = (0, 5)
"""The first release that takes fewer heads of q and k than of v."""

takes_call = takes_params(PrefillParams, without=("beta_max", "gate", "state_layout"))


def _bind(params: PrefillParams) -> PeerLaunch:
    """The arguments of flash-linear-attention for a call of the contract, with states in layout KV."""
    q, cu_seqlens, chunk_size = params.q, params.cu_seqlens, params.chunk_size
    initial_state = params.initial_state
    if chunk_size not in CHUNKS:
        raise NotImplementedError(
            f"flash-linear-attention takes chunks of {', '.join(map(str, CHUNKS))} tokens, not {chunk_size}"
        )
    if not len(q):
        raise NotImplementedError("flash-linear-attention launches nothing for no tokens")
    function = fla_module("ops.gated_delta_rule").chunk_gated_delta_rule
    if chunk_size != CHUNK and fla_release() < CHOICE_OF_CHUNKS:
        raise NotImplementedError(
            f"flash-linear-attention before 0.5.2 takes chunks of {CHUNK} tokens, not {chunk_size}"
        )
    bounds, chunks = _chunks_of(tuple(cu_seqlens.tolist()), cu_seqlens.dtype, q.device, chunk_size)
    options = {} if fla_release() < CHOICE_OF_CHUNKS else {"chunk_size": chunk_size}
    options |= known_arguments(function, {"chunk_indices": chunks})
    inputs = {"q": q, "k": params.k, "v": params.v, "g": params.g, "beta": params.beta}
    if fla_release() < GROUPED_HEADS and params.v.shape[1] != q.shape[1]:
        groups = params.v.shape[1] // q.shape[1]
        inputs |= {name: inputs[name].repeat_interleave(groups, 1) for name in ("q", "k")}
    call = partial(
        function,
        **{name: contiguous_aligned(x).unsqueeze(0) for name, x in inputs.items()},
        scale=params.scale,
        initial_state=None if initial_state is None else contiguous_aligned(initial_state),
        output_final_state=params.output_final_state,
        use_qk_l2norm_in_kernel=params.qk == "raw",
        cu_seqlens=bounds,
        **options,
    )
    dtype = final_dtype(initial_state, params.final_state_dtype)

    def finish(result: tuple[Tensor, Tensor | None]) -> dict[str, Tensor]:
        out, final = result
        return {"o": out[0]} if final is None else {"o": out[0], "final_state": final.to(dtype)}

    return PeerLaunch(call, finish)


@cache
def _chunks_of(
    bounds: tuple[int, ...], dtype: torch.dtype, device: torch.device, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """cu_seqlens [N+1], and (sequence, chunk) [chunks, 2] in flash-linear-attention's form."""
    cu_seqlens = torch.tensor(bounds, dtype=dtype, device=device)
    indices: Tensor = fla_module("ops.utils").prepare_chunk_indices(cu_seqlens, chunk_size)
    return cu_seqlens, indices


@takes_call
def fla(params: PrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, K, V]; states have layout KV. Raises NotImplementedError for a
    call that flash-linear-attention does not take, ImportError if it is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: PrefillParams) -> Launch:
    """A launch of the call, compiled and tuned."""
    return warmed_up(_bind(params))
