# SPDX-License-Identifier: Apache-2.0
"""The windows that a call of conv_prefill reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.conv import PADDING, bounds_of


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """The active sequences of a call: those with tokens and, where there is a pool, with a slot."""

    bounds: list[tuple[int, int]]
    active: list[int]
    slots: list[int]  # of each active sequence; empty without a pool
    reads: list[bool]  # whether each active sequence reads its slot

    @property
    def sequences(self) -> int:
        return len(self.bounds)


def plan_windows(
    cu_seqlens: Tensor, state_indices: Tensor | None = None, has_initial_state: Tensor | None = None
) -> PrefillPlan:
    """The plan of a call with these index tensors, which are read on the host."""
    bounds = bounds_of(cu_seqlens)
    slots: list[int] = [] if state_indices is None else state_indices.tolist()
    initial: list[bool] = [False] * len(bounds) if has_initial_state is None else has_initial_state.tolist()
    filled = [n for n, (start, stop) in enumerate(bounds) if stop > start]
    if state_indices is None:
        return PrefillPlan(bounds, filled, [], [False] * len(filled))
    active = [n for n in filled if slots[n] != PADDING]
    return PrefillPlan(bounds, active, [slots[n] for n in active], [bool(initial[n]) for n in active])


def plan_of(tensors: Mapping[str, Tensor]) -> PrefillPlan:
    """The plan of a call with these tensors, of which index tensors suffice. KeyError without cu_seqlens."""
    pool = "state_indices" in tensors
    names = ("state_indices", "has_initial_state")
    slots, initial = (tensors.get(name) if pool else None for name in names)
    return plan_windows(tensors["cu_seqlens"], slots, initial)


def windows_before(
    plan: PrefillPlan, x: Tensor, weight: Tensor, pool: Tensor | None
) -> list[tuple[int, Tensor]]:
    """Each active sequence with the window [D, W-1] before its first token, of x's dtype."""
    zeros = torch.zeros(weight.shape[0], weight.shape[1] - 1, dtype=x.dtype, device=x.device)
    if pool is None:
        return [(n, zeros) for n in plan.active]
    return [
        (n, pool[slot].to(x.dtype) if reads else zeros)
        for n, slot, reads in zip(plan.active, plan.slots, plan.reads, strict=True)
    ]
