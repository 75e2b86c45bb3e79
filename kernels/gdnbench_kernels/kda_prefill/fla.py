"""The kernels named `fla` and `fla_safe` of kda_prefill: chunk_kda of flash-linear-attention, in Triton.

    fla       as its layer calls it by default: exponentials of differences token by token in the diagonal
              blocks of 16 tokens
    fla_safe  with safe_gate: matrix products with one anchor for each block, for gates of -5 a token or more

A launch is that call: a kernel each for gate sums, the blocks of 16, the inverse, states and outputs, and
first for normalised q and k if they are raw and for beta if it is a logit. The function takes chunks of 32 or
64 tokens: that of the call if it is one of them, else 64; chunk_size changes the stages of a call alone. The
function caches the chunks of cu_seqlens by the tensor's identity, so equal calls share one tensor. Before the
launch this module converts initial states to fp32, after it final states from fp32. The function allocates
outputs and intermediates in the launch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.delta_prefill.chunked import final_dtype
from gdnbench_kernels.kda_peers import fla_gates
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.peers import PeerLaunch, contiguous_aligned, fla_module, warmed_up

CHUNKS = (32, 64)
CHUNK = 64
LEAST_SAFE = -5.0
"""Least log-space decay of a token that safe_gate is for."""

takes_call = takes_params(KdaPrefillParams)


def _bind(params: KdaPrefillParams, *, safe: bool = False) -> PeerLaunch:
    """The arguments of flash-linear-attention for a call of the contract."""
    initial = params.initial_state
    if not len(params.q):
        raise NotImplementedError("flash-linear-attention launches nothing for no tokens")
    if safe:
        _refuse_unsafe(params)
    inputs = {name: getattr(params, name) for name in ("q", "k", "v", "g", "beta")}
    call = partial(
        fla_module("ops.kda").chunk_kda,
        **{name: contiguous_aligned(x).unsqueeze(0) for name, x in inputs.items()},
        **fla_gates(params),
        scale=params.scale,
        initial_state=None if initial is None else contiguous_aligned(initial.float()),
        output_final_state=params.output_final_state,
        use_qk_l2norm_in_kernel=params.qk == "raw",
        safe_gate=safe,
        state_v_first=params.state_layout == "VK",
        cu_seqlens=_shared(
            tuple(params.cu_seqlens.tolist()), params.cu_seqlens.dtype, params.cu_seqlens.device
        ),
        chunk_size=params.chunk_size if params.chunk_size in CHUNKS else CHUNK,
    )
    dtype = final_dtype(initial, params.final_state_dtype)

    def finish(result: tuple[Tensor, Tensor | None]) -> dict[str, Tensor]:
        out, final = result
        return {"o": out[0]} if final is None else {"o": out[0], "final_state": final.to(dtype)}

    return PeerLaunch(call, finish)


@cache
def _shared(bounds: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """cu_seqlens [N+1], one tensor for equal calls."""
    return torch.tensor(bounds, dtype=dtype, device=device)


def _refuse_unsafe(params: KdaPrefillParams) -> None:
    """Raises NotImplementedError for gates that safe_gate is not for."""
    name = "flash-linear-attention's safe_gate"
    if params.gate == "raw":
        raise NotImplementedError(f"{name} takes bounded gates and those in log space, not raw ones")
    least = params.lower_bound if params.gate == "bounded" else float(params.g.min())
    if least is None or not least >= LEAST_SAFE:
        raise NotImplementedError(
            f"{name} takes gates of {LEAST_SAFE:g} a token or more; the least is {least:g}"
        )


@takes_call
def fla(params: KdaPrefillParams) -> dict[str, Tensor]:
    """o [T, Hv, V], and final_state in the call's layout. Raises NotImplementedError for a call that
    flash-linear-attention does not take, ImportError if it is missing."""
    return dict(_bind(params)())


@takes_call
def prepare(params: KdaPrefillParams) -> Launch:
    """A launch of the call, compiled and tuned."""
    return warmed_up(_bind(params))


@takes_call
def fla_safe(params: KdaPrefillParams) -> dict[str, Tensor]:
    """The same with safe_gate."""
    return dict(_bind(params, safe=True)())


@takes_call
def prepare_safe(params: KdaPrefillParams) -> Launch:
    """A launch of the call with safe_gate, compiled and tuned."""
    return warmed_up(_bind(params, safe=True))
