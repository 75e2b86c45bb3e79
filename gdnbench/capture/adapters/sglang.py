# SPDX-License-Identifier: Apache-2.0
"""Adapter for SGLang: Gated DeltaNet and Kimi Delta Attention (see sglang_kda) in every kernel backend of
prefill, decode and speculative verification.

    extend of a backend's kernels: Triton, FlashInfer, CuTe DSL   gdn_prefill, states from and to the pool
    packed_decode of Triton's                                     gdn_decode, raw gates, q, k, v as views
    decode of a backend's kernels                                 gdn_decode, raw gates
    target_verify of a backend's kernels                          the same, S tokens, pool not updated
    verification that keeps its inputs in a ring, to be folded
    into the states at the commit                                 the same; the ring is not recorded
    Triton's own functions, if other code calls them              the same
    causal_conv1d_fn, causal_conv1d_update of the backend         conv_prefill, conv_decode

States are [slots, Hv, V, K]; a slot below 0 is null. Verification writes no slot: the states after each draft
go to a buffer that no operation has, listed in `dispatch.not_recorded`. Capture keeps their digests, by which
lineage knows the one that the engine puts into the slot (`update_mamba_state_after_mtp_verify`). A prefill
record has no chunk tables, because each backend makes its own. The layer is the running
`RadixLinearAttention`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters import sglang_signatures as names
from gdnbench.capture.adapters.gdn import flatten_tokens, sequence_offsets
from gdnbench.capture.adapters.parallel import parallel_ranks
from gdnbench.capture.adapters.serving_conv import FUNCTIONS as CONVOLUTIONS
from gdnbench.capture.adapters.serving_conv import conv_observation, conv_results, keeps_windows, kept_windows
from gdnbench.capture.adapters.serving_decode import (
    OFFSETS,
    finish_prefill_with_metadata,
    gate_parameters,
    metadata_tensors,
    refuse_states,
    split_features,
)
from gdnbench.capture.adapters.sglang_calls import (
    OFFSET_NAMES,
    RING,
    SLOTS,
    SLOTS_BESIDE,
    batch_of,
    first_of,
    kept_of,
    pool_of,
    refusing_padding,
    verifies,
)
from gdnbench.capture.adapters.sglang_kda import BACKENDS as KDA_BACKENDS
from gdnbench.capture.adapters.sglang_kda import PREFILLS as KDA_PREFILLS
from gdnbench.capture.adapters.sglang_kda import is_kda, kda_observation, kda_results
from gdnbench.capture.adapters.sglang_steps import STEPS, SglangStep, slots_of_the_step, step
from gdnbench.capture.adapters.signatures import Signatures, qualified_name
from gdnbench.capture.adapters.slots import gather_states, int32_slots, refuse_in_graph
from gdnbench.capture.parts import Part

if TYPE_CHECKING:
    from gdnbench.capture.claims import Claims

KERNELS = "sglang.srt.layers.attention.linear.kernels"
RADIX = "sglang.srt.layers.radix_linear_attention"
BACKEND = "sglang.srt.layers.attention.linear.gdn_backend"
KDA_BACKEND = "sglang.srt.layers.attention.linear.kda_backend"
KDA_FILES = {"FlashInferKDAPrefillKernel": "flashinfer_prefill"}
FLA = ("sglang.kernels.ops.attention.fla", "sglang.srt.layers.attention.fla")
"""Modules of the functions taken from flash-linear-attention: since 0.5.16 at the latest, and before."""
SIGMOID_SINCE = "sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent"
CUTEDSL_KDA = "sglang.kernels.ops.attention.cutedsl_kda"
MTP_RING = "sglang.kernels.ops.attention.cutedsl_gdn_mtp_ring"
BACKENDS = {names.TRITON: "triton", names.FLASHINFER: "flashinfer", names.CUTEDSL: "cutedsl"}


def _kda_modules() -> dict[str, tuple[str, ...]]:
    """The functions of Kimi Delta Attention by module."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names.KDA_SIGNATURES.functions:
        kernels, _, method = name.rpartition(".")
        if method and kernels:
            module = f"{KERNELS}.kda_{KDA_FILES.get(kernels, KDA_BACKENDS[kernels])}"
            found[module] = (*found.get(module, ()), name)
    return found


MODULES = {
    **_kda_modules(),
    **{f"{package}.kda": (names.KDA_CHUNK,) for package in FLA},
    CUTEDSL_KDA: (names.CUTEDSL_KDA,),
    **{
        f"{KERNELS}.gdn_{backend}": tuple(
            name for name in names.SIGNATURES.functions if name.startswith(f"{kernels}.")
        )
        for kernels, backend in BACKENDS.items()
    },
    **{f"{package}.chunk": (names.CHUNK,) for package in FLA},
    **{f"{package}.fused_recurrent": (names.PACKED, names.KDA_PACKED) for package in FLA},
    **{f"{package}.fused_sigmoid_gating_recurrent": (names.SIGMOID,) for package in FLA},
    SIGMOID_SINCE: (names.SIGMOID,),
    MTP_RING: (names.MTP_RING,),
    BACKEND: CONVOLUTIONS,
    KDA_BACKEND: CONVOLUTIONS,
}
PREFILLS = (names.EXTEND, names.CHUNK)


def parallel() -> Mapping[str, tuple[int, int]]:
    return parallel_ranks("sglang.srt.distributed.parallel_state", ("tp", "pp"))


@dataclass(frozen=True, slots=True)
class SglangAdapter:
    framework: str = "sglang"
    targets: tuple[Target, ...] = tuple(
        Target(module, function) for module, functions in MODULES.items() for function in functions
    )
    scopes: tuple[Target, ...] = (Target(RADIX, "RadixLinearAttention.forward"),)
    steps: tuple[Target, ...] = STEPS
    signatures: Signatures = field(default_factory=names.SIGNATURES.copy_unchecked, compare=False, repr=False)
    kda_signatures: Signatures = field(
        default_factory=names.KDA_SIGNATURES.copy_unchecked, compare=False, repr=False
    )

    def step(self, target: Target, arguments: Mapping[str, Any]) -> SglangStep | None:
        return step(arguments)

    def claims(self, known: SglangStep, observation: Observation) -> Claims | None:
        return known.claims(observation.part)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        known = target.function in self.kda_signatures.functions
        (self.kda_signatures if known else self.signatures).check(target.function, arguments)
        if is_kda(target.function, arguments):
            return kda_observation(target.function, arguments)
        kernels, _, name = target.function.rpartition(".")
        if name in CONVOLUTIONS:
            seen = conv_observation(name, arguments, {})
            part = Part(range(len(seen.tensors["cu_seqlens"].tensor) - 1), keeps=keeps_windows(arguments))
            return replace(seen, part=part, kept_states=kept_windows(seen, arguments))
        backend = "cutedsl" if name == names.MTP_RING else BACKENDS.get(kernels, "triton")
        if name in PREFILLS:
            return _prefill(backend, arguments)
        return _decode(name, backend, arguments)

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        if seen.op in ("conv_prefill", "conv_decode"):
            return conv_results(seen, arguments, result)
        if seen.op.startswith("kda_"):
            return kda_results(seen, arguments, result)
        if seen.op == "gdn_prefill":
            outputs = {"o": flatten_tokens(result[0])}
            if seen.scalars["output_final_state"]:
                final = gather_states(pool_of(arguments), first_of(arguments, SLOTS))
                outputs["final_state"] = Seen(final)
            return outputs
        o = result[0] if isinstance(result, tuple) else result
        batch = batch_of(arguments)
        return {
            "o": Seen(o, (batch.sequences, batch.steps, *o.shape[-2:])),
            "state": Seen(pool_of(arguments)),
        }

    def operations(self, target: Target) -> tuple[str, ...]:
        if target.function in CONVOLUTIONS:
            return ("conv_prefill" if target.function == CONVOLUTIONS[0] else "conv_decode",)
        name = target.function.rpartition(".")[2]
        if target.function in self.kda_signatures.functions:
            return ("kda_prefill" if name in KDA_PREFILLS else "kda_decode",)
        if name == names.SIGMOID:  # for both layers
            return ("gdn_decode", "kda_decode")
        return ("gdn_prefill" if name in PREFILLS else "gdn_decode",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        for signatures in (self.signatures, self.kda_signatures):
            if function.__qualname__ in signatures.functions:
                signatures.compare_function(function.__qualname__, function)
        return qualified_name(function)

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        return parallel()


def _prefill(backend: str, arguments: Mapping[str, Any]) -> Observation:
    from gdnbench_kernels.validate import dtype_name

    if arguments.get("head_first"):
        raise NotCaptured("heads lie before tokens (head_first); the operation has tokens first")
    q, k, pool, slots = arguments["q"], arguments["k"], pool_of(arguments), first_of(arguments, SLOTS)
    refuse_states(pool)
    seen = {name: flatten_tokens(arguments[name]) for name in ("q", "k", "v", "g", "beta")}
    seen["cu_seqlens"] = sequence_offsets(q, first_of(arguments, OFFSET_NAMES))
    if pool is not None:
        if slots is not None:
            refuse_in_graph(slots)
        seen["initial_state"] = Seen(gather_states(pool, slots), None, pool)
    seen |= metadata_tensors({SLOTS_BESIDE: slots, "extend_prefix_lens": arguments.get("extend_prefix_lens")})
    sequences = len(seen["cu_seqlens"].tensor) - 1
    scale = arguments.get("scale")
    tracked = arguments.get("track_state") is not None or arguments.get("num_state_checkpoints")
    return Observation(
        op="gdn_prefill",
        tensors=seen,
        scalars={
            "scale": float(scale) if scale is not None else float(k.shape[-1]) ** -0.5,
            "chunk_size": 64,
            "output_final_state": pool is not None and bool(arguments.get("inplace_update", True)),
            "final_state_dtype": dtype_name(pool.dtype) if pool is not None else "float32",
            "beta_max": 1.0,
        },
        conventions={
            "gate": "log",
            "state_layout": "VK",
            "qk": "raw" if arguments.get("use_qk_l2norm_in_kernel", True) else "normalised",
        },
        dispatch={
            "path": "chunk",
            "backend": backend,
            **({} if arguments.get("layer_id") is None else {"layer_id": int(arguments["layer_id"])}),
            **({} if slots is None else {"states": "gathered by state_indices"}),
            **({"not_recorded": "states on the way, for the prefix cache"} if tracked else {}),
        },
        finish=refusing_padding(finish_prefill_with_metadata({})),
        part=Part(range(sequences), slots=slots_of_the_step(sequences, slots)),
    )


def _decode(name: str, backend: str, arguments: Mapping[str, Any]) -> Observation:
    _refuse_decode(arguments)
    pool, batch = pool_of(arguments), batch_of(arguments)
    if "mixed_qkv" in arguments:
        q, k, v = split_features(arguments["mixed_qkv"], pool)
    else:
        q, k, v = (arguments[one] for one in ("q", "k", "v"))
    seen = {one: batch.rows(tensor) for one, tensor in (("q", q), ("k", k), ("v", v))}
    seen |= {
        one: batch.rows(arguments[given], arguments[given].ndim - 1)
        for one, given in (("g", "a"), ("beta", "b"))
    }
    seen |= gate_parameters(arguments["A_log"], arguments["dt_bias"])
    seen |= {"state": Seen(pool), **batch.indices()}
    if verifies(arguments):
        slots = first_of(arguments, SLOTS)
        seen["read_indices"] = Seen(int32_slots(slots[: batch.sequences]), None, slots)
    seen |= metadata_tensors({OFFSETS: batch.offsets})
    scale = arguments.get("scale")
    return Observation(
        op="gdn_decode",
        tensors=seen,
        scalars={
            "scale": float(scale) if scale is not None else float(k.shape[-1]) ** -0.5,
            "beta_max": 1.0,
        },
        conventions={
            "gate": "raw",
            "state_layout": "VK",
            "qk": "raw" if arguments.get("use_qk_l2norm_in_kernel", True) else "normalised",
        },
        dispatch={
            "path": name,
            "backend": backend,
            **({"not_recorded": "what is kept of each draft"} if verifies(arguments) else {}),
        },
        finish=batch.finish({}),
        part=Part(range(batch.sequences), keeps=verifies(arguments)),
        kept_states=kept_of(arguments, batch) if verifies(arguments) else None,
    )


def _only_verifies(arguments: Mapping[str, Any]) -> bool:
    """Whether a call of CuTe DSL's kernel of drafts only gives outputs, and keeps its inputs in a ring."""
    updates = arguments["accepted_steps"] is not None or arguments["recovery_steps"]
    return verifies(arguments) and not updates and not arguments["disable_output"]


def _refuse_decode(arguments: Mapping[str, Any]) -> None:
    """NotCaptured for a call that gdn_decode does not describe."""
    if arguments.get("lower_bound") is not None:
        raise NotCaptured("a gate with a lower bound (lower_bound), which no convention here has")
    if arguments.get("softplus_beta", 1.0) != 1.0:
        raise NotCaptured("the softplus of the gate has another slope than 1")
    if arguments.get("retrieve_parent_token") is not None:
        raise NotCaptured(
            "drafts that are a tree (retrieve_parent_token); the operation has one after another"
        )
    if all(arguments.get(name) is not None for name in RING):
        raise NotCaptured("the call keeps inputs to replay them later (replayssm)")
    if "recovery_steps" in arguments and not _only_verifies(arguments):
        raise NotCaptured(
            "CuTe DSL's kernel of drafts updates states or gives no outputs; SGLang verifies by it"
        )
    if first_of(arguments, SLOTS) is None or pool_of(arguments) is None:
        raise NotCaptured("states are not updated in a pool; the operation has nothing else")
    refuse_states(pool_of(arguments))
