# SPDX-License-Identifier: Apache-2.0
"""The slots of the state pool that a decode call reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PADDING = -1


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Slots by sequence; int64, on the device of the index tensor.

    A sequence is active unless the slot it reads is padding. In an active sequence a token whose own slot is
    padding writes no slot; the sequence continues.
    """

    active: Tensor  # [A] indices of active sequences
    read: Tensor  # [A] slot that each reads
    write: Tensor  # [A, S] slot that each token writes, or PADDING

    @property
    def written(self) -> Tensor:
        """Slots that some token writes: sorted, unique."""
        slots: Tensor = torch.unique(self.write[self.write != PADDING])
        return slots

    @property
    def touched(self) -> Tensor:
        """Slots that are read or written: sorted, unique."""
        slots: Tensor = torch.unique(torch.cat([self.read, self.written]))
        return slots


def plan_slots(
    state_indices: Tensor, num_accepted: Tensor | None = None, read_indices: Tensor | None = None
) -> SlotPlan:
    """Sequence i reads slot read_indices[i]; or state_indices[i, num_accepted[i] - 1]; or state_indices[i, 0]
    if neither is given. At most one of them is given."""
    indices = state_indices.long()
    if read_indices is not None:
        read = read_indices.long()
    elif num_accepted is None:
        read = indices[:, 0]
    else:
        # The count of a padding sequence may be any number.
        column = (num_accepted.long() - 1).clamp(0, indices.shape[1] - 1)
        read = indices.gather(1, column.unsqueeze(1)).squeeze(1)
    active = torch.nonzero(read != PADDING).flatten()
    return SlotPlan(active, read[active], indices[active])
