"""Makes calls of gdn_prefill and kda_prefill smaller. Offsets and chunk tables are adapted to the removed
tokens.

Chunks can be removed in two ways. Either the rest starts from the sequence's own initial state, or the state
is carried: if the first chunks of a sequence are removed, its initial state becomes the exact state after
them.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gdnbench_kernels.chunks import UNREAD, ChunkPlan, chunk_bound, plan_chunks
from gdnbench_kernels.contract import Axis, Call, Operation
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.shrinking import head_axes, optional_axis, select_units, with_tensors
from gdnbench_kernels.validate import resolved_scalars


def axes(operation: Operation, call: Call) -> tuple[Axis, ...]:
    """Sequences, heads, chunks, tokens, and optional tensors."""
    plan = plan_of(operation, call)
    sequences, tokens = len(plan.offsets) - 1, plan.tokens

    def keep_chunks(kept: Sequence[int]) -> Call:
        return keep_tokens(operation, call, _tokens_of_chunks(plan, kept))

    def keep_chunks_carried(kept: Sequence[int]) -> Call:
        return keep_tokens(operation, _carried(operation, call, plan, kept), _tokens_of_chunks(plan, kept))

    def chunk_at(place: Mapping[str, int]) -> int | None:
        if "sequence" not in place or "chunk" not in place:
            return None
        return int(plan.offsets[place["sequence"]]) + place["chunk"]

    heads = head_axes(operation, call, call.tensors["q"].shape[1], call.tensors["v"].shape[1])
    return (
        Axis(
            "sequences",
            sequences,
            lambda kept: keep_sequences(operation, call, kept),
            unit_at=lambda place: place.get("sequence"),
        ),
        *heads,
        Axis("chunks", plan.total, keep_chunks, least=0, unit_at=chunk_at),
        Axis("chunks, states carried", plan.total, keep_chunks_carried, least=0, unit_at=chunk_at),
        Axis("tokens", tokens, lambda kept: keep_tokens(operation, call, kept), least=0),
        optional_axis(call, _optional(call), {"output_final_state": True}),
    )


def _optional(call: Call) -> tuple[str, ...]:
    """The tensors that the call is valid without: a raw gate of kda_prefill needs A_log."""
    names = ("chunk_indices", "chunk_offsets", "initial_state", "dt_bias")
    return (*names, "A_log") if call.conventions.get("gate") == "bounded" else names


def keep_sequences(operation: Operation, call: Call, sequences: Sequence[int]) -> Call:
    """The call with only those sequences, in that order."""
    return _cut(operation, call, _tokens_of(call, sequences), sequences)


def keep_tokens(operation: Operation, call: Call, tokens: Sequence[int]) -> Call:
    """The call with only those tokens, ascending. Every sequence stays, possibly without tokens."""
    return _cut(operation, call, tokens, range(len(call.tensors["cu_seqlens"]) - 1))


def unit_vectors(call: Call) -> dict[str, float]:
    """The elements of q and k of norm 1, if they are normalised."""
    if call.conventions.get("qk", "normalised") != "normalised":
        return {}
    unit = call.tensors["k"].shape[2] ** -0.5
    return {"q": unit, "k": unit}


def plan_of(operation: Operation, call: Call) -> ChunkPlan:
    """The chunks of a valid call."""
    size = resolved_scalars(operation.scalars, call)["chunk_size"]
    assert isinstance(size, int)
    return plan_chunks(call.tensors["cu_seqlens"], size)


def _cut(operation: Operation, call: Call, tokens: Sequence[int], sequences: Sequence[int]) -> Call:
    """The call of `tokens`, all of which belong to `sequences`."""
    bounds = call.tensors["cu_seqlens"].long()
    kept = torch.tensor(list(tokens), dtype=torch.long)
    owner = torch.searchsorted(bounds, kept, right=True) - 1
    lengths = torch.bincount(owner, minlength=len(bounds) - 1)[list(sequences)]
    tensors = select_units(call, operation.tensors, {"T": list(tokens), "N": list(sequences)})
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    tensors["cu_seqlens"] = offsets.to(call.tensors["cu_seqlens"].dtype)
    return with_tensors(call, tensors | chunk_tables(operation, with_tensors(call, tensors)))


def chunk_tables(operation: Operation, call: Call) -> dict[str, Tensor]:
    """The chunk tables that the call has, recomputed for its cu_seqlens."""
    plan, found = plan_of(operation, call), {}
    if "chunk_offsets" in call.tensors:
        found["chunk_offsets"] = plan.offsets.to(call.tensors["chunk_offsets"].dtype)
    if "chunk_indices" in call.tensors:
        old = call.tensors["chunk_indices"]
        rows = min(len(old), chunk_bound(plan.tokens, len(plan.offsets) - 1, plan.chunk_size))
        table = torch.full((max(rows, plan.total), 2), UNREAD, dtype=old.dtype)
        table[: plan.total] = torch.stack([plan.sequence, plan.index], dim=1).to(old.dtype)
        found["chunk_indices"] = table
    return found


def _tokens_of(call: Call, sequences: Sequence[int]) -> list[int]:
    bounds = call.tensors["cu_seqlens"].tolist()
    return [token for n in sequences for token in range(bounds[n], bounds[n + 1])]


def _tokens_of_chunks(plan: ChunkPlan, chunks: Sequence[int]) -> list[int]:
    starts, lengths = plan.start.tolist(), plan.length.tolist()
    return [token for c in chunks for token in range(starts[c], starts[c] + lengths[c])]


def _carried(operation: Operation, call: Call, plan: ChunkPlan, kept: Sequence[int]) -> Call:
    """The call whose initial states are the exact states before each sequence's first chunk of `kept`."""
    first: dict[int, int] = {}
    for chunk in kept:
        first.setdefault(int(plan.sequence[chunk]), chunk)
    before = [
        token
        for sequence, chunk in first.items()
        for token in _tokens_of_chunks(plan, range(int(plan.offsets[sequence]), chunk))
    ]
    if not before:
        return call
    prefix = keep_tokens(operation, call, before)
    leaves = Call(prefix.tensors, {**prefix.scalars, "output_final_state": True}, prefix.conventions)
    exact = run_kernel(operation, "reference", leaves)["final_state"]
    initial = call.tensors.get("initial_state")
    dtype = operation.outputs(call)["final_state"][1] if _returns_state(call) else torch.float32
    state = exact.to(dtype if initial is None else initial.dtype)
    return with_tensors(call, {**call.tensors, "initial_state": state})


def _returns_state(call: Call) -> bool:
    return bool(call.scalars.get("output_final_state", True))
