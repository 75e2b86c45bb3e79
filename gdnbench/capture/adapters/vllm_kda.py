# SPDX-License-Identifier: Apache-2.0
"""Kimi Delta Attention of vLLM, for `vllm.VllmAdapter`.

    chunk_kda_with_fused_gate, chunk_kda                   kda_prefill
    _flashkda_prefill, _flashinfer_kda_prefill             kda_prefill, bounded gate
    fused_recurrent_kda_packed_decode                      kda_decode, q, k, v as views of one tensor
    fused_recurrent_kda, fused_recurrent_kda_fwd           kda_decode, of S tokens where drafts are verified
    kda_recoverssm_verify                                  kda_decode, S tokens, no slot written

Three packages have functions of these names, with parameters of their own: `kimi_k3`, which Kimi-Linear and
AliceAI call too, `glm5next`, and vLLM's copy of flash-linear-attention (`fla`), which Ling-3.0 calls. States
are [slots, Hv, V, K]; slot 0 is null. The layer is the module whose `_forward` is running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen
from gdnbench.capture.adapters.gdn import flatten_tokens, sequence_offsets
from gdnbench.capture.adapters.kda import KdaForms, kda_forms
from gdnbench.capture.adapters.serving_decode import (
    OFFSETS,
    Batch,
    finish_prefill_with_metadata,
    metadata_tensors,
    refuse_states,
    refuse_step_sizes,
    split_features,
)
from gdnbench.capture.adapters.slots import int32_slots, unwritten_slots
from gdnbench.capture.adapters.vllm_signatures import KDA_SIGNATURES
from gdnbench.capture.adapters.vllm_steps import part_of

if TYPE_CHECKING:
    from torch import Tensor

CHUNK, FUSED_GATE = "chunk_kda", "chunk_kda_with_fused_gate"
RECURRENT, RECURRENT_FORWARD = "fused_recurrent_kda", "fused_recurrent_kda_fwd"
PACKED, VERIFY = "fused_recurrent_kda_packed_decode", "kda_recoverssm_verify"
FLASHKDA, FLASHINFER = "_flashkda_prefill", "_flashinfer_kda_prefill"
GLM_FLASHKDA = f"Glm5NextLinearAttention.{FLASHKDA}"
PREFILLS = {FUSED_GATE: "triton", CHUNK: "triton", FLASHKDA: "flashkda", FLASHINFER: "flashinfer"}
K3, GLM = "vllm.models.kimi_k3", "vllm.models.glm5next"
FLA = "vllm.third_party.flash_linear_attention.ops.kda"
BAILING = "vllm.model_executor.models.bailing_moe_v3"
KIMI_LINEAR = "vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn"
VENDORS = ("nvidia", "amd")
KDA_MODULES: dict[str, tuple[str, ...]] = {
    **{f"{K3}.{vendor}.ops.third_party.kda": (CHUNK, FUSED_GATE, RECURRENT, PACKED) for vendor in VENDORS},
    **{f"{K3}.{vendor}.ops.third_party.kda.chunk": (CHUNK, FUSED_GATE) for vendor in VENDORS},
    **{f"{K3}.{vendor}.ops.third_party.kda.fused_recurrent": (RECURRENT, PACKED) for vendor in VENDORS},
    f"{K3}.nvidia.ops.recoverssm": (VERIFY,),
    f"{K3}.nvidia.kda": (FLASHKDA, FLASHINFER, VERIFY),
    f"{K3}.amd.kda": (RECURRENT, PACKED),
    **{f"{GLM}.{vendor}.ops.third_party.kda": (FUSED_GATE, RECURRENT) for vendor in VENDORS},
    **{f"{GLM}.{vendor}.ops.third_party.kda.kernels": (FUSED_GATE, RECURRENT) for vendor in VENDORS},
    f"{GLM}.common.kda": (FUSED_GATE, RECURRENT, GLM_FLASHKDA),
    FLA: (CHUNK, FUSED_GATE, RECURRENT, RECURRENT_FORWARD),
    BAILING: (CHUNK, RECURRENT, RECURRENT_FORWARD),
}
"""Whoever imports a function from one of these, before or after capture begins, calls a wrapper."""
KDA_LAYERS = {
    f"{K3}.nvidia.kda": "KimiK3DeltaAttention",
    f"{K3}.amd.kda": "KimiK3DeltaAttention",
    KIMI_LINEAR: "KimiGatedDeltaNetAttention",
    f"{GLM}.common.kda": "Glm5NextLinearAttention",
    BAILING: "BailingMoeV3KimiDeltaAttention",
}
FUNCTIONS = frozenset(name for names in KDA_MODULES.values() for name in names)
NULL_SLOT = 0


def known_as(module: str, function: str) -> str | None:
    """The name in `KDA_SIGNATURES` of a function of a module; None for another function."""
    package = next((one for one in ("kimi_k3", "glm5next") if f".{one}." in module), "fla")
    name = f"{package}.{function}"
    return name if name in KDA_SIGNATURES.functions else None


def kda_observation(
    function: str, arguments: Mapping[str, Any], step: Any, known: Mapping[str, Any]
) -> Observation:
    """A call of `function` in a step of the layer; `known` are its counts. NotCaptured for a call that the
    operations do not describe."""
    name = function.rpartition(".")[2]
    if name in PREFILLS:
        return _prefill(name, arguments, step, known)
    return _decode(name, arguments, step, known)


def kda_results(seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
    """o, and the states as the call left them."""
    o = result[0] if isinstance(result, tuple) else result
    if seen.op == "kda_decode":
        return {"o": _batch(arguments).rows(o), "state": Seen(_pool(arguments))}
    outputs = {"o": flatten_tokens(o)}
    if seen.scalars["output_final_state"]:
        outputs["final_state"] = Seen(result[1])
    return outputs


def _either(arguments: Mapping[str, Any], *names: str) -> Any:
    """The argument under the first of `names` that the function has; None if it has none of them."""
    return next((arguments[name] for name in names if name in arguments), None)


def _forms(name: str, arguments: Mapping[str, Any]) -> KdaForms:
    """A raw gate is called raw_g, or g where FlashKDA or the kernel computes it (`compute_gate`)."""
    gate = _either(arguments, "raw_g", "g")
    raw_gate = "raw_g" in arguments or name == FLASHKDA or bool(arguments.get("compute_gate"))
    raw_beta = "raw_beta" in arguments or name == FLASHKDA or bool(arguments.get("sigmoid_beta"))
    bounded = arguments.get("safe_gate", True)
    layer = arguments.get("self")
    if layer is not None:  # GLM-5.3's method for FlashKDA
        A_log, bias, bound = layer.A_log, layer.dt_bias, layer.kda_lower_bound
    else:
        A_log = _either(arguments, "A_log", "a_log")
        bias, bound = _either(arguments, "dt_bias", "g_bias"), arguments.get("lower_bound")
    return kda_forms(
        raw_gate=raw_gate,
        raw_beta=raw_beta,
        lower_bound=bound if bounded else None,
        A_log=A_log,
        dt_bias=bias,
        sizes=(gate.shape[-2], gate.shape[-1]),
    )


def _prefill(name: str, arguments: Mapping[str, Any], step: Any, known: Mapping[str, Any]) -> Observation:
    from gdnbench_kernels.validate import dtype_name

    q, k, state = arguments["q"], arguments["k"], arguments["initial_state"]
    cu_seqlens = arguments["cu_seqlens"]
    refuse_states(state)
    forms = _forms(name, arguments)
    seen = {one: flatten_tokens(arguments[one]) for one in ("q", "k", "v")}
    seen["g"] = flatten_tokens(_either(arguments, "raw_g", "g"))
    seen["beta"] = flatten_tokens(_either(arguments, "raw_beta", "beta"))
    seen["cu_seqlens"] = sequence_offsets(q, cu_seqlens)
    if state is not None:
        seen["initial_state"] = Seen(state)
    seen |= metadata_tensors(
        {
            "has_initial_state": getattr(step, "has_initial_state", None),
            "state_indices": getattr(step, "non_spec_state_indices_tensor", None),
        }
    )
    kept = None  # fp32, of any dtype of the initial states
    if name in (FLASHKDA, FLASHINFER):
        kept = arguments.get("final_state", state)  # FlashKDA writes a buffer, FlashInfer the initial states
    checkpoints = any(arguments.get(one) is not None for one in ("checkpoint_state", "checkpoint"))
    return Observation(
        op="kda_prefill",
        tensors=seen | forms.parameters,
        scalars={
            **forms.scalars(arguments.get("scale"), k.shape[-1]),
            "chunk_size": 64,
            "output_final_state": bool(arguments.get("output_final_state", True)),
            "final_state_dtype": "float32" if kept is None else dtype_name(kept.dtype),
        },
        conventions=_conventions(forms, arguments),
        dispatch={
            "path": "chunk",
            "backend": PREFILLS[name],
            **({"not_recorded": "state_checkpoints"} if checkpoints else {}),
        },
        finish=finish_prefill_with_metadata(known),
        part=part_of(step, len(cu_seqlens) - 1, prefill=True) if cu_seqlens is not None else None,
    )


def _decode(name: str, arguments: Mapping[str, Any], step: Any, known: Mapping[str, Any]) -> Observation:
    _refuse_decode(arguments)
    pool, batch, forms = _pool(arguments), _batch(arguments), _forms(name, arguments)
    if name == PACKED:
        q, k, v = split_features(arguments["mixed_qkv"], pool)
    else:
        q, k, v = (arguments[one] for one in ("q", "k", "v"))
    gate, beta = _either(arguments, "raw_g", "g"), _either(arguments, "raw_beta", "beta")
    seen = {one: batch.rows(tensor) for one, tensor in (("q", q), ("k", k), ("v", v))}
    seen |= {"g": batch.rows(gate), "beta": batch.rows(beta), "state": Seen(pool), **batch.indices()}
    verifies = name == VERIFY
    if verifies:
        slots = arguments["state_indices"]
        seen["read_indices"] = Seen(int32_slots(slots[: batch.sequences]), None, slots)
    given = {OFFSETS: batch.offsets, "num_accepted_tokens": batch.accepted}
    seen |= metadata_tensors(given if batch.ragged else {OFFSETS: given[OFFSETS]})
    part = part_of(step, batch.sequences, drafted=verifies or batch.accepted is not None)
    return Observation(
        op="kda_decode",
        tensors=seen | forms.parameters,
        scalars=forms.scalars(arguments.get("scale"), q.shape[-1]),
        conventions=_conventions(forms, arguments),
        dispatch={
            "path": name,
            **({"not_recorded": "what is kept of each draft"} if verifies else {}),
        },
        finish=batch.finish(known),
        part=replace(part, keeps=True) if verifies and part is not None else part,
    )


def _conventions(forms: KdaForms, arguments: Mapping[str, Any]) -> dict[str, str]:
    return forms.conventions("VK", raw_keys=bool(arguments.get("use_qk_l2norm_in_kernel", True)))


def _batch(arguments: Mapping[str, Any]) -> Batch:
    mixed = arguments.get("mixed_qkv")
    tokens = len(mixed) if mixed is not None else arguments["q"].shape[:2].numel()
    slots = _either(arguments, "ssm_state_indices", "state_indices")
    offsets = _either(arguments, "cu_seqlens", "query_start_loc")
    window = arguments.get("spec_query_len")
    if window is not None:  # a verification that writes no slot
        slots = unwritten_slots(len(slots), window, slots.device)
    return Batch(tokens, slots, offsets, arguments.get("num_accepted_tokens"), null=NULL_SLOT)


def _pool(arguments: Mapping[str, Any]) -> Tensor:
    pool: Tensor = _either(arguments, "checkpoint_state", "initial_state")
    return pool


def _refuse_decode(arguments: Mapping[str, Any]) -> None:
    """NotCaptured for a call that kda_decode does not describe."""
    in_place = arguments.get("inplace_final_state", True) and _pool(arguments) is not None
    if not in_place or _either(arguments, "ssm_state_indices", "state_indices") is None:
        raise NotCaptured("states are not updated in a pool; the operation has nothing else")
    refuse_step_sizes(_either(arguments, "raw_beta", "beta"), arguments.get("v"))
    refuse_states(_pool(arguments))


def signature_of(function: Callable[..., Any]) -> str | None:
    """The name in `KDA_SIGNATURES` of a function that is about to be wrapped."""
    return known_as(function.__module__, function.__qualname__)
