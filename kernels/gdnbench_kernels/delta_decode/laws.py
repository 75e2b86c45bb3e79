"""The laws of gdn_decode and kda_decode: causality over draft tokens, independence and order of sequences,
padding, scale, slots that are not named, and a call in two parts."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Carried, Operation, Piece, Split, Variant
from gdnbench_kernels.gdn_laws import (
    BY_TOKEN,
    SCALE_FACTOR,
    STATE_FACTOR,
    changed_tokens,
    output_factor,
    scaled_outputs,
    scaled_values,
)
from gdnbench_kernels.shrinking import select_units, take_units, with_tensors
from gdnbench_kernels.state_pool import slots_of
from gdnbench_kernels.state_slots import PADDING, SlotPlan


def variants(operation: Operation, call: Call) -> Iterator[Variant]:
    """Draft tokens changed from one on; one sequence changed as a whole; sequences and slots in another
    order; padding with other values; other scales; and other values in slots that the call does not name.

    - causality: token t of a sequence depends on earlier tokens and on the state read. Later draft tokens may
      be rejected, and must change neither earlier outputs nor the states after earlier tokens: not one bit,
      since the kernel computes those from the same numbers.
    - sequences: no sequence depends on another one.
    - order: a batch and a pool only say where sequences and states are.
    - padding: the inputs of a padding sequence are not read. Without one in the call, one is put first.
    - scale: o is linear in the scale, and o and states are linear in v and states together.
    - unnamed slots: the call reads the slots that its index tensors name, and no other.
    """
    plan, steps = slots_of(call), call.tensors["q"].shape[1]
    if not len(plan.active):
        return
    if steps > 1:
        yield _from_token(call, plan, (steps + 1) // 2)
    if len(plan.active) > 1:
        yield _one_sequence(call, plan)
        yield _reordered(operation, call, plan)
    yield _padding(operation, call, plan)
    yield from _scaled(call, plan)
    named = torch.zeros(len(call.tensors["state"]), dtype=torch.bool)
    named[plan.touched] = True
    if not bool(named.all()):
        yield _unnamed(call, plan, named)


def splits(operation: Operation, call: Call) -> Iterator[Split]:
    """The first tokens of each sequence, then the rest, which reads the slots that the first part wrote.
    There is none if a sequence writes no slot there."""
    plan, steps = slots_of(call), call.tensors["q"].shape[1]
    place = steps // 2
    if place and len(plan.active) and bool((plan.write[:, place - 1] != PADDING).all()):
        yield _split(operation, call, plan, place)


def _pieces(
    plan: SlotPlan,
    tokens: slice,
    *,
    without: int | None = None,
    row_of: Callable[[int], int] = lambda row: row,
    slot_of: Callable[[int], int] = lambda slot: slot,
) -> Iterator[Piece]:
    """o of the first `tokens`, and the slots that only they write, of all active sequences but `without`."""
    for row, slots in zip(plan.active.tolist(), plan.write.tolist(), strict=True):
        if row == without:
            continue
        where = f"sequence {row}"
        yield Piece("o", where, (row, tokens), (row_of(row), tokens), head_axis=1)
        later = set(slots[tokens.stop :]) if tokens.stop is not None else set()
        for slot in sorted({*slots[tokens]} - later - {PADDING}):
            yield Piece("state", f"{where} slot {slot}", (slot,), (slot_of(slot),), head_axis=0)


def _from_token(call: Call, plan: SlotPlan, place: int) -> Variant:
    chosen = torch.zeros(call.tensors["q"].shape[:2], dtype=torch.bool)
    chosen[:, place:] = True
    changed = with_tensors(call, {**call.tensors, **changed_tokens(call, chosen)})
    pieces = tuple(_pieces(plan, slice(0, place)))
    return Variant("causality", f"draft tokens from {place} changed", changed, pieces, exact=True)


def _one_sequence(call: Call, plan: SlotPlan) -> Variant:
    row = int(plan.active[0])
    chosen = torch.zeros(call.tensors["q"].shape[:2], dtype=torch.bool)
    chosen[row] = True
    tensors = {**call.tensors, **changed_tokens(call, chosen)}
    read = plan.read[0]
    if int((plan.read == read).sum()) == 1:
        state = _same_layout(tensors["state"])
        state[read] *= STATE_FACTOR
        tensors["state"] = state
    pieces = tuple(_pieces(plan, slice(0, None), without=row))
    return Variant("sequences", f"sequence {row} changed", with_tensors(call, tensors), pieces)


def _same_layout(pool: Tensor) -> Tensor:
    """A copy of a pool with its strides; gaps between slots hold zeros."""
    last = sum((size - 1) * stride for size, stride in zip(pool.shape, pool.stride(), strict=True))
    copy = torch.zeros(last + 1, dtype=pool.dtype).as_strided(pool.shape, pool.stride())
    return copy.copy_(pool)


def _reordered(operation: Operation, call: Call, plan: SlotPlan) -> Variant:
    """Sequences and slots in reverse order."""
    batch, slots = len(call.tensors["q"]), len(call.tensors["state"])
    tensors = select_units(call, operation.tensors, {"B": range(batch)[::-1]})
    pool = _same_layout(call.tensors["state"])
    pool.copy_(take_units(call.tensors["state"], 0, range(slots)[::-1]))
    tensors["state"] = pool
    for name in ("state_indices", "read_indices"):
        if name in tensors:
            indices = tensors[name]
            tensors[name] = torch.where(indices == PADDING, indices, slots - 1 - indices)
    pieces = _pieces(
        plan, slice(0, None), row_of=lambda row: batch - 1 - row, slot_of=lambda slot: slots - 1 - slot
    )
    what = "sequences and slots in reverse order"
    return Variant("order", what, with_tensors(call, tensors), tuple(pieces))


def _padding(operation: Operation, call: Call, plan: SlotPlan) -> Variant:
    """The padding sequences hold NaN. Or, without any, one that does is put before the others."""
    batch = len(call.tensors["q"])
    idle = [row for row in range(batch) if row not in set(plan.active.tolist())]
    tensors, moved = dict(call.tensors), 0
    if not idle:
        idle, moved = [0], 1
        tensors = select_units(call, operation.tensors, {"B": [0, *range(batch)]})
        for name in ("state_indices", "read_indices"):
            if name in tensors:
                tensors[name][0] = PADDING
    for name in BY_TOKEN:
        tensors[name] = tensors[name].clone()
        tensors[name][idle] = torch.nan
    pieces = tuple(_pieces(plan, slice(0, None), row_of=lambda row: row + moved))
    what = "a padding sequence of NaN before the others" if moved else "padding sequences hold NaN"
    return Variant("padding", what, with_tensors(call, tensors), pieces, exact=not moved)


def _scaled(call: Call, plan: SlotPlan) -> Iterator[Variant]:
    pieces = tuple(_pieces(plan, slice(0, None)))
    outputs = (replace(piece, factor=SCALE_FACTOR) if piece.tensor == "o" else piece for piece in pieces)
    yield Variant("scale", f"{SCALE_FACTOR:g} x the scale", scaled_outputs(call), tuple(outputs))
    scaled = scaled_values(call, "state", _same_layout)
    if scaled is not None:
        both = (
            replace(piece, factor=scaled.factor, underflow=scaled.underflow(call, piece.tensor))
            for piece in pieces
        )
        what = f"v and states {scaled.factor:g} times as large"
        yield Variant("scale", what, with_tensors(call, scaled.tensors), tuple(both), exact=scaled.exact)


def _unnamed(call: Call, plan: SlotPlan, named: Tensor) -> Variant:
    pool = _same_layout(call.tensors["state"])
    pool[~named] = torch.nan
    other = with_tensors(call, {**call.tensors, "state": pool})
    pieces = tuple(_pieces(plan, slice(0, None)))
    return Variant("unnamed slots", "slots that are not named hold NaN", other, pieces, exact=True)


def _split(operation: Operation, call: Call, plan: SlotPlan, place: int) -> Split:
    """The limits are those of gdn_prefill's split, the state carried on being the slot that the second part
    reads."""
    steps = call.tensors["q"].shape[1]
    first = with_tensors(call, select_units(call, operation.tensors, {"S": range(place)}))
    accepted = first.tensors.get("num_accepted")
    if accepted is not None and bool((accepted > place).any()):
        first = _reading(first, plan)
    rest = with_tensors(call, select_units(call, operation.tensors, {"S": range(place, steps)}))
    later = _reading(rest, _after(plan, place)).tensors

    def second(results: Mapping[str, Tensor]) -> Call:
        pool = _same_layout(call.tensors["state"])
        return with_tensors(call, {**later, "state": pool.copy_(results["state"])})

    before: list[Piece] = []
    after: list[Piece] = []
    factor = output_factor(call)
    for row, slots in zip(plan.active.tolist(), plan.write.tolist(), strict=True):
        where, start = f"sequence {row}", slots[place - 1]
        before.append(Piece("o", where, (row, slice(0, place)), (row, slice(0, place)), head_axis=1))
        rows = (row, slice(place, None)), (row, slice(0, None))
        after.append(Piece("o", where, *rows, head_axis=1, carried=Carried("state", (start,), factor)))
        for slot in sorted(set(slots) - {PADDING}):
            carried = Carried("state", (start,), 1.0) if slot in slots[place:] else None
            at = f"{where} slot {slot}"
            after.append(Piece("state", at, (slot,), (slot,), head_axis=0, carried=carried))
    return Split(f"from token {place}", first, second, tuple(before), tuple(after))


def _after(plan: SlotPlan, place: int) -> SlotPlan:
    """The plan of the tokens from `place` on."""
    return SlotPlan(plan.active, plan.write[:, place - 1], plan.write[:, place:])


def _reading(call: Call, plan: SlotPlan) -> Call:
    """`call`, which names the slots to read in read_indices."""
    read = torch.full((len(call.tensors["q"]),), PADDING, dtype=torch.int32)
    read[plan.active] = plan.read.to(torch.int32)
    tensors = {name: tensor for name, tensor in call.tensors.items() if name != "num_accepted"}
    return with_tensors(call, {**tensors, "read_indices": read})
