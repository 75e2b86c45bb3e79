# SPDX-License-Identifier: Apache-2.0
"""Adapter for vLLM: Gated DeltaNet and Kimi Delta Attention (see vllm_kda) in every backend of prefill,
recurrent decode and speculative decode.

| function | recorded as | |---|---| | `ChunkGatedDeltaRule.forward_*`, and what these call: FlashInfer,
Triton, CuTe DSL, AITER | gdn_prefill | | `fused_recurrent_gated_delta_rule_packed_decode` | gdn_decode, raw
gates, q, k, v of one tensor | | `fused_sigmoid_gating_delta_rule_update` | gdn_decode, raw gates | |
`fused_recurrent_gated_delta_rule` | gdn_decode, log gates | | `fused_gdn_decode_post_conv_mtp` | gdn_decode,
raw gates, without o: the function normalises and gates it | | `causal_conv1d_fn`, `causal_conv1d_update` of
a Gated DeltaNet layer | conv_prefill, conv_decode |

States are [slots, Hv, V, K]; slot 0 is null. The layer is the module whose custom op
(`qwen_gdn_attention_core`) is running: the op calls its `_forward_core`. The step metadata of the layer,
`GDNAttentionMetadata`, goes into `dispatch`: counts as they are, tensors by value once they are on the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters import vllm_signatures as names
from gdnbench.capture.adapters.gdn import flatten_tokens, sequence_offsets
from gdnbench.capture.adapters.parallel import parallel_ranks
from gdnbench.capture.adapters.serving_conv import FUNCTIONS as CONVOLUTIONS
from gdnbench.capture.adapters.serving_conv import conv_observation, conv_results
from gdnbench.capture.adapters.serving_decode import (
    OFFSETS,
    Batch,
    finish_prefill_with_metadata,
    gate_parameters,
    metadata_tensors,
    refuse_states,
    refuse_step_sizes,
    split_features,
)
from gdnbench.capture.adapters.signatures import Signatures, qualified_name
from gdnbench.capture.adapters.vllm_kda import (
    FUNCTIONS as KDA,
)
from gdnbench.capture.adapters.vllm_kda import (
    KDA_LAYERS,
    KDA_MODULES,
    kda_observation,
    kda_results,
    known_as,
    signature_of,
)
from gdnbench.capture.adapters.vllm_kda import PREFILLS as KDA_PREFILLS
from gdnbench.capture.adapters.vllm_steps import PREPARED, STEPS, VllmStep, VllmSteps, part_of

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.capture.claims import Claims
    from gdnbench_kernels.contract import Scalar

GDN = "vllm.model_executor.layers.mamba.gdn"
QWEN, OLMO = f"{GDN}.qwen_gdn_linear_attn", f"{GDN}.olmo_gdn_linear_attn"
CUTEDSL = "vllm.model_executor.layers.mamba.ops.gdn_chunk_cutedsl"
FLA = ("vllm.third_party.flash_linear_attention.ops", "vllm.model_executor.layers.fla.ops")
"""Modules of the functions taken from flash-linear-attention: since 0.28.0 at the latest, and before."""
BACKENDS = {
    "forward_cuda": "flashinfer",
    "forward_native": "triton",
    "forward_cutedsl": "cutedsl",
    "forward_aiter_flydsl": "aiter_flydsl",
}
BOUND = {
    **{f"ChunkGatedDeltaRule.{method}": names.FORWARD for method in BACKENDS},
    **{name: name for name in names.SIGNATURES.functions if name not in (names.FORWARD, names.FLASH_MLA)},
    "fla_chunk_gated_delta_rule": names.CHUNK,
}
"""What is known of a function, by the name that it is bound to."""
PREFILLS = {
    names.FORWARD: "",
    names.CHUNK: "triton",
    names.CHUNK_FLASHINFER: "flashinfer",
    names.CHUNK_CUTEDSL: "cutedsl",
}
FP32_FINAL = ("flashinfer", "triton")
"""Backends whose final states are always fp32; those of the others have the dtype of the initial states."""
MODULES = {
    QWEN: (
        *(f"ChunkGatedDeltaRule.{method}" for method in BACKENDS),
        names.CHUNK_FLASHINFER,
        "fla_chunk_gated_delta_rule",
        names.PACKED,
        names.SIGMOID,
        names.MTP_TRITON,
        *CONVOLUTIONS,
    ),
    OLMO: (names.CHUNK, names.RECURRENT, *CONVOLUTIONS),
    CUTEDSL: (names.CHUNK_CUTEDSL,),
    "vllm._custom_ops": (names.MTP,),
    **dict.fromkeys(FLA, (names.CHUNK, names.RECURRENT, names.PACKED, names.SIGMOID)),
    **{f"{package}.chunk": (names.CHUNK,) for package in FLA},
    **{f"{package}.fused_recurrent": (names.RECURRENT, names.PACKED) for package in FLA},
    **{f"{package}.fused_sigmoid_gating": (names.SIGMOID,) for package in FLA},
    f"{FLA[0]}.fused_gdn_decode_post_conv_mtp": (names.MTP_TRITON,),
    **KDA_MODULES,
}
"""Whoever imports a function from one of these, before or after capture begins, calls a wrapper."""
CORES = (
    "_forward_core",
    "_forward_core_rocm",
    "_forward_core_fused_norm",
    "_forward_core_fused_norm_packed",
)
KDA_CORES = ("_forward",)
LAYERS = {QWEN: "QwenGatedDeltaNetAttention", OLMO: "OlmoHybridGatedDeltaNetAttention"}
NULL_SLOT = 0
COUNTS = (
    "num_prefills",
    "num_prefill_tokens",
    "num_decodes",
    "num_decode_tokens",
    "num_spec_decodes",
    "num_spec_decode_tokens",
    "num_actual_tokens",
)


def parallel() -> Mapping[str, tuple[int, int]]:
    return parallel_ranks("vllm.distributed.parallel_state", ("tp", "pp", "dp"))


@dataclass(frozen=True, slots=True)
class VllmAdapter:
    framework: str = "vllm"
    targets: tuple[Target, ...] = tuple(
        Target(module, function) for module, functions in MODULES.items() for function in functions
    )
    scopes: tuple[Target, ...] = tuple(
        Target(module, f"{layer}.{method}")
        for module, layer, methods in (
            *((module, layer, CORES) for module, layer in LAYERS.items()),
            *((module, layer, KDA_CORES) for module, layer in KDA_LAYERS.items()),
        )
        for method in methods
    )
    signatures: Signatures = field(default_factory=names.SIGNATURES.copy_unchecked, compare=False, repr=False)
    kda_signatures: Signatures = field(
        default_factory=names.KDA_SIGNATURES.copy_unchecked, compare=False, repr=False
    )
    steps: tuple[Target, ...] = STEPS
    parts_of_steps: tuple[Target, ...] = PREPARED
    _steps: VllmSteps = field(default_factory=VllmSteps, compare=False, repr=False)

    def step(self, target: Target, arguments: Mapping[str, Any]) -> VllmStep:
        return self._steps.step(target, arguments)

    def learn(self, known: VllmStep, target: Target, arguments: Mapping[str, Any], result: Any) -> None:
        self._steps.learn(known, target, arguments, result)

    def claims(self, known: VllmStep, observation: Observation) -> Claims | None:
        return None if known.batch is None else known.batch.claims(observation.part)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        if target.function in KDA:
            known = known_as(target.module, target.function)
            assert known is not None
            self.kda_signatures.check(known, arguments)
            step = step_of(layer, getattr(layer, "prefix", None))
            return kda_observation(target.function, arguments, step, known_of(step, COUNTS))
        name = BOUND[target.function]
        self.signatures.check(name, arguments)
        step = step_of(layer, getattr(layer, "prefix", None))
        if name in CONVOLUTIONS:
            return _convolution(conv_observation(name, arguments, known_of(step, COUNTS)), step)
        if name in PREFILLS:
            backend = BACKENDS.get(target.function.partition(".")[2]) or PREFILLS[name]
            return _prefill(backend, arguments, layer, step)
        return _decode(name, arguments, layer, step)

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        if seen.op in ("conv_prefill", "conv_decode"):
            return conv_results(seen, arguments, result)
        if seen.op.startswith("kda_"):
            return kda_results(seen, arguments, result)
        if seen.op == "gdn_decode":
            state = {"state": Seen(_pool(arguments))}
            if "output_gate" in arguments:
                return state
            o = result[0]
            return {"o": _batch(arguments).rows(o), **state}
        o, final = result
        outputs = {"o": flatten_tokens(o)}
        if seen.scalars["output_final_state"]:
            outputs["final_state"] = Seen(final)
        return outputs

    def operations(self, target: Target) -> tuple[str, ...]:
        if target.function in CONVOLUTIONS:
            return ("conv_prefill" if target.function == CONVOLUTIONS[0] else "conv_decode",)
        if target.function in KDA:
            prefills = target.function.rpartition(".")[2] in KDA_PREFILLS
            return ("kda_prefill" if prefills else "kda_decode",)
        return ("gdn_prefill" if BOUND[target.function] in PREFILLS else "gdn_decode",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        known = BOUND.get(function.__qualname__.removesuffix("_cpu"))
        if known is not None:
            self.signatures.compare_function(known, function)
        known = signature_of(function)
        if known is not None:
            self.kda_signatures.compare_function(known, function)
        return qualified_name(function)

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        return parallel()


def _convolution(seen: Observation, step: Any) -> Observation:
    """The observation with its part of the step. A prefill of the convolution has all sequences but those
    that verify drafts."""
    sequences, prefill = len(seen.tensors["cu_seqlens"].tensor) - 1, seen.op == "conv_prefill"
    part = part_of(step, sequences, drafted="num_accepted" in seen.tensors, prefill=prefill)
    return replace(seen, part=None if part is None else replace(part, slots=None))


def step_of(layer: object | None, prefix: str | None) -> Any:
    """The metadata of the running step for the layer, or for the cache named `prefix`; None outside a layer.

    NotCaptured if vLLM runs the layer without metadata, to measure memory or to compile kernels.
    """
    context = sys.modules.get("vllm.forward_context")
    if layer is None or context is None:
        return None
    try:
        found = context.get_forward_context().attn_metadata
    except AssertionError:  # no forward context: the layer is called directly
        return None
    step = found.get(prefix) if isinstance(found, dict) else None
    if step is None:
        raise NotCaptured("vLLM runs the layer without a request, to measure memory or to compile kernels")
    return step


def known_of(step: Any, counts: tuple[str, ...]) -> dict[str, Any]:
    """Those of the step's counts that exist."""
    return {name: int(value) for name in counts if (value := getattr(step, name, None)) is not None}


def _prefill(backend: str, arguments: Mapping[str, Any], layer: object | None, step: Any) -> Observation:
    from gdnbench_kernels.validate import dtype_name

    q, k, state = arguments["q"], arguments["k"], arguments["initial_state"]
    cu_seqlens, scale = arguments["cu_seqlens"], arguments.get("scale")
    refuse_states(state)
    seen = {name: flatten_tokens(arguments[name]) for name in ("q", "k", "v", "g", "beta")}
    seen["cu_seqlens"] = sequence_offsets(q, cu_seqlens)
    for name in ("chunk_indices", "chunk_offsets", "initial_state"):
        if arguments.get(name) is not None:
            seen[name] = Seen(arguments[name])
    seen |= metadata_tensors(
        {
            "has_initial_state": _first(step, "prefill_has_initial_state", "has_initial_state"),
            "state_indices": _first(step, "prefill_state_indices", "non_spec_state_indices_tensor"),
        }
    )
    keeps = state is not None and backend not in FP32_FINAL
    return Observation(
        op="gdn_prefill",
        tensors=seen,
        scalars={
            **_scalars(scale, k.shape[-1], layer),
            "chunk_size": 64,
            "output_final_state": bool(arguments.get("output_final_state", True)),
            "final_state_dtype": dtype_name(state.dtype) if keeps else "float32",
        },
        conventions={
            "gate": "log",
            "state_layout": "VK",
            "qk": "raw" if arguments.get("use_qk_l2norm_in_kernel") else "normalised",
        },
        dispatch={
            "path": "chunk",
            "backend": backend,
            **({"not_recorded": "state_checkpoints"} if arguments.get("checkpoint_every_n_tokens") else {}),
        },
        finish=finish_prefill_with_metadata(known_of(step, COUNTS)),
        part=part_of(step, len(cu_seqlens) - 1, prefill=True) if cu_seqlens is not None else None,
    )


def _decode(name: str, arguments: Mapping[str, Any], layer: object | None, step: Any) -> Observation:
    _refuse_decode(name, arguments)
    pool, batch = _pool(arguments), _batch(arguments)
    raw = "A_log" in arguments
    if "mixed_qkv" in arguments:
        q, k, v = split_features(arguments["mixed_qkv"], pool)
    else:
        q, k, v = (arguments[one] for one in ("q", "k", "v"))
    gates = (arguments["a"], arguments["b"]) if raw else (arguments["g"], arguments["beta"])
    seen = {one: batch.rows(tensor) for one, tensor in (("q", q), ("k", k), ("v", v))}
    seen |= {
        one: batch.rows(tensor, tensor.ndim - 1) for one, tensor in zip(("g", "beta"), gates, strict=True)
    }
    if raw:
        seen |= gate_parameters(arguments["A_log"], arguments["dt_bias"])
    seen |= {"state": Seen(pool), **batch.indices()}
    given = {OFFSETS: arguments.get("cu_seqlens"), "num_accepted_tokens": batch.accepted}
    seen |= metadata_tensors(given if batch.ragged else {OFFSETS: given[OFFSETS]})
    hidden = {"not_recorded": "o, which the kernel normalises and gates"}
    return Observation(
        op="gdn_decode",
        tensors=seen,
        scalars=_scalars(arguments.get("scale"), k.shape[-1], layer if not raw else None),
        conventions={
            "gate": "raw" if raw else "log",
            "state_layout": "VK",
            "qk": "raw" if arguments.get("use_qk_l2norm_in_kernel", True) else "normalised",
        },
        dispatch={"path": name, **(hidden if "output_gate" in arguments else {})},
        finish=batch.finish(known_of(step, COUNTS)),
        part=part_of(step, batch.sequences, drafted=batch.accepted is not None),
    )


def _batch(arguments: Mapping[str, Any]) -> Batch:
    mixed = arguments.get("mixed_qkv")
    slots = arguments["state_indices" if "state_indices" in arguments else "ssm_state_indices"]
    tokens = len(mixed) if mixed is not None else arguments["q"].shape[:2].numel()
    return Batch(
        tokens, slots, arguments.get("cu_seqlens"), arguments.get("num_accepted_tokens"), null=NULL_SLOT
    )


def _pool(arguments: Mapping[str, Any]) -> Tensor:
    """The states that the call updates in place."""
    pool: Tensor = arguments["state" if "state" in arguments else "initial_state"]
    return pool


def _scalars(scale: float | None, key_dim: int, layer: object | None) -> dict[str, Scalar]:
    """Scalars of gdn_decode; layers that allow negative eigenvalues double the sigmoid before the call."""
    return {
        "scale": float(scale) if scale is not None else float(key_dim) ** -0.5,
        "beta_max": 2.0 if getattr(layer, "allow_neg_eigval", False) else 1.0,
    }


def _refuse_decode(name: str, arguments: Mapping[str, Any]) -> None:
    """NotCaptured for a call that gdn_decode does not describe."""
    if arguments.get("is_kda"):
        raise NotCaptured("gates of every key channel (is_kda), in a function that no layer of vLLM calls so")
    if name == names.SIGMOID and arguments["beta"] != 1.0:
        raise NotCaptured("the softplus of the gate has another slope than 1")
    in_place = arguments.get("inplace_final_state", True) and _pool(arguments) is not None
    if not in_place or arguments.get("ssm_state_indices", arguments.get("state_indices")) is None:
        raise NotCaptured("states are not updated in a pool; the operation has nothing else")
    if name == names.RECURRENT:
        refuse_step_sizes(arguments.get("beta"), arguments["v"])
    refuse_states(_pool(arguments))


def _first(step: Any, *attributes: str) -> Tensor | None:
    """The first of these attributes that the step has: older releases have the latter."""
    found = (getattr(step, name, None) for name in attributes)
    return next((tensor for tensor in found if tensor is not None), None)
