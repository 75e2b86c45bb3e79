# SPDX-License-Identifier: Apache-2.0
"""Adapter for flash-linear-attention: the chunk and recurrent functions of the gated delta rule, and those of
Kimi Delta Attention and of the convolution, see fla_kda and fla_conv.

| function | tokens per sequence | recorded as | |---|---|---| | `chunk_gated_delta_rule` | any | gdn_prefill
| | `fused_recurrent_gated_delta_rule` | 1, no cu_seqlens, an fp32 state in and out | gdn_decode | | the same
| more, or packed, or without a state | gdn_prefill |

Tensors are q, k [B, T, H, K], v [B, T, Hv, V], g, beta [B, T, Hv], states [N, Hv, K, V], or [N, Hv, V, K] by
`state_v_first`; g is a log gate. Decoding with raw gates (`use_gate_in_kernel` with
`use_beta_sigmoid_in_kernel`) is recorded with raw gates. gdn_prefill has no raw gates: for it, capture
computes the functions' formulas in fp32, g = -exp(A_log) softplus(a + dt_bias) and beta = sigmoid(b).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gdnbench.capture.adapter import NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters.fla_conv import conv_observation, conv_results
from gdnbench.capture.adapters.fla_kda import kda_observation, kda_results
from gdnbench.capture.adapters.fla_signatures import (
    CHUNK,
    CONV,
    CONV_UPDATE,
    KDA_CHUNK,
    KDA_RECURRENT,
    RECURRENT,
    SIGNATURES,
)
from gdnbench.capture.adapters.gdn import (
    decode_tensors,
    flatten_tokens,
    refuse_beta_of_channels,
    refuse_mixed_dtypes,
    sequence_offsets,
)
from gdnbench.capture.adapters.signatures import Signatures, qualified_name

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench_kernels.contract import Scalar

NAMES = {
    CHUNK: CHUNK,
    "chunk_gdn": CHUNK,
    RECURRENT: RECURRENT,
    "fused_recurrent_gdn": RECURRENT,
    KDA_CHUNK: KDA_CHUNK,
    KDA_RECURRENT: KDA_RECURRENT,
    CONV: CONV,
    CONV_UPDATE: CONV_UPDATE,
}
"""The functions by the names that they are bound to."""
RULES = ("chunk_gdn", "fused_recurrent_gdn", CHUNK, RECURRENT)
KDA = (KDA_CHUNK, KDA_RECURRENT)
OPS, KDA_OPS = "fla.ops.gated_delta_rule", "fla.ops.kda"
MODULES = {
    f"{OPS}.chunk": (CHUNK, "chunk_gdn"),
    f"{OPS}.fused_recurrent": (RECURRENT, "fused_recurrent_gdn"),
    OPS: RULES,
    f"{KDA_OPS}.chunk": (KDA_CHUNK,),
    f"{KDA_OPS}.fused_recurrent": (KDA_RECURRENT,),
    KDA_OPS: KDA,
    "fla.ops": RULES + KDA,
    "fla.layers.gated_deltanet": (CHUNK, RECURRENT, CONV),
    "fla.layers.gated_deltaproduct": (RECURRENT,),
    "fla.layers.kda": KDA,
    "fla.layers.mom": (CHUNK, RECURRENT),
    "fla.modules.causal_conv1d.ops": (CONV, CONV_UPDATE),
    "fla.modules.causal_conv1d": (CONV, CONV_UPDATE),
    "fla.modules.conv.causal_conv1d": (CONV,),
    "fla.modules.conv.short_conv": (CONV, CONV_UPDATE),
    "fla.modules.convolution": (CONV, CONV_UPDATE),
}
"""Whoever imports a function from one of these, before or after capture begins, calls a wrapper."""
LAYERS = {
    "fla.layers.gated_deltanet": "GatedDeltaNet",
    "fla.layers.gated_deltaproduct": "GatedDeltaProduct",
    "fla.layers.kda": "KimiDeltaAttention",
    "fla.layers.mom": "MomAttention",
    "fla.modules.causal_conv1d.ops": "ShortConvolution",
    "fla.modules.conv.short_conv": "ShortConvolution",
    "fla.modules.convolution": "ShortConvolution",
}
REFUSED = {
    "gk": "gates of every key channel (gk)",
    "gv": "gates of every value channel (gv)",
    "cp_context": "context parallelism (cp_context)",
    "head_first": "tensors with heads first (head_first)",
    "use_exp2": "gates to the base 2 (use_exp2)",
}


class _Gates(NamedTuple):
    form: str  # value of the convention gate
    beta_max: float
    tensors: dict[str, Seen]  # g and beta [B, T, Hv]; A_log and dt_bias [Hv] where raw
    made: tuple[str, ...]  # which of g and beta capture computed, as the function does internally


@dataclass(frozen=True, slots=True)
class FlaAdapter:
    framework: str = "fla"
    targets: tuple[Target, ...] = tuple(
        Target(module, function) for module, functions in MODULES.items() for function in functions
    )
    scopes: tuple[Target, ...] = tuple(Target(module, f"{layer}.forward") for module, layer in LAYERS.items())
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        name = NAMES[target.function]
        self.signatures.check(name, arguments)
        if name in (CONV, CONV_UPDATE):
            return conv_observation(name, arguments)
        if name in KDA:
            return kda_observation(name, arguments, layer)
        q, k, v = (arguments[one] for one in ("q", "k", "v"))
        _refuse(q, k, v, arguments)
        state, cu_seqlens = arguments.get("initial_state"), arguments.get("cu_seqlens")
        keep_state = bool(arguments.get("output_final_state"))
        one_each = name == RECURRENT and q.shape[1] == 1 and cu_seqlens is None
        # Final states are always fp32, so an initial state of another dtype is not updated in place: no pool.
        updates = state is not None and state.itemsize == 4 and keep_state
        gates = _gates(arguments, v, layer, raw=one_each and updates)
        scale = arguments.get("scale")
        scalars: dict[str, Scalar] = {
            "scale": float(scale) if scale is not None else float(k.shape[-1]) ** -0.5,
            "beta_max": gates.beta_max,
        }
        if one_each and updates and state is not None:
            op, seen = "gdn_decode", decode_tensors({"q": q, "k": k, "v": v}, state) | gates.tensors
        else:
            op, seen = "gdn_prefill", {"q": flatten_tokens(q), "k": flatten_tokens(k), "v": flatten_tokens(v)}
            seen |= {one: flatten_tokens(made, caller) for one, (made, _, caller) in gates.tensors.items()}
            seen["cu_seqlens"] = sequence_offsets(q, cu_seqlens)
            if state is not None:
                seen["initial_state"] = Seen(state)
            scalars |= {
                "chunk_size": int(arguments.get("chunk_size") or 64),
                "output_final_state": keep_state,
                "final_state_dtype": "float32",
            }
        value_first = arguments.get("state_v_first") or arguments.get("transpose_state_layout")
        raw_keys = bool(arguments.get("use_qk_l2norm_in_kernel"))
        return Observation(
            op=op,
            tensors=seen,
            scalars=scalars,
            conventions={
                "gate": gates.form,
                "state_layout": "VK" if value_first else "KV",
                "qk": "raw" if raw_keys else "normalised",
            },
            dispatch={
                "path": "chunk" if name == CHUNK else "recurrent",
                **({"made_by_capture": list(gates.made)} if gates.made else {}),
            },
            whole_pools=frozenset({"state"}),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        if seen.op in ("conv_prefill", "conv_decode"):
            return conv_results(seen, arguments, result)
        if seen.op.startswith("kda_"):
            return kda_results(seen, result)
        o, state = result
        if seen.op == "gdn_decode":
            return {"o": Seen(o), "state": Seen(state)}
        return {"o": flatten_tokens(o), **({} if state is None else {"final_state": Seen(state)})}

    def operations(self, target: Target) -> tuple[str, ...]:
        name = NAMES[target.function]
        if name in (CONV, CONV_UPDATE):
            return ("conv_prefill",) if name == CONV else ("conv_decode",)
        if name in KDA:
            return ("kda_prefill",) if name == KDA_CHUNK else ("kda_prefill", "kda_decode")
        return ("gdn_prefill",) if name == CHUNK else ("gdn_prefill", "gdn_decode")

    def implementation(self, function: Callable[..., Any]) -> str | None:
        known = NAMES.get(function.__name__)
        if known is not None:
            self.signatures.compare_function(known, function)
        return qualified_name(function)


def _refuse(q: Tensor, k: Tensor, v: Tensor, arguments: Mapping[str, Any]) -> None:
    """NotCaptured for a call that neither operation describes."""
    for name, what in REFUSED.items():
        given = arguments.get(name)
        if given is not None and given is not False:
            raise NotCaptured(f"flash-linear-attention is called with {what}, which no operation here has")
    refuse_mixed_dtypes(q, k, v)
    beta = arguments.get("beta")
    if beta is not None:
        refuse_beta_of_channels(beta, v)
    if beta is None and q.shape[2] != v.shape[2]:
        raise NotCaptured("beta is left out where there are more value heads than key heads")


def _gates(arguments: Mapping[str, Any], v: Tensor, layer: object | None, *, raw: bool) -> _Gates:
    """g and beta of v [B, T, Hv, V].

    `raw`: as passed, if both are raw; otherwise computed by the functions' formulas in fp32.
    """
    import torch

    from gdnbench_kernels.gdn_decode.gates import Gates

    g, beta = arguments.get("g"), arguments.get("beta")
    raw_gate = bool(arguments.get("use_gate_in_kernel"))
    raw_beta = bool(arguments.get("use_beta_sigmoid_in_kernel"))
    # Before 0.5.1 the layer, not the function, doubles the sigmoid; an attribute of the layer says so.
    doubled = arguments.get("allow_neg_eigval") if raw_beta else getattr(layer, "allow_neg_eigval", False)
    beta_max = 2.0 if doubled else 1.0
    heads, tensors, made = v.shape[2], {}, []
    with torch.no_grad():
        if raw_gate and g is not None:
            a_log, bias = arguments["A_log"], arguments.get("dt_bias")
            shift = torch.zeros(heads, device=v.device) if bias is None else bias.float()
            if raw and raw_beta and beta is not None:
                tensors = {"g": Seen(g), "beta": Seen(beta)}
                tensors |= {"A_log": Seen(a_log.float(), None, a_log), "dt_bias": Seen(shift, None, bias)}
                return _Gates("raw", beta_max, tensors, ())
            form = Gates("raw", a_log, shift, beta_max)
            tensors["g"] = Seen(form.log_decay(g, torch.float32), None, g)
            made.append("g")
        else:
            tensors["g"] = Seen(g if g is not None else torch.zeros(v.shape[:3], device=v.device))
        if raw_beta and beta is not None:
            tensors["beta"] = Seen(beta_max * beta.float().sigmoid(), None, beta)
            made.append("beta")
        else:
            tensors["beta"] = Seen(beta if beta is not None else torch.ones(v.shape[:3], device=v.device))
    return _Gates("log", beta_max, tensors, tuple(made))
