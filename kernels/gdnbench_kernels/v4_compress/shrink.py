# SPDX-License-Identifier: Apache-2.0
"""Makes calls of v4_compress smaller: sequences, the last tokens of sequences, optional parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from gdnbench_kernels.contract import Axis, Call, Operation
from gdnbench_kernels.shrinking import optional_axis, pool_axis, take_units, with_tensors


def keep_parts(call: Call, parts: Sequence[tuple[int, int, int]]) -> Call:
    """The call of only some tokens: (sequence, first, stop) of each, counted in the sequence's own tokens."""
    bounds = list(pairwise(call.tensors["cu_seqlens"].tolist()))
    tokens = [bounds[n][0] + place for n, first, stop in parts for place in range(first, stop)]
    lengths = torch.tensor([0, *(stop - first for _, first, stop in parts)], dtype=torch.int32)
    sequences = [n for n, _, _ in parts]
    starts = call.tensors["starts"]
    tensors = dict(call.tensors)
    for name in ("kv", "score"):
        tensors[name] = take_units(tensors[name], 0, tokens)
    tensors["cu_seqlens"] = lengths.cumsum(0).to(torch.int32)
    begun = [int(starts[n]) + first for n, first, _ in parts]
    tensors["starts"] = torch.tensor(begun, dtype=starts.dtype)
    tensors["block_table"] = take_units(tensors["block_table"], 0, sequences)
    return with_tensors(call, tensors)


def axes(operation: Operation, call: Call) -> tuple[Axis, ...]:
    lengths = call.tensors["cu_seqlens"].diff().tolist()

    def keep_sequences(kept: Sequence[int]) -> Call:
        return keep_parts(call, [(n, 0, lengths[n]) for n in kept])

    def keep_tokens(kept: Sequence[int]) -> Call:
        return keep_parts(call, [(n, 0, min(length, len(kept))) for n, length in enumerate(lengths)])

    return (
        Axis("sequences", len(lengths), keep_sequences, unit_at=lambda place: place.get("sequence")),
        Axis("tokens of a sequence", max(lengths, default=0), keep_tokens, least=0),
        pool_axis(operation, call, "pages not used", "state"),
        optional_axis(call, ("norm_weight", "rope"), {}),
    )


def extent(call: Call) -> dict[str, int]:
    return {
        "sequence": len(call.tensors["starts"]),
        "token": len(call.tensors["kv"]),
        "page": len(call.tensors["state"]),
    }


def level(call: Call) -> dict[str, float]:
    """Scores of ones weigh all tokens alike."""
    return {}
