# SPDX-License-Identifier: Apache-2.0
"""Kimi Delta Attention of flash-linear-attention, for `fla.FlaAdapter`.

    chunk_kda                any tokens per sequence                               kda_prefill
    fused_recurrent_kda      1 token, no cu_seqlens, an fp32 state in and out      kda_decode
    the same                 more, or packed, or without a state                   kda_prefill

Tensors are q, k [B, T, H, K], v [B, T, Hv, V], g [B, T, Hv, K], beta [B, T, Hv], states [N, Hv, K, V], or
[N, Hv, V, K] by `state_v_first`. g is a log gate, or with `use_gate_in_kernel` the input of a gate, bounded
where there is a `lower_bound`; beta is a step size, or with `use_beta_sigmoid_in_kernel` its logit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen
from gdnbench.capture.adapters.fla_signatures import KDA_RECURRENT
from gdnbench.capture.adapters.gdn import (
    decode_tensors,
    flatten_tokens,
    prefill_tensors,
    refuse_beta_of_channels,
    refuse_mixed_dtypes,
)
from gdnbench.capture.adapters.kda import KdaForms, kda_forms

if TYPE_CHECKING:
    from gdnbench_kernels.contract import Scalar

REFUSED = {
    "cp_context": "context parallelism (cp_context)",
    "use_graph": "sequences that a CUDA graph may leave out (use_graph)",
}


def kda_observation(name: str, arguments: Mapping[str, Any], layer: object | None) -> Observation:
    """A call of the function known as `name`. NotCaptured for one that the operations do not describe."""
    q, k, v = (arguments[one] for one in ("q", "k", "v"))
    for given, what in REFUSED.items():
        if arguments.get(given):
            raise NotCaptured(f"flash-linear-attention is called with {what}, which no operation here has")
    refuse_mixed_dtypes(q, k, v)
    refuse_beta_of_channels(arguments["beta"], v)
    state, cu_seqlens = arguments.get("initial_state"), arguments.get("cu_seqlens")
    keep_state = bool(arguments.get("output_final_state"))
    forms = _forms(arguments, layer)
    scalars: dict[str, Scalar] = forms.scalars(arguments.get("scale"), k.shape[-1])
    tensors = {one: arguments[one] for one in ("q", "k", "v", "g", "beta")}
    one_each = name == KDA_RECURRENT and q.shape[1] == 1 and cu_seqlens is None
    # Final states are always fp32, so an initial state of another dtype is not updated in place: no pool.
    if one_each and state is not None and state.itemsize == 4 and keep_state:
        op, seen = "kda_decode", decode_tensors(tensors, state)
    else:
        op, seen = "kda_prefill", prefill_tensors(tensors, state, cu_seqlens)
        scalars |= {
            "chunk_size": int(arguments.get("chunk_size") or 64),
            "output_final_state": keep_state,
            "final_state_dtype": "float32",
        }
    value_first = arguments.get("state_v_first") or arguments.get("transpose_state_layout")
    states_on_the_way = arguments.get("return_intermediate_states")
    return Observation(
        op=op,
        tensors=seen | forms.parameters,
        scalars=scalars,
        conventions=forms.conventions(
            "VK" if value_first else "KV", raw_keys=bool(arguments.get("use_qk_l2norm_in_kernel"))
        ),
        dispatch={
            "path": "recurrent" if name == KDA_RECURRENT else "chunk",
            **({"not_recorded": "intermediate states"} if states_on_the_way else {}),
        },
        whole_pools=frozenset({"state"}),
    )


def _forms(arguments: Mapping[str, Any], layer: object | None) -> KdaForms:
    heads, key_dim = arguments["g"].shape[-2:]
    raw_beta = bool(arguments.get("use_beta_sigmoid_in_kernel"))
    # Before 0.5.1 the layer, not the function, doubles the sigmoid; an attribute of the layer says so.
    doubled = arguments.get("allow_neg_eigval") if raw_beta else getattr(layer, "allow_neg_eigval", False)
    return kda_forms(
        raw_gate=bool(arguments.get("use_gate_in_kernel")),
        raw_beta=raw_beta,
        lower_bound=arguments.get("lower_bound"),
        beta_max=2.0 if doubled else 1.0,
        A_log=arguments.get("A_log"),
        dt_bias=arguments.get("dt_bias"),
        sizes=(heads, key_dim),
    )


def kda_results(seen: Observation, result: Any) -> Mapping[str, Seen]:
    """o, and the states as the call left them."""
    o, state = result[:2]
    if seen.op == "kda_decode":
        return {"o": Seen(o), "state": Seen(state)}
    return {"o": flatten_tokens(o), **({} if state is None else {"final_state": Seen(state)})}
