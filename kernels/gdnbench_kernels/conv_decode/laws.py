"""The laws of conv_decode: causality over draft tokens, independence and order of sequences, slots that are
not named, and a call in two parts."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Operation, Piece, Split, Variant
from gdnbench_kernels.conv import PADDING
from gdnbench_kernels.conv_decode.shrink import keep_sequences
from gdnbench_kernels.conv_decode.windows import DecodePlan, plan_of
from gdnbench_kernels.conv_laws import LOUDER, changed_rows, same_layout
from gdnbench_kernels.shrinking import select_units, take_units, with_tensors


def variants(operation: Operation, call: Call) -> Iterator[Variant]:
    """Draft tokens changed from one on; one sequence changed as a whole; sequences and slots in another
    order; and other values in slots that the call does not name.

    - causality: y of token t of a sequence, and the window after it, depend on earlier tokens and on the
      window read. Later draft tokens may be rejected, and must change neither.
    - sequences: no sequence depends on another one.
    - order: a batch and a pool only say where sequences and windows are.
    - unnamed slots: the call reads the slots that its index tensors name, and no other.
    """
    plan = plan_of(call.tensors)
    if not plan.active:
        return
    steps = max(plan.length(place) for place in range(len(plan.active)))
    if steps > 1:
        yield _from_token(call, plan, (steps + 1) // 2)
    if len(plan.active) > 1:
        yield _one_sequence(call, plan)
        yield _reordered(operation, call, plan)
    named = torch.zeros(len(call.tensors["conv_state"]), dtype=torch.bool)
    named[plan.touched] = True
    if not bool(named.all()):
        yield _unnamed(call, plan, named)


def splits(operation: Operation, call: Call) -> Iterator[Split]:
    """The first tokens of each sequence, then the rest, from the window after them. There is none if a
    sequence does not leave that window, or reads a slot that it does not write."""
    plan = plan_of(call.tensors)
    steps = max((plan.length(place) for place in range(len(plan.active))), default=0)
    each = call.tensors["state_indices"].shape[1]
    if steps < 2 or "read_indices" in call.tensors:
        return
    place = steps // 2
    if any(plan.length(one) <= place for one in range(len(plan.active))):
        return
    if each > 1 and any(len(windows) != plan.length(one) for one, windows in enumerate(plan.write)):
        return
    yield _split(operation, call, plan, place)


def _pieces(
    call: Call,
    plan: DecodePlan,
    until: int | None = None,
    *,
    without: int | None = None,
    row_of: Callable[[int], slice] | None = None,
    slot_of: Callable[[int], int] = lambda slot: slot,
) -> Iterator[Piece]:
    """y of each active sequence but `without`, and the slots that it writes; with `until` only of that many
    tokens, and the windows after them that no later token overwrites."""
    columns = call.tensors["weight"].shape[1] - 1
    for n, tokens, _, _, windows in plan.sequences():
        if n == without:
            continue
        where, last = f"sequence {n}", tokens.stop
        if until is not None:
            last = min(tokens.start + until, last)
        there = slice(tokens.start, last) if row_of is None else row_of(n)
        yield Piece("y", where, (slice(tokens.start, last),), (there,), head_axis=0)
        kept = [one for one in windows if tokens.start + one.tokens <= last]
        overwritten = {one.slot for one in windows if one not in kept}
        for slot in sorted({one.slot for one in kept}):
            one, other = (slot,), (slot_of(slot),)
            if plan.rolling:
                stop = max(window.column for window in kept) + columns
                rows = slice(None), slice(0, stop)
                yield Piece("conv_state", f"{where} slot {slot}", (*one, *rows), (*other, *rows), head_axis=0)
            elif slot not in overwritten:
                yield Piece("conv_state", f"{where} slot {slot}", one, other, head_axis=0)


def _from_token(call: Call, plan: DecodePlan, place: int) -> Variant:
    chosen = torch.zeros(len(call.tensors["x"]), dtype=torch.bool)
    for start, stop in plan.bounds:
        chosen[min(start + place, stop) : stop] = True
    changed = with_tensors(call, {**call.tensors, "x": changed_rows(call.tensors["x"], chosen)})
    return Variant(
        "causality", f"draft tokens from {place} changed", changed, tuple(_pieces(call, plan, place))
    )


def _one_sequence(call: Call, plan: DecodePlan) -> Variant:
    n = plan.active[0]
    chosen = torch.zeros(len(call.tensors["x"]), dtype=torch.bool)
    chosen[slice(*plan.bounds[n])] = True
    tensors = {**call.tensors, "x": changed_rows(call.tensors["x"], chosen)}
    if plan.read.count(plan.read[0]) == 1:
        pool = same_layout(tensors["conv_state"])
        pool[plan.read[0]] *= LOUDER
        tensors["conv_state"] = pool
    pieces = tuple(_pieces(call, plan, without=n))
    return Variant("sequences", f"sequence {n} changed", with_tensors(call, tensors), pieces)


def _reordered(operation: Operation, call: Call, plan: DecodePlan) -> Variant:
    """Sequences and slots in reverse order."""
    order = list(range(len(plan.bounds)))[::-1]
    tensors = dict(keep_sequences(operation, call, order).tensors)
    slots = len(call.tensors["conv_state"])
    pool = same_layout(call.tensors["conv_state"])
    tensors["conv_state"] = pool.copy_(take_units(pool, 0, range(slots)[::-1]))
    for name in ("state_indices", "read_indices"):
        if name in tensors:
            indices = tensors[name]
            tensors[name] = torch.where(indices == PADDING, indices, slots - 1 - indices)
    theirs = plan_of(tensors).bounds
    pieces = _pieces(
        call,
        plan,
        row_of=lambda n: slice(*theirs[len(theirs) - 1 - n]),
        slot_of=lambda slot: slots - 1 - slot,
    )
    what = "sequences and slots in reverse order"
    return Variant("order", what, with_tensors(call, tensors), tuple(pieces))


def _unnamed(call: Call, plan: DecodePlan, named: Tensor) -> Variant:
    pool = same_layout(call.tensors["conv_state"])
    pool[~named] = torch.nan
    other = with_tensors(call, {**call.tensors, "conv_state": pool})
    return Variant(
        "unnamed slots", "slots that are not named hold NaN", other, tuple(_pieces(call, plan)), exact=True
    )


def _split(operation: Operation, call: Call, plan: DecodePlan, place: int) -> Split:
    """Windows are copies of inputs, so that the second part starts from the same bits as in the whole call:
    nothing is added to its limits. A slot that keeps all windows ends with those of the second part, whose
    y is compared alone."""
    bounds, each = plan.bounds, call.tensors["state_indices"].shape[1]
    first = _part(operation, call, [(a, min(a + place, b)) for a, b in bounds])
    rest = _part(operation, call, [(min(a + place, b), b) for a, b in bounds])
    later = dict(rest.tensors)
    if plan.rolling:
        later["num_accepted"] = torch.full_like(later["num_accepted"], place)
    elif each > 1:
        indices = call.tensors["state_indices"]
        later.pop("num_accepted", None)
        later["read_indices"] = indices[:, place - 1].to(torch.int32)
        later["state_indices"] = indices[:, place:].contiguous()

    def second(results: Mapping[str, Tensor]) -> Call:
        pool = same_layout(call.tensors["conv_state"]).copy_(results["conv_state"])
        return with_tensors(rest, {**later, "conv_state": pool})

    before, after = [], []
    in_first, in_second = (plan_of(part.tensors).bounds for part in (first, rest))
    for n, tokens, _, _, windows in plan.sequences():
        where, middle = f"sequence {n}", tokens.start + place
        rows = slice(tokens.start, middle), slice(middle, tokens.stop)
        before.append(Piece("y", where, (rows[0],), (slice(*in_first[n]),), head_axis=0))
        after.append(Piece("y", where, (rows[1],), (slice(*in_second[n]),), head_axis=0))
        for slot in [] if plan.rolling else sorted({one.slot for one in windows}):
            after.append(Piece("conv_state", f"{where} slot {slot}", (slot,), (slot,), head_axis=0))
    return Split(f"from token {place}", first, second, tuple(before), tuple(after))


def _part(operation: Operation, call: Call, parts: list[tuple[int, int]]) -> Call:
    """The call with only those tokens of each sequence."""
    kept = [token for start, stop in parts for token in range(start, stop)]
    tensors = select_units(call, operation.tensors, {"T": kept})
    lengths = torch.tensor([0, *(stop - start for start, stop in parts)])
    tensors["cu_seqlens"] = lengths.cumsum(0).to(call.tensors["cu_seqlens"].dtype)
    return with_tensors(call, tensors)
