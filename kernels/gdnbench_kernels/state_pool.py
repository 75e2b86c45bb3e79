"""What a decode operation says of its pool of states: checks of slots, rows that a call names, touches, owns
and accesses.

The tensors have these names: state_indices [B, S], num_accepted [B] or read_indices [B], and the pool `state`
[slots, Hv, ...]; see `state_slots`.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gdnbench_kernels.contract import Accesses, Call, ContractError, Partition, Region
from gdnbench_kernels.state_slots import PADDING, SlotPlan, plan_slots
from gdnbench_kernels.validate import element_name, first_true

INDICES = ("state_indices", "read_indices")
"""The tensors that name slots."""


def slots_of(call: Call) -> SlotPlan:
    """The slots of a call, on the host."""
    named = (call.tensors.get(name) for name in ("state_indices", "num_accepted", "read_indices"))
    indices, accepted, read = (None if tensor is None else tensor.cpu() for tensor in named)
    if indices is None:
        raise KeyError("state_indices")
    return plan_slots(indices, accepted, read)


def one_accepted(call: Call) -> Tensor:
    """num_accepted of a call that leaves it out."""
    return torch.ones(len(call.tensors["q"]), dtype=torch.int32, device=call.tensors["q"].device)


def check_slots(op: str, call: Call, sizes: Mapping[str, int]) -> None:
    """Raises ContractError for slots outside the pool, counts of accepted tokens outside [1, S], both ways to
    name the slot to read, and races of two sequences. `sizes` has S and slots."""
    if "read_indices" in call.tensors and "num_accepted" in call.tensors:
        raise ContractError(
            f"{op}: read_indices and num_accepted are both given; each says which slot is read, give one"
        )
    for name in INDICES:
        if name in call.tensors:
            _check_in_pool(op, name, call.tensors[name], sizes["slots"])
    indices, accepted = call.tensors["state_indices"].cpu(), call.tensors.get("num_accepted")
    if accepted is not None:
        counts = accepted.cpu()
        wrong = first_true(((counts < 1) | (counts > sizes["S"])) & (indices != PADDING).any(1))
        if wrong is not None:
            raise ContractError(
                f"{op}: {element_name('num_accepted', wrong)} is {int(counts[wrong])};"
                f" it must lie in [1, S = {sizes['S']}]"
            )
    _check_races(op, slots_of(call))


def _check_in_pool(op: str, name: str, tensor: Tensor, slots: int) -> None:
    indices = tensor.cpu().long()
    outside = first_true((indices < PADDING) | (indices >= slots))
    if outside is not None:
        raise ContractError(
            f"{op}: {element_name(name, outside)} is {int(indices[outside])};"
            f" it must be a slot in [0, {slots - 1}], or -1 for padding"
        )


def _check_races(op: str, plan: SlotPlan) -> None:
    """Raises ContractError for a slot that two sequences write, or that one sequence reads and another
    writes."""
    tokens = plan.write.shape[1]
    slots = plan.write.flatten()
    order = slots.argsort(stable=True)  # stable: by sequence within a slot
    slots, owners = slots[order], order // tokens

    def place(ordered: int) -> str:
        token = int(order[ordered])
        return element_name("state_indices", (int(plan.active[token // tokens]), token % tokens))

    raced = first_true((slots[1:] == slots[:-1]) & (owners[1:] != owners[:-1]) & (slots[1:] != PADDING))
    if raced is not None:
        raise ContractError(
            f"{op}: {place(raced[0] + 1)} is {int(slots[raced])}, as is {place(raced[0])};"
            " two sequences would race for that slot"
        )
    # Each slot now has at most one writer. Without read_indices a sequence reads its own slot.
    found = torch.searchsorted(slots, plan.read).clamp(max=max(0, len(slots) - 1))
    theirs = (slots[found] == plan.read) & (owners[found] != torch.arange(len(plan.read)))
    if (stolen := first_true(theirs)) is not None:
        raise ContractError(
            f"{op}: {element_name('read_indices', (int(plan.active[stolen]),))} is {int(plan.read[stolen])}"
            f", as is {place(int(found[stolen]))}; one sequence would read what another writes"
        )


def touched(call: Call) -> dict[str, Tensor]:
    """The slots that active sequences read or write: sorted, unique, int64 on the host."""
    return {"state": slots_of(call).touched}


def named_rows(call: Call) -> dict[str, Tensor]:
    """Every slot in an index tensor, whether its sequence is active or not."""
    named = (call.tensors.get(name) for name in INDICES)
    return {"state": torch.cat([indices.flatten() for indices in named if indices is not None])}


def renumber(call: Call, stored: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """state_indices and read_indices for a pool with only the slots `stored`. Slots of padding sequences,
    which are never accessed, become -1. Raises ContractError for another slot that is not stored."""
    if "state" not in stored:
        return {}
    slots = torch.tensor(stored["state"], dtype=torch.int64)
    idle = torch.ones(len(call.tensors["state_indices"]), dtype=torch.bool)
    idle[slots_of(call).active] = False
    found = {}
    for name in INDICES:
        if name in call.tensors:
            indices = call.tensors[name]
            unused = idle if indices.ndim == 1 else idle.unsqueeze(1)
            found[name] = _places(name, indices.long().masked_fill(unused, PADDING), slots).to(indices.dtype)
    return found


def _places(name: str, indices: Tensor, slots: Tensor) -> Tensor:
    """The position of each index among `slots`, ascending."""
    place = torch.searchsorted(slots, indices)
    there = torch.zeros_like(indices, dtype=torch.bool)
    if len(slots):
        there = slots[place.clamp(max=len(slots) - 1)] == indices
    if (lost := first_true((indices != PADDING) & ~there)) is not None:
        raise ContractError(f"{name} names slot {int(indices[lost])} of state, which was not captured")
    return torch.where(indices == PADDING, PADDING, place)


def placed(call: Call, rows: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """state_indices and read_indices for a pool in which the call's slots are at `rows`: the inverse of
    `renumber`."""
    slots = torch.tensor([*rows["state"], PADDING], dtype=torch.long)  # -1 counts from the end
    names = [name for name in INDICES if name in call.tensors]
    return {name: slots[call.tensors[name].long()].to(call.tensors[name].dtype) for name in names}


def partition(call: Call, name: str, by_sequence: Sequence[str]) -> Partition:
    """Active sequences own rows of the tensors `by_sequence` [B, S, Hv, ...], and slots of the pool. A slot
    that is only read belongs to its first reader and must not change. Raises KeyError for any other name."""
    plan = slots_of(call)
    if name in by_sequence:
        return Partition(tuple(Region(i, i + 1, i) for i in plan.active.tolist()), head_axis=2, token_axis=1)
    if name == "state":
        owner_of: dict[int, tuple[int, int | None]] = {}
        for sequence, slot in zip(plan.active.tolist(), plan.read.tolist(), strict=True):
            owner_of.setdefault(slot, (sequence, None))
        # In order of tokens: a slot that a sequence writes twice belongs to the later token.
        for sequence, slots in zip(plan.active.tolist(), plan.write.tolist(), strict=True):
            owner_of |= {slot: (sequence, token) for token, slot in enumerate(slots) if slot != PADDING}
        regions = (
            Region(slot, slot + 1, sequence, token=token)
            for slot, (sequence, token) in sorted(owner_of.items())
        )
        return Partition(tuple(regions), head_axis=1)
    raise KeyError(name)


def accesses(call: Call) -> tuple[Accesses, ...]:
    """One read a sequence, and a write for each slot that its tokens write: for `gdnbench lineage`."""
    plan, indices = slots_of(call), call.tensors["state_indices"]
    reads = torch.stack([plan.active, plan.read, torch.zeros_like(plan.active)], dim=1)
    tokens = torch.full((len(indices),), indices.shape[1], dtype=torch.int64)
    return (Accesses("state", "state", "state", reads, _last_writes(plan), tokens, pooled=True),)


def _last_writes(plan: SlotPlan) -> Tensor:
    """[m, 3]: sequence, slot, tokens consumed; of a slot that a sequence repeats, only the last token."""
    tokens = plan.write.shape[1]
    repeated = torch.zeros_like(plan.write, dtype=torch.bool)
    for later in range(1, tokens):
        repeated[:, :later] |= plan.write[:, :later] == plan.write[:, later : later + 1]
    row, token = torch.nonzero((plan.write != PADDING) & ~repeated, as_tuple=True)
    return torch.stack([plan.active[row], plan.write[row, token], token + 1], dim=1)
