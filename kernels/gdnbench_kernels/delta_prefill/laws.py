"""The laws of gdn_prefill and kda_prefill: causality, independence and order of sequences, padding, scale,
and a call in two parts."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Carried, Operation, Piece, Split, Variant
from gdnbench_kernels.delta_prefill.shrink import chunk_tables, keep_sequences, keep_tokens, plan_of
from gdnbench_kernels.gdn_laws import (
    BY_TOKEN,
    SCALE_FACTOR,
    STATE_FACTOR,
    changed_tokens,
    output_factor,
    scaled_outputs,
    scaled_values,
)
from gdnbench_kernels.shrinking import select_units, with_tensors

EARLY = 3
"""Tokens of a chunk before the changed ones."""
TAIL = 5
"""Tokens of the sequence of NaN: no multiple of what a kernel loads at once."""


def variants(operation: Operation, call: Call) -> Iterator[Variant]:
    """Causality at places inside a chunk and at a chunk's border, in the longest sequence; one sequence
    changed as a whole; the sequences in another order; padding; and other scales.

    - causality: o of a token is a function of that token, of earlier tokens of its sequence and of the
      initial state. So tokens from P on may change, and not one bit before P does: a chunked kernel masks
      later tokens. One that scales gates by those of a later token rounds by it (flash-linear-attention
      #1240), within every limit.
    - sequences: no sequence depends on another one.
    - order: a packed call says only where its sequences are, so that reordering them reorders the results.
    - padding: sequences without tokens, and tokens of NaN behind the last one, change no other sequence.
    - scale: o is linear in the scale, and o and states are linear in v and states together.
    """
    bounds = _bounds(call)
    lengths = [stop - start for start, stop in bounds]
    if not sum(lengths):
        return
    longest = max(range(len(bounds)), key=lambda n: lengths[n])
    for place, what in _places(lengths[longest], plan_of(operation, call).chunk_size):
        yield _from_token(operation, call, longest, place, what)
    filled = [n for n, length in enumerate(lengths) if length]
    if len(bounds) > 1:
        yield _one_sequence(operation, call, filled[0])
        yield _reordered(operation, call)
    yield _padding(operation, call)
    yield from _scaled(operation, call)


def splits(operation: Operation, call: Call) -> Iterator[Split]:
    """Each sequence in two parts, at a chunk's border and inside a chunk."""
    if not call.scalars.get("output_final_state", True):
        return
    lengths = [stop - start for start, stop in _bounds(call)]
    chunk_size = plan_of(operation, call).chunk_size
    if max(lengths, default=0) > chunk_size:
        yield _split(operation, call, "at a chunk's border", lambda length: _border(length, chunk_size))
    if max(lengths, default=0) > 1:
        yield _split(operation, call, "inside a chunk", _inside)


def _bounds(call: Call) -> list[tuple[int, int]]:
    bounds = call.tensors["cu_seqlens"].tolist()
    return list(pairwise(bounds))


def _border(length: int, chunk_size: int) -> int:
    """The chunk's border nearest to the middle, 0 for a sequence of one chunk."""
    return (length // 2 + chunk_size // 2) // chunk_size * chunk_size if length > chunk_size else 0


def _inside(length: int) -> int:
    """Near the middle, no border of a chunk or of its rows of 16."""
    place = length // 2
    return place if place % 16 or place < 2 else place - 3


def _places(length: int, chunk_size: int) -> Iterator[tuple[int, str]]:
    """Early in a chunk most rows of it are changed, the middle one too, and rows before them are not."""
    early = length // 2 // chunk_size * chunk_size + EARLY
    if early < length:
        yield early, "early in a chunk"
    if length > 1 and _inside(length) != early:
        yield _inside(length), "inside a chunk"
    if length > chunk_size:
        yield _border(length, chunk_size), "at a chunk's border"


def _pieces(
    operation: Operation, call: Call, until: Mapping[int, int] | None = None
) -> Iterator[tuple[int, Piece]]:
    """The rows of o and final_state of each sequence, where they are the same in both calls. Of a sequence in
    `until` only that many tokens, and no state."""
    given = until or {}
    for n, (start, stop) in enumerate(_bounds(call)):
        last = start + given[n] if n in given else stop
        if last > start:
            rows = (slice(start, last),)
            yield n, Piece("o", f"sequence {n}", rows, rows, head_axis=1)
        if n not in given and "final_state" in operation.outputs(call):
            yield n, Piece("final_state", f"sequence {n}", (n,), (n,), head_axis=0)


def _from_token(operation: Operation, call: Call, sequence: int, place: int, what: str) -> Variant:
    start, stop = _bounds(call)[sequence]
    chosen = torch.zeros(len(call.tensors["q"]), dtype=torch.bool)
    chosen[start + place : stop] = True
    changed = with_tensors(call, {**call.tensors, **changed_tokens(call, chosen)})
    pieces = tuple(piece for _, piece in _pieces(operation, call, {sequence: place}))
    where = f"tokens from {place} of sequence {sequence}, {what}"
    return Variant("causality", where, changed, pieces, exact=True)


def _one_sequence(operation: Operation, call: Call, sequence: int) -> Variant:
    start, stop = _bounds(call)[sequence]
    chosen = torch.zeros(len(call.tensors["q"]), dtype=torch.bool)
    chosen[start:stop] = True
    tensors = {**call.tensors, **changed_tokens(call, chosen)}
    if "initial_state" in tensors:
        tensors["initial_state"] = tensors["initial_state"].clone()
        tensors["initial_state"][sequence] *= STATE_FACTOR
    pieces = tuple(piece for _, piece in _pieces(operation, call, {sequence: 0}))
    return Variant("sequences", f"sequence {sequence} changed", with_tensors(call, tensors), pieces)


def _reordered(operation: Operation, call: Call) -> Variant:
    bounds = _bounds(call)
    order = list(range(len(bounds)))[::-1]
    other = keep_sequences(operation, call, order)
    theirs = _bounds(other)
    pieces = []
    for n, piece in _pieces(operation, call):
        place = order.index(n)
        at = (slice(*theirs[place]),) if piece.tensor == "o" else (place,)
        pieces.append(Piece(piece.tensor, piece.where, piece.one, at, piece.head_axis))
    return Variant("order", "sequences in reverse order", other, tuple(pieces))


def _padding(operation: Operation, call: Call) -> Variant:
    """A sequence without tokens before the others, and one of NaN behind them, whose tokens lie beside the
    last chunk of the last sequence."""
    bounds, tokens = call.tensors["cu_seqlens"], len(call.tensors["q"])
    sequences = len(bounds) - 1
    kept = {"T": [*range(tokens), *[0] * TAIL], "N": [0, *range(sequences), 0]}
    tensors = select_units(call, operation.tensors, kept)
    for name in BY_TOKEN:
        tensors[name][tokens:] = torch.nan
    tensors["cu_seqlens"] = torch.cat([bounds[:1], bounds, bounds[-1:] + TAIL])
    other = with_tensors(call, tensors)
    other = with_tensors(other, {**tensors, **chunk_tables(operation, other)})
    pieces = (
        piece if piece.tensor == "o" else replace(piece, other=(n + 1,))
        for n, piece in _pieces(operation, call)
    )
    what = f"an empty sequence before the others and one of {TAIL} tokens of NaN behind them"
    return Variant("padding", what, other, tuple(pieces))


def _scaled(operation: Operation, call: Call) -> Iterator[Variant]:
    pieces = [piece for _, piece in _pieces(operation, call)]
    outputs = (replace(piece, factor=SCALE_FACTOR) if piece.tensor == "o" else piece for piece in pieces)
    yield Variant("scale", f"{SCALE_FACTOR:g} x the scale", scaled_outputs(call), tuple(outputs))
    scaled = scaled_values(call, "initial_state")
    if scaled is not None:
        both = (
            replace(piece, factor=scaled.factor, underflow=scaled.underflow(call, piece.tensor))
            for piece in pieces
        )
        what = f"v and states {scaled.factor:g} times as large"
        yield Variant("scale", what, with_tensors(call, scaled.tensors), tuple(both), exact=scaled.exact)


def _split(operation: Operation, call: Call, what: str, place_of: Callable[[int], int]) -> Split:
    """The limit of the second part. Its state differs from that of the whole call by at most the limit of a
    final state. A token carries a difference D of states on as D diag(alpha) (I - beta k k^T), since S' +
    beta (v - S' k) k^T is linear in S' = S diag(alpha); with a gate for each head all alpha are equal. In the
    Frobenius norm this is at most |D| times the 2-norms of the factors: the largest alpha, at most 1, and 1
    for a key of norm 1 and beta in [0, 2]. So a difference never increases, and `output_factor` says what it
    is in an output."""
    bounds = _bounds(call)
    places = [place_of(stop - start) for start, stop in bounds]
    first = keep_tokens(operation, call, _tokens(bounds, [(0, place) for place in places]))
    rest = [(place, stop - start) for place, (start, stop) in zip(places, bounds, strict=True)]
    later = keep_tokens(operation, call, _tokens(bounds, rest))

    def second(results: Mapping[str, Tensor]) -> Call:
        return with_tensors(later, {**later.tensors, "initial_state": results["final_state"]})

    before, after = [], []
    factor = output_factor(call)
    in_first, in_second = _bounds(first), _bounds(later)
    for n, (start, stop) in enumerate(bounds):
        where, middle = f"sequence {n}", start + places[n]
        if middle > start:
            before.append(Piece("o", where, (slice(start, middle),), (slice(*in_first[n]),), head_axis=1))
        if stop > middle:
            carried = Carried("final_state", (n,), factor)
            rows = (slice(middle, stop),)
            after.append(Piece("o", where, rows, (slice(*in_second[n]),), head_axis=1, carried=carried))
        carried = Carried("final_state", (n,), 1.0)
        after.append(Piece("final_state", where, (n,), (n,), head_axis=0, carried=carried))
    return Split(what, first, second, tuple(before), tuple(after))


def _tokens(bounds: Sequence[tuple[int, int]], parts: Sequence[tuple[int, int]]) -> list[int]:
    """Tokens [low, high) of each sequence, counted over the call."""
    return [
        start + token
        for (start, _), (low, high) in zip(bounds, parts, strict=True)
        for token in range(low, high)
    ]
