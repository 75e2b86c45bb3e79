# SPDX-License-Identifier: Apache-2.0
"""Adapter for Hugging Face transformers: its layers of Gated DeltaNet and of Kimi Delta Attention, the chunk
and recurrent paths and the convolution before them.

    CHUNK                                          gdn_prefill
    RECURRENT, 1 token with a state in and out     gdn_decode
    RECURRENT, more tokens or without a state      gdn_prefill
    KDA_CHUNK, KDA_RECURRENT                       kda_prefill and kda_decode, in the same way
    the convolution before them                    conv_prefill and conv_decode, see transformers_conv

From 5.17 on, a layer calls the torch_* name, which calls the implementation that transformers picked. Earlier
releases bind flash-linear-attention's function or their own when a layer is built; both names are wrapped.
Tensors are q, k [B, T, H, K], v [B, T, Hv, V], g, beta [B, T, Hv], states [B, Hv, K, V]; g is a log gate,
[B, T, Hv, K] in Kimi Delta Attention. Releases before 5.23 repeat q and k to Hv heads before the call;
repeats with equal bits are recorded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import Finish, Observation, Seen, Target
from gdnbench.capture.adapters import transformers_steps
from gdnbench.capture.adapters.gdn import decode_tensors, flatten_tokens, prefill_tensors
from gdnbench.capture.adapters.transformers_conv import FORWARD, UPDATE, conv_observation, conv_results

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.capture.claims import Claims
    from gdnbench_kernels.contract import Scalar

CHUNK = ("torch_chunk_gated_delta_rule", "chunk_gated_delta_rule")
RECURRENT = ("torch_recurrent_gated_delta_rule", "fused_recurrent_gated_delta_rule")
KDA_CHUNK = ("chunk_kimi_delta_attention",)
KDA_RECURRENT = ("recurrent_kimi_delta_attention",)
KDA = KDA_CHUNK + KDA_RECURRENT
LAYERS = {
    "transformers.models.qwen3_next.modeling_qwen3_next": "Qwen3NextGatedDeltaNet",
    "transformers.models.qwen3_5.modeling_qwen3_5": "Qwen3_5GatedDeltaNet",
    "transformers.models.qwen3_5_moe.modeling_qwen3_5_moe": "Qwen3_5MoeGatedDeltaNet",
    "transformers.models.olmo_hybrid.modeling_olmo_hybrid": "OlmoHybridGatedDeltaNet",
}
KDA_LAYERS = {
    "transformers.models.kimi_linear.modeling_kimi_linear": "KimiLinearDeltaAttention",
    "transformers.models.bailing_hybrid.modeling_bailing_hybrid": "BailingHybridDeltaAttention",
    "transformers.models.glm5_next.modeling_glm5_next": "Glm5NextTextLinearAttention",
}


@dataclass(frozen=True, slots=True)
class TransformersAdapter:
    framework: str = "transformers"
    targets: tuple[Target, ...] = tuple(
        Target(module, function)
        for modules, rules in ((LAYERS, CHUNK + RECURRENT), (KDA_LAYERS, KDA))
        for module in modules
        for function in rules + FORWARD + UPDATE
    )
    scopes: tuple[Target, ...] = tuple(
        Target(module, f"{layer}.forward") for module, layer in (LAYERS | KDA_LAYERS).items()
    )
    steps: tuple[Target, ...] = transformers_steps.STEPS
    _caches: transformers_steps.CacheSteps = field(default_factory=transformers_steps.CacheSteps)

    def step(self, target: Target, arguments: Mapping[str, Any]) -> object | None:
        return self._caches.step(target, arguments)

    def claims(self, known: Any, observation: Observation) -> Claims | None:
        return transformers_steps.claims(known, observation)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        if target.function in FORWARD + UPDATE:
            return conv_observation(target.function, arguments, self._caches.first_cache, layer)
        q, k, v = (_either(arguments, *names) for names in (("query", "q"), ("key", "k"), ("value", "v")))
        state = arguments.get("initial_state")
        keep_state = bool(arguments.get("output_final_state", False))
        recurrent = target.function in RECURRENT + KDA_RECURRENT
        scale = arguments.get("scale")
        scalars: dict[str, Scalar] = {
            "scale": float(scale) if scale is not None else float(k.shape[-1]) ** -0.5,
            # Layers that allow negative eigenvalues double the sigmoid.
            "beta_max": 2.0 if getattr(layer, "allow_neg_eigval", False) else 1.0,
        }
        raw = bool(arguments.get("use_qk_l2norm_in_kernel", False))
        tensors = {"q": q, "k": k, "v": v, "g": arguments["g"], "beta": arguments["beta"]}
        family = "kda" if target.function in KDA else "gdn"
        if recurrent and q.shape[1] == 1 and state is not None and keep_state:
            op, seen = f"{family}_decode", decode_tensors(tensors, state)
        else:
            op, seen = f"{family}_prefill", prefill_tensors(tensors, state, arguments.get("cu_seqlens"))
            scalars |= {
                "chunk_size": int(arguments.get("chunk_size") or 64),
                "output_final_state": keep_state,
                "final_state_dtype": "float32",  # of every implementation, for any dtype of the initial state
            }
        return Observation(
            op=op,
            tensors=seen,
            scalars=scalars,
            conventions={
                "gate": "log",
                **({"beta_form": "value"} if family == "kda" else {}),
                "state_layout": "KV",
                "qk": "raw" if raw else "normalised",
            },
            dispatch={"path": "recurrent" if recurrent else "chunk", "qk_heads_as_called": q.shape[2]},
            whole_pools=frozenset({"state"}),
            finish=_collapse_if_repeated(q, k, v),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        if seen.op in ("conv_prefill", "conv_decode"):
            return conv_results(seen, arguments, result)
        o, state = result
        if seen.op.endswith("_decode"):
            return {"o": Seen(o), "state": Seen(state)}
        outputs = {"o": flatten_tokens(o)}
        if state is not None:
            outputs["final_state"] = Seen(state)
        return outputs

    def operations(self, target: Target) -> tuple[str, ...]:
        if target.function in FORWARD + UPDATE:
            return ("conv_decode",) if target.function in UPDATE else ("conv_prefill",)
        family = "kda" if target.function in KDA else "gdn"
        chunked = target.function in CHUNK + KDA_CHUNK
        return (f"{family}_prefill",) if chunked else (f"{family}_prefill", f"{family}_decode")

    def implementation(self, function: Callable[..., Any]) -> str | None:
        """The function that transformers' fallback wrapper closes over; otherwise the function itself."""
        code = getattr(function, "__code__", None)
        chosen: Any = function
        if code is not None and "implementation" in code.co_freevars:
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            chosen = cells["implementation"].cell_contents
        module, name = getattr(chosen, "__module__", None), getattr(chosen, "__qualname__", None)
        return f"{module}.{name}" if module and name else None


def _either(arguments: Mapping[str, Any], *names: str) -> Tensor:
    """The argument under the first of `names` that is present: transformers has `query`,
    flash-linear-attention `q`."""
    for name in names:
        if name in arguments:
            tensor: Tensor = arguments[name]
            return tensor
    raise KeyError(f"the call has no argument named {' or '.join(names)}")


def _collapse_if_repeated(q: Tensor, k: Tensor, v: Tensor) -> Finish | None:
    if q.shape[2] != v.shape[2] or k.shape[2] != q.shape[2] or q.shape[2] == 1:
        return None  # grouped heads are passed without repeats
    from gdnbench.capture.head_dedup import collapse_repeated_heads

    return collapse_repeated_heads


ADAPTER = TransformersAdapter()
