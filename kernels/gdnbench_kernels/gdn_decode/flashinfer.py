"""The kernel named `flashinfer` of gdn_decode: FlashInfer's decode kernels on the pool itself.

    S = 1                   gated_delta_rule_decode_pretranspose, states fp32 or bf16
    S > 1, fp32 states      gated_delta_rule_mtp, each token's state to its own slot
    S > 1, bf16 states      gdn_kernels.gated_delta_rule_mtp, the same: no function above it takes the slots

A launch is that call. Before the launch this module makes separate tensors of the slots to read and to write,
and copies inputs that are not contiguous. FlashInfer computes gates from a, b, A_log and dt_bias and takes no
others. Its kernels treat a slot of -1 differently; calls in which a kernel would access a slot that the call
does not name are refused.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.peers import (
    ALIGN,
    PeerLaunch,
    call_kind,
    contiguous_aligned,
    flashinfer_call,
    flashinfer_module,
    output_of,
    require_dims,
    require_dtypes,
    warmed_up,
)
from gdnbench_kernels.state_slots import PADDING, SlotPlan, plan_slots

NAME = "FlashInfer's decode"
HEAD_DIM = 128
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32


@dataclass(frozen=True, slots=True)
class _Bound:
    launch: PeerLaunch
    state: Tensor
    touched: Tensor  # int64: slots that the launch reads or writes


takes_call = takes_params(DecodeParams, without=("gate", "state_layout"), required=("A_log", "dt_bias"))


def _bind(params: DecodeParams, o: Tensor | None) -> _Bound:
    """The arguments of FlashInfer for a call of the contract with gate raw: `g` is a, `beta` is b, [B, S,
    Hv]."""
    _refuse(params)
    q, v, state = params.q, params.v, params.state
    state_indices, read_indices = params.state_indices, params.read_indices
    batch, steps = q.shape[:2]
    plan = plan_slots(state_indices, params.num_accepted, read_indices)
    _refuse_padding(plan, batch, steps, state.dtype)
    read = torch.full((batch,), PADDING, dtype=torch.int32, device=q.device)
    read[plan.active] = plan.read.int()
    out = output_of(o, v.shape, BFLOAT16, v.device)
    taken = {"q": "q", "k": "k", "v": "v", "a": "g", "b": "beta", "A_log": "A_log", "dt_bias": "dt_bias"}
    given: dict[str, Any] = {
        name: contiguous_aligned(getattr(params, field)) for name, field in taken.items()
    }
    given |= {
        "output": out.buffer,
        "scale": default_scale(params.scale, HEAD_DIM),
        "initial_state_indices": contiguous_aligned(read),
    }
    if steps == 1:
        function = flashinfer_module("gdn_decode").gated_delta_rule_decode_pretranspose
        given |= {"state": None, "initial_state": state, "use_qk_l2norm": params.qk == "raw"}
        write = contiguous_aligned(state_indices[:, 0])
        if read_indices is not None and not torch.equal(write[plan.active], read[plan.active]):
            given["output_state_indices"] = write
    else:
        given["ssm_state_indices"] = contiguous_aligned(state_indices)
        if state.dtype == FLOAT32:
            function = flashinfer_module("gdn_decode").gated_delta_rule_mtp
            given |= {
                "initial_state": state,
                "disable_state_update": False,
                "use_qk_l2norm": params.qk == "raw",
            }
        else:
            module = flashinfer_module("gdn_kernels.gdn_decode_bf16_state")
            function = module.gated_delta_rule_mtp
            given |= {"initial_state_source": state, "use_qk_l2norm_in_kernel": params.qk == "raw"}
    call = partial(flashinfer_call, function, **given)
    launch = PeerLaunch(call, lambda result: {"o": out.finish()})
    written = plan.write[plan.write != PADDING]
    return _Bound(launch, state, torch.unique(torch.cat([plan.read, written])))


@takes_call
def flashinfer(params: DecodeParams, *, o: Tensor | None = None) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, V, K] in place and return o [B, S, Hv, V]. Raises NotImplementedError for a
    call that FlashInfer does not take, ImportError if it is missing."""
    if not len(params.q):
        return {}
    return dict(_bind(params, o).launch())


@takes_call
def prepare(params: DecodeParams, *, o: Tensor | None = None) -> Launch:
    """A launch of the call, compiled; the pool is unchanged."""
    bound = _bind(params, o)
    return warmed_up(
        bound.launch, bound.state, bound.touched, call_kind("flashinfer", {**by_name(params), "o": o})
    )


def _refuse(params: DecodeParams) -> None:
    """Raises NotImplementedError for forms that FlashInfer does not take, or takes only by rounding them."""
    q, state, beta_max = params.q, params.state, params.beta_max
    require_dims(NAME, params.k, params.v, HEAD_DIM)
    for name in ("q", "k", "v"):
        require_dtypes(NAME, name, getattr(params, name), BFLOAT16)
    require_dtypes(NAME, "state", state, FLOAT32, BFLOAT16)
    require_dtypes(NAME, "A_log", params.A_log, FLOAT32)
    require_dtypes(NAME, "dt_bias", params.dt_bias, FLOAT32, BFLOAT16)
    # The kernels for several tokens and for bf16 states round a and b to bf16 first.
    rounds = q.shape[1] > 1 or state.dtype == BFLOAT16
    for name, tensor in (("a", params.g), ("b", params.beta)):
        require_dtypes(NAME, name, tensor, *((BFLOAT16,) if rounds else (BFLOAT16, torch.float16, FLOAT32)))
    if beta_max != 1:
        raise NotImplementedError(f"{NAME} makes beta = sigmoid(b), at most 1; beta_max is {beta_max:g}")
    if not state[:1].is_contiguous() or state.data_ptr() % ALIGN or state.stride(0) * state.itemsize % ALIGN:
        raise NotImplementedError(f"{NAME} takes slots that are contiguous and aligned to {ALIGN} bytes")
    if q.shape[1] > 1 and state.dtype == FLOAT32 and not state.is_contiguous():
        raise NotImplementedError(
            f"{NAME} of several tokens does not compile for fp32 slots further apart than they are long"
        )


def _refuse_padding(plan: SlotPlan, batch: int, steps: int, dtype: torch.dtype) -> None:
    """Raises NotImplementedError for slots of -1 by which a kernel would write a slot that the call does not
    name: it replaces -1 by 0, or uses -1 as an index."""
    if dtype == BFLOAT16 and len(plan.active) < batch:
        raise NotImplementedError(
            f"{NAME} with bf16 states takes slot 0 for a sequence whose slot is -1, and overwrites it"
        )
    if (plan.write == PADDING).any():
        where = "slot 0" if steps == 1 else "before the pool"
        raise NotImplementedError(f"{NAME} writes the state of a token whose slot is -1 to {where}")
