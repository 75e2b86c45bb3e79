# SPDX-License-Identifier: Apache-2.0
"""The windows that a call of conv_decode reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.conv import PADDING, bounds_of


@dataclass(frozen=True, slots=True)
class Written:
    """A window that a call leaves: that after `tokens` tokens of a sequence, from column `column` of a
    slot."""

    slot: int
    tokens: int
    column: int


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The active sequences of a call: those with tokens that read a slot. Lists go by active sequence.

    `rolling`: a slot keeps the windows after every token, each a column after the one before. So a slot is
    W-1 columns and one more for each token but the first, and the window after t tokens begins at column t-1.
    """

    bounds: list[tuple[int, int]]
    rolling: bool
    active: list[int]
    read: list[int]  # the slot that each reads
    column: list[int]  # from which column
    write: list[list[Written]]  # in order of tokens: in one slot the later window stays

    @property
    def touched(self) -> list[int]:
        """Slots that are read or written, ascending."""
        return sorted({*self.read, *(one.slot for windows in self.write for one in windows)})

    def length(self, place: int) -> int:
        """Tokens of the active sequence at `place`."""
        start, stop = self.bounds[self.active[place]]
        return stop - start

    def sequences(self) -> Iterator[tuple[int, slice, int, int, list[Written]]]:
        """Number, tokens, slot and column to read, and windows to write of each active sequence."""
        rows = zip(self.active, self.read, self.column, self.write, strict=True)
        for n, slot, column, windows in rows:
            yield n, slice(*self.bounds[n]), slot, column, windows


def plan_windows(
    cu_seqlens: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
    read_indices: Tensor | None = None,
) -> DecodePlan:
    """The plan of a call with these index tensors, which are read on the host. At most one of num_accepted
    and read_indices is given."""
    bounds, slots = bounds_of(cu_seqlens), state_indices.tolist()
    each = state_indices.shape[1]
    rolling = num_accepted is not None and each == 1
    # The count of a padding sequence may be any number.
    counts: list[int] = [1] * len(bounds) if num_accepted is None else num_accepted.tolist()
    reads: list[int] | None = None if read_indices is None else read_indices.tolist()
    plan = DecodePlan(bounds, rolling, [], [], [], [])
    for n, (start, stop) in enumerate(bounds):
        accepted = min(max(counts[n], 1), each) if not rolling else counts[n]
        read = reads[n] if reads is not None else slots[n][0 if rolling else accepted - 1]
        if stop == start or read == PADDING:
            continue
        plan.active.append(n)
        plan.read.append(read)
        plan.column.append(accepted - 1 if rolling else 0)
        plan.write.append(_written(slots[n], stop - start, rolling))
    return plan


def _written(slots: list[int], tokens: int, rolling: bool) -> list[Written]:
    if rolling:
        return [Written(slots[0], token, token - 1) for token in range(1, tokens + 1)]
    if len(slots) == 1:
        return [Written(slots[0], tokens, 0)] if slots[0] != PADDING else []
    named = enumerate(slots[:tokens], 1)
    return [Written(slot, token, 0) for token, slot in named if slot != PADDING]


def plan_of(tensors: Mapping[str, Tensor]) -> DecodePlan:
    """The plan of a call with these tensors. Raises KeyError without cu_seqlens or state_indices."""
    given = (tensors.get(name) for name in ("num_accepted", "read_indices"))
    return plan_windows(tensors["cu_seqlens"], tensors["state_indices"], *given)


def windows_before(plan: DecodePlan, x: Tensor, weight: Tensor, pool: Tensor) -> list[tuple[int, Tensor]]:
    """Each active sequence with the window [D, W-1] before its first token, of x's dtype; copies."""
    columns = weight.shape[1] - 1
    return [
        (n, pool[slot, :, column : column + columns].to(x.dtype, copy=True))
        for n, _, slot, column, _ in plan.sequences()
    ]


def store_windows(pool: Tensor, plan: DecodePlan, x: Tensor, before: list[tuple[int, Tensor]]) -> None:
    """Write the windows after the tokens of every active sequence into `pool`, in its dtype."""
    for (_, tokens, _, _, windows), (_, window) in zip(plan.sequences(), before, strict=True):
        inputs = torch.cat([window, x[tokens].T], dim=1).to(pool.dtype)
        columns = window.shape[1]
        for one in windows:
            pool[one.slot, :, one.column : one.column + columns] = inputs[
                :, one.tokens : one.tokens + columns
            ]
