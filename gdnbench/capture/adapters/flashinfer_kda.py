# SPDX-License-Identifier: Apache-2.0
"""Kimi Delta Attention of FlashInfer, for `flashinfer.FlashinferAdapter`.

    recurrent_kda, one token of each sequence            kda_decode
    the same with num_spec_tokens: drafts                kda_decode, S tokens
    the same with disable_state_update: verification     kda_decode, S tokens, no slot written
    the same, more tokens                                kda_prefill, states by ssm_state_indices of a pool
    packed_kda_decode                                    kda_decode, bounded, q, k, v as views of one tensor

States are [slots, Hv, V, K] and updated in place; a slot below 0 is padding. g is a log gate, or with
`use_gate_in_kernel` the input of a gate, bounded where there is a `lower_bound`. The operations have no
output for `state_checkpoints`, `correction_cache` and `kg_cache`: `dispatch.not_recorded` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen
from gdnbench.capture.adapters.flashinfer_signatures import PACKED_KDA, RECURRENT_KDA
from gdnbench.capture.adapters.gdn import flatten_tokens, own_slots, sequence_offsets
from gdnbench.capture.adapters.kda import KdaForms, kda_forms
from gdnbench.capture.adapters.serving_decode import OFFSETS, Batch, metadata_tensors, split_features
from gdnbench.capture.adapters.slots import gather_states, int32_slots, refuse_in_graph, unwritten_slots

if TYPE_CHECKING:
    from torch import Tensor

FUNCTIONS = (RECURRENT_KDA, PACKED_KDA)
NULL_SLOT = -1
PACKED_LOWER_BOUND = -5.0
"""Of packed_kda_decode, which takes none."""
FP32_STATES = ("cudnn", "cute-dsl-persistent", "ptx", "tirx")
"""Backends that make fp32 states where none are given; the others make bfloat16 ones."""
BESIDE_STATES = ("state_checkpoints", "correction_cache", "kg_cache")


def kda_observation(name: str, arguments: Mapping[str, Any]) -> Observation:
    """A call of the function `name`. NotCaptured for one that the operations do not describe."""
    if name == PACKED_KDA:
        return _packed(arguments)
    return _decode(arguments) if _decodes(arguments) else _prefill(arguments)


def kda_results(name: str, seen: Observation, arguments: Mapping[str, Any], result: Any) -> dict[str, Seen]:
    """o, and the states as the call left them."""
    o = result[0] if isinstance(result, tuple) else result
    if seen.op == "kda_decode":
        batch = _packed_batch(arguments) if name == PACKED_KDA else _batch(arguments)
        pool = arguments["state"] if name == PACKED_KDA else _pool(arguments)
        return {"o": batch.rows(o), "state": Seen(pool)}
    found = {"o": flatten_tokens(o)}
    if seen.scalars["output_final_state"]:
        state = arguments["initial_state"]
        rows = None if state is None else arguments.get("ssm_state_indices")
        found["final_state"] = Seen(gather_states(result[1] if state is None else state, rows))
    return found


def _decodes(arguments: Mapping[str, Any]) -> bool:
    """Whether the call is for kda_decode; FlashInfer tells prefills in the same way."""
    if arguments.get("num_spec_tokens") is not None or arguments.get("disable_state_update"):
        return True
    q, cu_seqlens = arguments["q"], arguments.get("cu_seqlens")
    return bool(q.shape[1] <= (1 if cu_seqlens is None else len(cu_seqlens) - 1))


def _forms(arguments: Mapping[str, Any]) -> KdaForms:
    heads, key_dim = arguments["g"].shape[-2:]
    return kda_forms(
        raw_gate=bool(arguments["use_gate_in_kernel"]),
        raw_beta=bool(arguments.get("beta_is_logit")),
        lower_bound=arguments["lower_bound"],
        A_log=arguments["A_log"],
        dt_bias=arguments["dt_bias"],
        sizes=(heads, key_dim),
    )


def _prefill(arguments: Mapping[str, Any]) -> Observation:
    from gdnbench_kernels.validate import dtype_name

    if arguments.get("initial_state_source") is not None:
        raise NotCaptured("a prefill that reads its states from another pool (initial_state_source)")
    q, state, rows = (arguments[one] for one in ("q", "initial_state", "ssm_state_indices"))
    forms, backend = _forms(arguments), arguments.get("backend")
    tensors = {one: flatten_tokens(arguments[one]) for one in ("q", "k", "v", "g", "beta")}
    tensors["cu_seqlens"] = sequence_offsets(q, arguments["cu_seqlens"])
    if state is not None:
        if rows is not None:
            refuse_in_graph(rows)
        tensors["initial_state"] = Seen(gather_states(state, rows), None, state)
    made = "float32" if backend in FP32_STATES else "bfloat16"
    return Observation(
        op="kda_prefill",
        tensors=tensors | forms.parameters,
        scalars={
            **forms.scalars(arguments["scale"], q.shape[-1]),
            "chunk_size": 16,
            "output_final_state": state is not None or bool(arguments["output_final_state"]),
            "final_state_dtype": made if state is None else dtype_name(state.dtype),
        },
        conventions=_conventions(forms, arguments),
        dispatch={
            "path": "chunk",
            **_told(arguments),
            **({} if rows is None else {"states": "gathered by ssm_state_indices"}),
        },
    )


def _decode(arguments: Mapping[str, Any]) -> Observation:
    pool, batch, forms = _pool(arguments), _batch(arguments), _forms(arguments)
    tensors = {one: batch.rows(arguments[one]) for one in ("q", "k", "v", "g", "beta")}
    tensors |= {"state": Seen(pool), **batch.indices()}
    read = _read(arguments, batch)
    if read is not None:
        tensors["read_indices"] = Seen(int32_slots(read[: batch.sequences]), None, read)
    tensors |= metadata_tensors({OFFSETS: batch.offsets})
    return Observation(
        op="kda_decode",
        tensors=tensors | forms.parameters,
        scalars=forms.scalars(arguments["scale"], arguments["q"].shape[-1]),
        conventions=_conventions(forms, arguments),
        dispatch={"path": RECURRENT_KDA, **_told(arguments)},
        whole_pools=frozenset(("state",) if _slots(arguments) is None else ()),
        finish=batch.finish({}),
    )


def _pool(arguments: Mapping[str, Any]) -> Tensor:
    """The states of a decode call. NotCaptured for one that reads another pool than it writes."""
    given, source = arguments["initial_state"], arguments.get("initial_state_source")
    if arguments.get("disable_state_update") and source is not None:
        given = source
    elif source is not None and (given is None or source.data_ptr() != given.data_ptr()):
        raise NotCaptured("states are read from another pool than they are written to; the operation has one")
    if given is None:
        raise NotCaptured("a decode call without states; the operation updates a pool")
    pool: Tensor = given
    return pool


def _slots(arguments: Mapping[str, Any]) -> Tensor | None:
    """The slots that the caller gives, [N] or [N, S]."""
    source = arguments.get("initial_state_indices")
    if arguments.get("disable_state_update") and source is not None:
        return source  # type: ignore[no-any-return]
    return arguments["ssm_state_indices"]  # type: ignore[no-any-return]


def _read(arguments: Mapping[str, Any], batch: Batch) -> Tensor | None:
    """The slots that are read [N] or longer; None if each sequence reads its first one, or by its accepted
    tokens."""
    if not arguments.get("disable_state_update"):
        source: Tensor | None = arguments.get("initial_state_indices")
        return source
    slots = _slots(arguments)
    return own_slots(batch.sequences).flatten() if slots is None else slots


def _batch(arguments: Mapping[str, Any]) -> Batch:
    q, bounds, drafts = arguments["q"], arguments["cu_seqlens"], arguments.get("num_spec_tokens")
    sequences = len(q) if bounds is None else len(bounds) - 1
    slots = _slots(arguments)
    if arguments.get("disable_state_update"):
        if slots is not None and slots.ndim != 1:
            raise NotCaptured("a verification reads one slot of each sequence; the call gives several")
        given = arguments.get("correction_cache")
        steps = q.shape[1] if bounds is None else _window(drafts, given)
        slots = unwritten_slots(sequences, steps, q.device)
    elif slots is None:
        steps = 1 if drafts is None else drafts + 1
        slots = own_slots(sequences * steps).view(sequences, steps)
    return Batch(q.shape[:2].numel(), slots, bounds, arguments["num_accepted_tokens"], null=NULL_SLOT)


def _window(drafts: int | None, cache: Tensor | None) -> int:
    """The tokens of a verification for which each sequence has room."""
    if drafts is not None:
        return drafts + 1
    if cache is None:
        raise NotCaptured("a packed verification without num_spec_tokens or caches")
    return cache.shape[2]


def _packed(arguments: Mapping[str, Any]) -> Observation:
    state, batch = arguments["state"], _packed_batch(arguments)
    heads, _, key_dim = state.shape[1:]
    q, k, v = split_features(arguments["mixed_qkv"], state)
    gate, beta = arguments["raw_gate"], arguments["raw_beta"]
    forms = kda_forms(
        raw_gate=True,
        raw_beta=True,
        lower_bound=PACKED_LOWER_BOUND,
        A_log=arguments["A_log"],
        dt_bias=arguments["dt_bias"],
        sizes=(heads, key_dim),
    )
    tensors = {one: batch.rows(tensor) for one, tensor in (("q", q), ("k", k), ("v", v))}
    tensors |= {
        "g": batch.rows(gate.detach().unflatten(-1, (heads, key_dim)), 1),
        "beta": batch.rows(beta, 1),
        "state": Seen(state),
        **batch.indices(),
    }
    return Observation(
        op="kda_decode",
        tensors=tensors | forms.parameters,
        scalars=forms.scalars(None, key_dim),
        conventions=forms.conventions("VK", raw_keys=True),
        dispatch={"path": PACKED_KDA},
        finish=batch.finish({}),
    )


def _packed_batch(arguments: Mapping[str, Any]) -> Batch:
    return Batch(len(arguments["mixed_qkv"]), arguments["state_indices"], None, None, null=NULL_SLOT)


def _conventions(forms: KdaForms, arguments: Mapping[str, Any]) -> dict[str, str]:
    return forms.conventions("VK", raw_keys=bool(arguments["use_qk_l2norm_in_kernel"]))


def _told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The backend that the caller chose, and the states that the record lacks."""
    kept = [name for name in BESIDE_STATES if arguments.get(name) is not None]
    if arguments.get("checkpoint_every_n_tokens") and "state_checkpoints" not in kept:
        kept.insert(0, "state_checkpoints")
    backend = arguments.get("backend")
    return {
        **({} if backend in (None, "auto") else {"backend": backend}),
        **({"not_recorded": ", ".join(kept)} if kept else {}),
    }
