"""The kernels named `flashinfer` and `flashinfer_k3` of kda_decode: FlashInfer's recurrent_kda.

    flashinfer      on the pool itself, the sequences packed to [1, B*S, ...] with cu_seqlens, as SGLang calls
                    it; with S > 1 each token's state goes to its own slot
    flashinfer_k3   one token of Kimi K3's 12 heads, [B, 1, ...] without cu_seqlens: the kernel that is also
                    that of its packed q, k and v

A launch is that call. Before the launch this module makes int32 tensors of the slots to read and to write,
zeros for a rate A_log that is absent, and copies of inputs that are not contiguous. Calls in which a kernel
would skip a token or access a slot that the call does not name are refused.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.kda_decode.params import KdaDecodeParams
from gdnbench_kernels.kda_peers import flashinfer_gates
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.peers import (
    ALIGN,
    PeerLaunch,
    call_kind,
    contiguous_aligned,
    flashinfer_call,
    flashinfer_module,
    output_of,
    require_dtypes,
    warmed_up,
)
from gdnbench_kernels.state_slots import PADDING, SlotPlan, plan_slots

NAME = "FlashInfer's KDA decode"
K3 = "FlashInfer's KDA decode of 12 heads"
HEAD_DIMS = (64, 128)
K3_HEADS, K3_DIM, K3_BOUND = 12, 128, -5.0
BFLOAT16 = torch.bfloat16

takes_call = takes_params(KdaDecodeParams, without=("state_layout",))
takes_raw_qk = takes_params(KdaDecodeParams, without=("state_layout", "qk"))


@dataclass(frozen=True, slots=True)
class _Bound:
    launch: PeerLaunch
    touched: Tensor  # int64: slots that the launch reads or writes


def _bind(params: KdaDecodeParams, o: Tensor | None) -> _Bound:
    """The arguments of FlashInfer for a call of the contract whose pool is [slots, Hv, V, K]."""
    plan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
    _refuse(params, plan, NAME)
    batch, steps = params.q.shape[:2]
    out = output_of(o, params.v.shape, BFLOAT16, params.v.device)
    inputs = {name: getattr(params, name) for name in ("q", "k", "v", "g", "beta")}
    slots = _slots_to_write(params, plan)
    given: dict[str, Any] = {
        name: contiguous_aligned(x.flatten(0, 1)).unsqueeze(0) for name, x in inputs.items()
    }
    given |= {
        "output": out.buffer.view(1, batch * steps, *params.v.shape[2:]),
        "scale": params.scale,
        "initial_state": params.state,
        "use_qk_l2norm_in_kernel": params.qk == "raw",
        "cu_seqlens": torch.arange(batch + 1, dtype=torch.int32, device=slots.device) * steps,
        "ssm_state_indices": slots if steps > 1 else slots[:, 0].contiguous(),
    }
    if steps > 1:
        given |= {"num_spec_tokens": steps - 1}
        if params.num_accepted is not None:
            given["num_accepted_tokens"] = contiguous_aligned(params.num_accepted)
    if params.read_indices is not None:
        given |= {"initial_state_source": params.state}
        given |= {"initial_state_indices": contiguous_aligned(params.read_indices.int())}
    call = partial(
        flashinfer_call, flashinfer_module("kda").recurrent_kda, **given, **flashinfer_gates(params)
    )
    return _Bound(PeerLaunch(call, lambda result: {"o": out.finish()}), plan.touched)


def _bind_k3(params: KdaDecodeParams, o: Tensor | None) -> _Bound:
    """The arguments of FlashInfer for one token of 12 heads."""
    plan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
    _refuse(params, plan, K3)
    _refuse_k3(params, plan)
    out = output_of(o, params.v.shape, BFLOAT16, params.v.device)
    inputs = {name: contiguous_aligned(getattr(params, name)) for name in ("q", "k", "v", "g", "beta")}
    call = partial(
        flashinfer_call,
        flashinfer_module("kda").recurrent_kda,
        **inputs,
        output=out.buffer,
        scale=params.scale,
        initial_state=params.state,
        use_qk_l2norm_in_kernel=True,
        ssm_state_indices=_slots_to_write(params, plan)[:, 0].contiguous(),
        **flashinfer_gates(params),
    )
    return _Bound(PeerLaunch(call, lambda result: {"o": out.finish()}), plan.touched)


def _slots_to_write(params: KdaDecodeParams, plan: SlotPlan) -> Tensor:
    """[B, S] int32; -1 for every token of a padding sequence."""
    slots = torch.full_like(params.state_indices, PADDING, dtype=torch.int32)
    slots[plan.active] = plan.write.int()
    return slots


def _refuse(params: KdaDecodeParams, plan: SlotPlan, name: str) -> None:
    """Raises NotImplementedError for a call that FlashInfer's recurrent kernels do not take."""
    q, v, state = params.q, params.v, params.state
    if q.shape[-1] != v.shape[-1] or q.shape[-1] not in HEAD_DIMS:
        sizes = " or ".join(map(str, HEAD_DIMS))
        raise NotImplementedError(
            f"{name} takes K = V = {sizes}, not K = {q.shape[-1]} and V = {v.shape[-1]}"
        )
    for field in ("q", "k", "v", "g", "beta", "state"):
        require_dtypes(name, field, getattr(params, field), BFLOAT16)
    for field in ("A_log", "dt_bias"):
        require_dtypes(name, field, getattr(params, field), torch.float32)
    if params.gate != "log" and q.shape[2] != v.shape[2]:
        raise NotImplementedError(f"{name} takes A_log and dt_bias of key heads, not of value heads")
    if params.beta_form == "logit" and params.beta_max != 1:
        raise NotImplementedError(
            f"{name} makes beta = sigmoid(b), at most 1; beta_max is {params.beta_max:g}"
        )
    if not state[:1].is_contiguous() or state.data_ptr() % ALIGN or state.stride(0) * state.itemsize % ALIGN:
        raise NotImplementedError(f"{name} takes slots that are contiguous and aligned to {ALIGN} bytes")
    if not len(q):
        raise NotImplementedError(f"{name} launches nothing for no sequences")
    if (plan.write == PADDING).any():
        raise NotImplementedError(f"{name} skips a token whose slot is -1")


def _refuse_k3(params: KdaDecodeParams, plan: SlotPlan) -> None:
    """Raises NotImplementedError for a call that the kernel of 12 heads does not take."""
    shape = (*params.q.shape[1:], params.v.shape[2])
    if shape != (1, K3_HEADS, K3_DIM, K3_HEADS):
        raise NotImplementedError(
            f"{K3} takes S = 1, H = Hv = {K3_HEADS} and K = {K3_DIM}, not S = {shape[0]}, H = {shape[1]},"
            f" Hv = {shape[3]} and K = {shape[2]}"
        )
    forms = params.gate, params.beta_form
    if forms not in (("bounded", "logit"), ("log", "value")):
        raise NotImplementedError(
            f"{K3} takes a bounded gate with a logit, or a log gate with a value of beta"
        )
    if params.gate == "bounded" and (params.lower_bound != K3_BOUND or params.dt_bias is None):
        raise NotImplementedError(f"{K3} takes a lower_bound of {K3_BOUND:g} and a dt_bias")
    if default_scale(params.scale, K3_DIM) != default_scale(None, K3_DIM):
        raise NotImplementedError(f"{K3} scales by K ** -0.5, not by {params.scale}")
    if params.read_indices is not None and not torch.equal(plan.read, plan.write[:, 0]):
        raise NotImplementedError(f"{K3} writes a state to the slot that it was read from")


@takes_call
def flashinfer(params: KdaDecodeParams, *, o: Tensor | None = None) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, V, K] in place and return o [B, S, Hv, V]. Raises NotImplementedError for a
    call that FlashInfer does not take, ImportError if it is missing."""
    return dict(_bind(params, o).launch())


@takes_call
def prepare(params: KdaDecodeParams, *, o: Tensor | None = None) -> Launch:
    """A launch of the call, compiled; the pool is unchanged."""
    return _warmed_up("flashinfer", _bind(params, o), params, o)


@takes_raw_qk
def flashinfer_k3(params: KdaDecodeParams, *, o: Tensor | None = None) -> dict[str, Tensor]:
    """Update `state` [slots, 12, 128, 128] in place from raw q and k, and return o [B, 1, 12, 128]. Raises
    NotImplementedError for a call that this kernel does not take, ImportError if FlashInfer is missing."""
    return dict(_bind_k3(params, o).launch())


@takes_raw_qk
def prepare_k3(params: KdaDecodeParams, *, o: Tensor | None = None) -> Launch:
    """A launch of the call, compiled; the pool is unchanged."""
    return _warmed_up("flashinfer_k3", _bind_k3(params, o), params, o)


def _warmed_up(name: str, bound: _Bound, params: KdaDecodeParams, o: Tensor | None) -> Launch:
    kind = call_kind(name, {**by_name(params), "o": o})
    return warmed_up(bound.launch, params.state, bound.touched, kind)
