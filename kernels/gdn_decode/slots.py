"""Which slots of the state pool a decode call reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PADDING = -1


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Slots by sequence; int64, on the device of the index tensor.

    A sequence is active unless the slot it reads is padding. An active sequence writes no slot for a token
    whose own slot is padding, yet goes on.
    """

    active: Tensor  # [A] sequences that run
    read: Tensor  # [A] slot that each reads
    write: Tensor  # [A, S] slot that each token is written to, or PADDING


def plan_slots(state_indices: Tensor, num_accepted: Tensor | None) -> SlotPlan:
    """Sequence i reads slot state_indices[i, num_accepted[i] - 1]; without `num_accepted`, [i, 0]."""
    indices = state_indices.long()
    if num_accepted is None:
        read = indices[:, 0]
    else:
        # A sequence that is padding throughout may hold any count.
        column = (num_accepted.long() - 1).clamp(0, indices.shape[1] - 1)
        read = indices.gather(1, column.unsqueeze(1)).squeeze(1)
    active = torch.nonzero(read != PADDING).flatten()
    return SlotPlan(active, read[active], indices[active])
