"""The laws of conv_prefill: causality, independence and order of sequences, slots that the call does not
read, and a call in two parts."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Operation, Piece, Split, Variant
from gdnbench_kernels.conv import PADDING
from gdnbench_kernels.conv_laws import LOUDER, changed_rows, same_layout
from gdnbench_kernels.conv_prefill.shrink import keep_sequences, keep_tokens
from gdnbench_kernels.conv_prefill.windows import PrefillPlan, plan_of
from gdnbench_kernels.shrinking import take_units, with_tensors


def variants(operation: Operation, call: Call) -> Iterator[Variant]:
    """The end of the longest sequence changed; one sequence changed as a whole; sequences and slots in
    another order; and other values in slots that the call does not read.

    - causality: y of a token is a function of that token, of W-1 earlier ones and of the window. So tokens
      from P on may change, and nothing before P does.
    - sequences: no sequence depends on another one.
    - order: a batch and a pool only say where sequences and windows are.
    - unread slots: a call reads the slots of sequences that have an initial state, and no other.
    """
    plan = plan_of(call.tensors)
    if not plan.active:
        return
    lengths = {n: plan.bounds[n][1] - plan.bounds[n][0] for n in plan.active}
    longest = max(lengths, key=lambda n: lengths[n])
    if lengths[longest] > 1:
        yield _from_token(call, plan, longest, lengths[longest] // 2)
    if len(plan.active) > 1:
        yield _one_sequence(call, plan)
        yield _reordered(operation, call, plan)
    if "conv_state" in call.tensors:
        read = {slot for slot, reads in zip(plan.slots, plan.reads, strict=True) if reads}
        unread = [slot for slot in range(len(call.tensors["conv_state"])) if slot not in read]
        if unread:
            yield _unread(call, plan, unread)


def splits(operation: Operation, call: Call) -> Iterator[Split]:
    """Each sequence in two parts, the second from the window that the first left; none without a pool."""
    plan = plan_of(call.tensors)
    if plan.slots and any(plan.bounds[n][1] - plan.bounds[n][0] > 1 for n in plan.active):
        yield _split(operation, call, plan)


def _pieces(
    call: Call, plan: PrefillPlan, until: Mapping[int, int] | None = None
) -> Iterator[tuple[int, Piece]]:
    """The rows of y and slots of each active sequence. Of a sequence in `until` only that many tokens, and no
    slot."""
    given = until or {}
    for place, n in enumerate(plan.active):
        start, stop = plan.bounds[n]
        last = start + given[n] if n in given else stop
        where = f"sequence {n}"
        if last > start:
            yield n, Piece("y", where, (slice(start, last),), (slice(start, last),), head_axis=0)
        if n not in given and "conv_state" in call.tensors:
            slot = plan.slots[place]
            yield n, Piece("conv_state", f"{where} slot {slot}", (slot,), (slot,), head_axis=0)


def _from_token(call: Call, plan: PrefillPlan, sequence: int, place: int) -> Variant:
    start, stop = plan.bounds[sequence]
    chosen = torch.zeros(len(call.tensors["x"]), dtype=torch.bool)
    chosen[start + place : stop] = True
    changed = with_tensors(call, {**call.tensors, "x": changed_rows(call.tensors["x"], chosen)})
    pieces = tuple(piece for _, piece in _pieces(call, plan, {sequence: place}))
    return Variant("causality", f"tokens from {place} of sequence {sequence}", changed, pieces)


def _one_sequence(call: Call, plan: PrefillPlan) -> Variant:
    sequence = plan.active[0]
    start, stop = plan.bounds[sequence]
    chosen = torch.zeros(len(call.tensors["x"]), dtype=torch.bool)
    chosen[start:stop] = True
    tensors = {**call.tensors, "x": changed_rows(call.tensors["x"], chosen)}
    if plan.slots:
        pool = same_layout(tensors["conv_state"])
        pool[plan.slots[0]] *= LOUDER
        tensors["conv_state"] = pool
    pieces = tuple(piece for _, piece in _pieces(call, plan, {sequence: 0}))
    return Variant("sequences", f"sequence {sequence} changed", with_tensors(call, tensors), pieces)


def _reordered(operation: Operation, call: Call, plan: PrefillPlan) -> Variant:
    """Sequences and slots in reverse order."""
    order = list(range(len(plan.bounds)))[::-1]
    other = keep_sequences(operation, call, order)
    tensors, slots = dict(other.tensors), 0
    if plan.slots:
        slots = len(call.tensors["conv_state"])
        pool = same_layout(call.tensors["conv_state"])
        tensors["conv_state"] = pool.copy_(take_units(pool, 0, range(slots)[::-1]))
        indices = tensors["state_indices"]
        tensors["state_indices"] = torch.where(indices == PADDING, indices, slots - 1 - indices)
    theirs = plan_of(tensors).bounds
    pieces = []
    for n, piece in _pieces(call, plan):
        at = (slice(*theirs[order.index(n)]),) if piece.tensor == "y" else (slots - 1 - int(piece.one[0]),)  # type: ignore[arg-type]
        pieces.append(Piece(piece.tensor, piece.where, piece.one, at, piece.head_axis))
    what = "sequences and slots in reverse order"
    return Variant("order", what, with_tensors(call, tensors), tuple(pieces))


def _unread(call: Call, plan: PrefillPlan, unread: list[int]) -> Variant:
    pool = same_layout(call.tensors["conv_state"])
    pool[unread] = torch.nan
    other = with_tensors(call, {**call.tensors, "conv_state": pool})
    pieces = tuple(piece for _, piece in _pieces(call, plan))
    return Variant("unread slots", "slots that are not read hold NaN", other, pieces, exact=True)


def _split(operation: Operation, call: Call, plan: PrefillPlan) -> Split:
    """Windows are copies of inputs, so that the second part starts from the same bits as in the whole call:
    nothing is added to its limits."""
    bounds = plan.bounds
    places = [(stop - start) // 2 for start, stop in bounds]
    first = keep_tokens(
        operation, call, [t for (a, _), p in zip(bounds, places, strict=True) for t in range(a, a + p)]
    )
    rest = keep_tokens(
        operation, call, [t for (a, b), p in zip(bounds, places, strict=True) for t in range(a + p, b)]
    )
    initial = call.tensors.get("has_initial_state")
    already = torch.tensor([place > 0 for place in places])
    begun = already if initial is None else already | initial

    def second(results: Mapping[str, Tensor]) -> Call:
        pool = same_layout(call.tensors["conv_state"]).copy_(results["conv_state"])
        return with_tensors(rest, {**rest.tensors, "conv_state": pool, "has_initial_state": begun})

    before, after = [], []
    in_first, in_second = (plan_of(part.tensors).bounds for part in (first, rest))
    for place, n in enumerate(plan.active):
        (start, stop), where = bounds[n], f"sequence {n}"
        middle = start + places[n]
        if middle > start:
            before.append(Piece("y", where, (slice(start, middle),), (slice(*in_first[n]),), head_axis=0))
        after.append(Piece("y", where, (slice(middle, stop),), (slice(*in_second[n]),), head_axis=0))
        slot = plan.slots[place]
        after.append(Piece("conv_state", f"{where} slot {slot}", (slot,), (slot,), head_axis=0))
    return Split("in the middle", first, second, tuple(before), tuple(after))
