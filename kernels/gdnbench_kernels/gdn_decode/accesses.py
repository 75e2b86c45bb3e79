"""The states that the sequences of a decode call read and write, for `gdnbench lineage`."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.contract import Accesses, Call
from gdnbench_kernels.gdn_decode.slots import PADDING, SlotPlan, plan_slots


def accesses(call: Call) -> tuple[Accesses, ...]:
    """One read a sequence, and a write for each slot that its tokens write."""
    named = (call.tensors.get(name) for name in ("num_accepted", "read_indices"))
    accepted, read = (None if tensor is None else tensor.cpu() for tensor in named)
    indices = call.tensors["state_indices"].cpu()
    return (slot_accesses(plan_slots(indices, accepted, read), indices, "state", "state"),)


def slot_accesses(plan: SlotPlan, indices: Tensor, chain: str, pool: str) -> Accesses:
    """The accesses of rows of `pool` by a call with `plan`, which is that of `indices` [B, S]."""
    reads = torch.stack([plan.active, plan.read, torch.zeros_like(plan.active)], dim=1)
    tokens = torch.full((len(indices),), indices.shape[1], dtype=torch.int64)
    return Accesses(chain, pool, pool, reads, _last_writes(plan), tokens, pooled=True)


def _last_writes(plan: SlotPlan) -> Tensor:
    """[m, 3]: sequence, slot, tokens consumed; of a slot that a sequence repeats, only the last token."""
    tokens = plan.write.shape[1]
    repeated = torch.zeros_like(plan.write, dtype=torch.bool)
    for later in range(1, tokens):
        repeated[:, :later] |= plan.write[:, :later] == plan.write[:, later : later + 1]
    row, token = torch.nonzero((plan.write != PADDING) & ~repeated, as_tuple=True)
    return torch.stack([plan.active[row], plan.write[row, token], token + 1], dim=1)
