# SPDX-License-Identifier: Apache-2.0
"""Kimi Delta Attention of SGLang, for `sglang.SglangAdapter`. Its class of kernels is one for this and for
Gated DeltaNet.

    extend of a backend's kernels       kda_prefill, states from and to the pool
    packed_decode                       kda_decode, q, k, v as views of one tensor
    decode                              kda_decode
    target_verify                       kda_decode, S tokens, pool not updated
    target_verify that goes on from the states it kept of the last drafts (FlashInfer)
                                        kda_decode, S tokens, on those states, by num_accepted
    the functions below them, if other code calls them     the same

The gate is raw, bounded where the layer has a `lower_bound`; a prefill without A_log has log gates. beta is a
logit, in a prefill only if the call says so (`beta_is_raw`). States are [slots, Hv, V, K]; a slot below 0 is
null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen
from gdnbench.capture.adapters import sglang_signatures as names
from gdnbench.capture.adapters.gdn import flatten_tokens, sequence_offsets
from gdnbench.capture.adapters.kda import KdaForms, kda_forms
from gdnbench.capture.adapters.serving_decode import (
    OFFSETS,
    Batch,
    finish_prefill_with_metadata,
    metadata_tensors,
    refuse_states,
    split_features,
)
from gdnbench.capture.adapters.sglang_calls import (
    NULL_SLOT,
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
from gdnbench.capture.adapters.sglang_steps import slots_of_the_step
from gdnbench.capture.adapters.slots import gather_states, int32_slots, refuse_in_graph
from gdnbench.capture.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

BACKENDS = {
    "TritonKDAKernel": "triton",
    "FlashInferKDAKernel": "flashinfer",
    names.FLASHINFER_KDA_PREFILL: "flashinfer",
    "CuteDSLKDAKernel": "cutedsl",
    "FlashKDAKernel": "flashkda",
    "HelionKDAKernel": "helion",
    "NvidiaKDAKernel": "nvidia",
    "PtxKDAKernel": "ptx",
    names.CUTEDSL_KDA: "cutedsl",
}
"""By class, or by function."""
PREFILLS = (names.EXTEND, names.KDA_CHUNK)
DRAFT_SLOTS, DRAFT_COUNTS = "fused_accept_state_indices", "fused_accept_num_accepted"
"""Of a verification that goes on from the states that it kept of the last drafts."""


def is_kda(function: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call of a target's function is of Kimi Delta Attention."""
    return function in names.KDA_SIGNATURES.functions or bool(arguments.get("is_kda"))


def kda_observation(function: str, arguments: Mapping[str, Any]) -> Observation:
    """NotCaptured for a call that the operations do not describe."""
    name = function.rpartition(".")[2]
    backend = BACKENDS.get(function, BACKENDS.get(function.partition(".")[0], "triton"))
    if name in PREFILLS:
        return _prefill(function, backend, arguments)
    return _decode(name, backend, arguments)


def kda_results(seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
    """o, and the states as the call left them."""
    o = result[0] if isinstance(result, tuple) else result
    if seen.op == "kda_prefill":
        outputs = {"o": flatten_tokens(o)}
        if seen.scalars["output_final_state"]:
            outputs["final_state"] = Seen(gather_states(pool_of(arguments), first_of(arguments, SLOTS)))
        return outputs
    pool, batch = _pool_and_batch(arguments)
    if batch.ragged:
        o = o.reshape(1, -1, *o.shape[-2:])
        return {"o": batch.rows(o), "state": Seen(pool)}
    return {"o": Seen(o, (batch.sequences, batch.steps, *o.shape[-2:])), "state": Seen(pool)}


def _prefill(function: str, backend: str, arguments: Mapping[str, Any]) -> Observation:
    from gdnbench_kernels.validate import dtype_name

    q, k, v = (arguments[one] for one in ("q", "k", "v"))
    pool, slots = pool_of(arguments), first_of(arguments, SLOTS)
    refuse_states(pool)
    # The engine's rows of g and beta may be padded where those of q are not.
    g, beta = (arguments[one].detach()[:, : q.shape[1]] for one in ("g", "beta"))
    sizes = (v.shape[2], k.shape[3])
    forms = kda_forms(
        raw_gate=arguments.get("A_log") is not None,
        raw_beta=function.startswith(names.FLASHINFER_KDA_PREFILL) or bool(arguments.get("beta_is_raw")),
        lower_bound=arguments.get("lower_bound"),
        A_log=arguments.get("A_log"),
        dt_bias=arguments.get("dt_bias"),
        sizes=sizes,
    )
    tokens = q.shape[:2].numel()
    seen = {name: flatten_tokens(tensor) for name, tensor in (("q", q), ("k", k), ("v", v))}
    seen["g"] = Seen(g, (tokens, *sizes), arguments["g"])
    seen["beta"] = Seen(beta, (tokens, sizes[0]), arguments["beta"])
    seen["cu_seqlens"] = sequence_offsets(q, first_of(arguments, OFFSET_NAMES))
    if pool is not None:
        if slots is not None:
            refuse_in_graph(slots)
        seen["initial_state"] = Seen(gather_states(pool, slots), None, pool)
    seen |= metadata_tensors({SLOTS_BESIDE: slots, "extend_prefix_lens": arguments.get("extend_prefix_lens")})
    sequences = len(seen["cu_seqlens"].tensor) - 1
    on_the_way = any(
        arguments.get(name) is not None and arguments[name] is not False
        for name in ("track_state", "return_intermediate_states", "output_intermediate_states")
    )
    return Observation(
        op="kda_prefill",
        tensors=seen | forms.parameters,
        scalars={
            **forms.scalars(arguments.get("scale"), k.shape[-1]),
            "chunk_size": 64,
            "output_final_state": pool is not None,
            "final_state_dtype": dtype_name(pool.dtype) if pool is not None else "float32",
        },
        conventions=_conventions(forms, arguments),
        dispatch={
            "path": "chunk",
            "backend": backend,
            **({} if arguments.get("layer_id") is None else {"layer_id": int(arguments["layer_id"])}),
            **({} if slots is None else {"states": "gathered by state_indices"}),
            **({"not_recorded": "states on the way, for the prefix cache"} if on_the_way else {}),
        },
        finish=refusing_padding(finish_prefill_with_metadata({})),
        part=Part(range(sequences), slots=slots_of_the_step(sequences, slots)),
    )


def _decode(name: str, backend: str, arguments: Mapping[str, Any]) -> Observation:
    _refuse_decode(arguments)
    pool, batch = _pool_and_batch(arguments)
    refuse_states(pool)
    heads, _, key_dim = pool.shape[1:]
    if "mixed_qkv" in arguments:
        q, k, v = split_features(arguments["mixed_qkv"], pool)
    else:
        q, k, v = (arguments[one] for one in ("q", "k", "v"))
    tokens = q.shape[:2].numel()
    # They come as [T, Hv, K], [1, T, Hv, K], [1, T, Hv * K] or [T, Hv * K]; likewise beta.
    gate = arguments["a"].detach().reshape(1, -1, heads, key_dim)[:, :tokens]
    beta = arguments["b"].detach().reshape(1, -1, heads)[:, :tokens]
    forms = kda_forms(
        raw_gate=True,
        raw_beta=not arguments.get("match_cutedsl_decode"),
        lower_bound=arguments.get("lower_bound"),
        A_log=arguments["A_log"],
        dt_bias=arguments["dt_bias"],
        sizes=(heads, key_dim),
    )
    seen = {one: batch.rows(tensor) for one, tensor in (("q", q), ("k", k), ("v", v))}
    seen |= {one: batch.rows(tensor) for one, tensor in (("g", gate), ("beta", beta))}
    seen |= {"state": Seen(pool), **batch.indices()}
    leaves = _leaves_pool(arguments)
    if leaves:
        slots = first_of(arguments, SLOTS)
        seen["read_indices"] = Seen(int32_slots(slots[: batch.sequences]), None, slots)
    seen |= metadata_tensors({OFFSETS: batch.offsets})
    return Observation(
        op="kda_decode",
        tensors=seen | forms.parameters,
        scalars=forms.scalars(arguments.get("scale"), key_dim),
        conventions=_conventions(forms, arguments),
        dispatch={
            "path": name,
            "backend": backend,
            **({"not_recorded": "what is kept of each draft"} if leaves else {}),
        },
        finish=batch.finish({}),
        part=Part(range(batch.sequences), keeps=leaves),
        kept_states=kept_of(arguments, batch) if leaves else None,
    )


def _conventions(forms: KdaForms, arguments: Mapping[str, Any]) -> dict[str, str]:
    return forms.conventions("VK", raw_keys=bool(arguments.get("use_qk_l2norm_in_kernel", True)))


def _leaves_pool(arguments: Mapping[str, Any]) -> bool:
    return verifies(arguments) and arguments.get(DRAFT_SLOTS) is None


def _pool_and_batch(arguments: Mapping[str, Any]) -> tuple[Tensor, Batch]:
    """The states that a decode call reads and writes, and its sequences."""
    slots = arguments.get(DRAFT_SLOTS)
    if slots is None:
        return pool_of(arguments), batch_of(arguments)
    pool: Tensor = arguments["intermediate_states_buffer"].detach().flatten(0, 1)
    tokens, bounds = arguments["q"].shape[:2].numel(), first_of(arguments, OFFSET_NAMES)
    refuse_in_graph(slots)
    slots = slots.clamp(min=NULL_SLOT)  # SGLang computes other numbers below 0 for padding
    return pool, Batch(tokens, slots, bounds, arguments[DRAFT_COUNTS], null=NULL_SLOT)


def _refuse_decode(arguments: Mapping[str, Any]) -> None:
    """NotCaptured for a call that kda_decode does not describe."""
    if arguments.get("softplus_beta", 1.0) != 1.0:
        raise NotCaptured("the softplus of the gate has another slope than 1")
    if arguments.get("retrieve_parent_token") is not None:
        raise NotCaptured(
            "drafts that are a tree (retrieve_parent_token); the operation has one after another"
        )
    if all(arguments.get(name) is not None for name in RING):
        raise NotCaptured("the call keeps inputs to replay them later (replayssm)")
    if first_of(arguments, SLOTS) is None or pool_of(arguments) is None:
        raise NotCaptured("states are not updated in a pool; the operation has nothing else")
