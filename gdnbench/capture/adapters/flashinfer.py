# SPDX-License-Identifier: Apache-2.0
"""Adapter for FlashInfer: prefill and decode of the gated delta rule, and of Kimi Delta Attention, see
flashinfer_kda.

| function | states | operation, gate | |---|---|---| | `chunk_gated_delta_rule` | [N, Hv, V, K], or rows of a
pool by `state_indices` | gdn_prefill, linear | | `gated_delta_rule_decode` | [B, Hv, K, V] in place, one per
sequence | gdn_decode, raw | | `gated_delta_rule_decode_pretranspose` | [B, Hv, V, K] in place, or a pool by
indices | gdn_decode, raw | | `gated_delta_rule_mtp` | a pool by indices | gdn_decode, raw |

The slots that a decode call with S tokens per sequence writes:

    ssm_state_indices [B, S]          one slot per token
    no update of states               none
    otherwise                         after the last token: output_state_indices, or the slot that was read

The operations have no output for states in `intermediate_states_buffer` or `state_checkpoints`, nor for the
ring of inputs that `cache_replayssm` fills while states stay as they are: the record lacks them, and
`dispatch.not_recorded` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters import flashinfer_kda as kda
from gdnbench.capture.adapters.flashinfer_signatures import (
    CHUNK,
    DECODE,
    KDA_SIGNATURES,
    MTP,
    PACKED_KDA,
    PRETRANSPOSE,
    RECURRENT_KDA,
    SIGNATURES,
)
from gdnbench.capture.adapters.gdn import STATE_DTYPES, own_slots, refuse_mixed_dtypes
from gdnbench.capture.adapters.signatures import Signatures, qualified_name
from gdnbench.capture.adapters.slots import gather_states, int32_slots, refuse_in_graph, unwritten_slots

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench_kernels.contract import Scalar

MODULES = {
    "flashinfer.gdn_prefill": (CHUNK,),
    "flashinfer.gdn_decode": (DECODE, PRETRANSPOSE, MTP),
    "flashinfer.kda": (RECURRENT_KDA,),
    "flashinfer.kda_decode": kda.FUNCTIONS,
    "flashinfer": (CHUNK, *kda.FUNCTIONS),
}


@dataclass(frozen=True, slots=True)
class FlashinferAdapter:
    framework: str = "flashinfer"
    targets: tuple[Target, ...] = tuple(
        Target(module, function) for module, functions in MODULES.items() for function in functions
    )
    scopes: tuple[Target, ...] = ()
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)
    kda_signatures: Signatures = field(
        default_factory=KDA_SIGNATURES.copy_unchecked, compare=False, repr=False
    )

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        signatures = self.kda_signatures if target.function in kda.FUNCTIONS else self.signatures
        signatures.check(target.function, arguments)
        if target.function == PACKED_KDA:
            return kda.kda_observation(target.function, arguments)
        _refuse(arguments)
        if target.function == RECURRENT_KDA:
            return kda.kda_observation(target.function, arguments)
        if target.function == CHUNK:
            return _prefill(arguments)
        return _decode(target.function, arguments)

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        if seen.op.startswith("kda_"):
            return kda.kda_results(str(seen.dispatch["path"]), seen, arguments, result)
        o = result[0] if isinstance(result, tuple) else result
        found = {"o": Seen(o)}
        if seen.op == "gdn_decode":
            found["state"] = Seen(_pool(arguments))
        elif seen.scalars["output_final_state"]:
            found["final_state"] = Seen(gather_states(result[1], arguments.get("state_indices")))
        return found

    def operations(self, target: Target) -> tuple[str, ...]:
        if target.function in kda.FUNCTIONS:
            return ("kda_decode",) if target.function == PACKED_KDA else ("kda_prefill", "kda_decode")
        return ("gdn_prefill" if target.function == CHUNK else "gdn_decode",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        for signatures in (self.signatures, self.kda_signatures):
            if function.__name__ in signatures.functions:
                signatures.compare_function(function.__name__, function)
        return qualified_name(function)


def _refuse(arguments: Mapping[str, Any]) -> None:
    """NotCaptured for a call that neither operation describes."""
    from gdnbench_kernels.validate import dtype_name

    q, k, v = (arguments[name] for name in ("q", "k", "v"))
    if q.shape[-2] != k.shape[-2]:
        raise NotCaptured("q and k differ in heads; the operations have as many of each")
    if v.shape[-2] % q.shape[-2]:
        raise NotCaptured("there are fewer value heads than query heads, or no multiple of them")
    refuse_mixed_dtypes(q, k, v)
    output = arguments.get("output")
    if output is not None and output.dtype != v.dtype:
        raise NotCaptured("output has another dtype than v; the operations have o of v's")
    for name in ("state", "initial_state", "output_state"):
        state = arguments.get(name)
        if state is not None and dtype_name(state.dtype) not in STATE_DTYPES:
            raise NotCaptured(f"states are {dtype_name(state.dtype)}; the operations take no such ones")
        if state is not None and state.ndim != 4:
            raise NotCaptured("a pool whose states lie in two halves; the operations have whole ones")


def _prefill(arguments: Mapping[str, Any]) -> Observation:
    import torch

    from gdnbench_kernels.validate import dtype_name

    q, v, cu_seqlens = (arguments[name] for name in ("q", "v", "cu_seqlens"))
    if cu_seqlens is None:
        raise NotCaptured("cu_seqlens is not given, which the function asks for")
    tensors = {name: Seen(arguments[name]) for name in ("q", "k", "v", "cu_seqlens")}
    for name in ("g", "beta"):
        given = arguments[name]
        tensors[name] = Seen(given if given is not None else torch.ones(v.shape[:2], device=v.device))
    rows = arguments.get("state_indices")
    state, final = arguments["initial_state"], arguments["output_state"]
    if state is not None:
        tensors["initial_state"] = Seen(gather_states(state, rows), None, state)
    every = arguments.get("checkpoint_every_n_tokens")
    return Observation(
        op="gdn_prefill",
        tensors=tensors,
        scalars={
            "scale": _scale(arguments["scale"] or None, q),  # FlashInfer takes 0 for none
            "chunk_size": 64,
            "output_final_state": bool(arguments["output_final_state"]),
            "final_state_dtype": "float32" if final is None else dtype_name(final.dtype),
            "beta_max": 1.0,
        },
        conventions={
            "gate": "linear",
            "state_layout": "VK",
            "qk": "raw" if arguments["use_qk_l2norm_in_kernel"] else "normalised",
        },
        dispatch={
            "path": "chunk",
            **_told(arguments, "backend", "use_cp"),
            **({} if rows is None else {"states": "gathered by state_indices"}),
            **({"not_recorded": "state_checkpoints"} if every else {}),
        },
    )


def _decode(function: str, arguments: Mapping[str, Any]) -> Observation:
    q = arguments["q"]
    bias, a_log = arguments["dt_bias"], arguments["A_log"]
    scalars: dict[str, Scalar] = {"scale": _scale(arguments["scale"], q), "beta_max": 1.0}
    tensors = {name: Seen(arguments[name]) for name in ("q", "k", "v")}
    tensors |= {"g": Seen(arguments["a"]), "beta": Seen(arguments["b"])}
    tensors |= {"A_log": Seen(a_log), "dt_bias": Seen(bias), "state": Seen(_pool(arguments))}
    tensors |= {name: Seen(indices) for name, indices in _slots(arguments).items()}
    kept = "intermediate_states_buffer" if arguments.get("intermediate_states_buffer") is not None else None
    if arguments.get("cache_replayssm"):  # states stay as they are, and inputs go to a ring
        kept = "the ring of inputs (replayssm)"
    return Observation(
        op="gdn_decode",
        tensors=tensors,
        scalars=scalars,
        conventions={
            "gate": "raw",
            "state_layout": "KV" if function == DECODE else "VK",
            "qk": "raw" if arguments["use_qk_l2norm"] else "normalised",
        },
        dispatch={
            "path": function,
            **_told(arguments, "backend"),
            **({} if kept is None else {"not_recorded": kept}),
        },
        whole_pools=frozenset(() if _has_pool(arguments) else ("state",)),
    )


def _has_pool(arguments: Mapping[str, Any]) -> bool:
    return arguments.get("initial_state") is not None


def _pool(arguments: Mapping[str, Any]) -> Tensor:
    """The states that the call updates in place."""
    pool: Tensor = arguments["initial_state"] if _has_pool(arguments) else arguments["state"]
    return pool


def _slots(arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """state_indices [B, S], and read_indices [B] where other slots are read. On one device; views of the
    caller's if possible."""
    batch, steps = arguments["q"].shape[:2]
    read = arguments["initial_state_indices"] if _has_pool(arguments) else own_slots(batch).flatten()
    written = arguments.get("output_state_indices")
    each = arguments.get("ssm_state_indices")
    still = arguments.get("disable_state_update", False)
    if still is None:  # gated_delta_rule_mtp takes None for True
        still = True
    last = (read if written is None else written).unsqueeze(1)
    if each is not None:
        slots = each
    elif still:
        slots = unwritten_slots(batch, steps, read.device)
    elif steps > 1:
        slots = _after_the_last(last, steps)
    elif written is None:
        return {"state_indices": last}
    else:
        slots = last
    return {"state_indices": slots, "read_indices": int32_slots(read)}


def _after_the_last(slots: Tensor, steps: int) -> Tensor:
    """[B, S]: -1 (not written) for all tokens but the last, whose state goes to `slots` [B, 1]."""
    import torch

    refuse_in_graph(slots)
    batch = slots.shape[0]
    return torch.cat([unwritten_slots(batch, steps - 1, slots.device).to(slots.dtype), slots], dim=1)


def _scale(scale: float | None, q: Tensor) -> float:
    return float(scale) if scale is not None else float(q.shape[-1]) ** -0.5


def _told(arguments: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """What else the caller chose of these."""
    return {name: arguments[name] for name in names if arguments.get(name) not in (None, "auto")}
