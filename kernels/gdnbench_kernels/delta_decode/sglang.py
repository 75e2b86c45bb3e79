# SPDX-License-Identifier: Apache-2.0
"""The slots of a decode call as SGLang's functions take them."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from gdnbench_kernels.delta_decode.hf import DecodeTensors
from gdnbench_kernels.state_slots import PADDING, SlotPlan, plan_slots


class DraftTensors(DecodeTensors, Protocol):
    """The parameters of a decode call that `VerifiedSlots` reads."""

    @property
    def num_accepted(self) -> Tensor | None: ...


class VerifiedSlots:
    """The pool that a function gets, the slot that each sequence reads, and where the new states are.

    With one token a sequence, whose state is read from the slot that it is written to, the function updates
    the pool in place. Otherwise it leaves the pool unchanged, as when SGLang verifies drafts, and stores the
    state after each token in a buffer [B, S, Hv, V, K]. `packed`: the function for one token takes slots with
    gaps between them.
    """

    def __init__(self, params: DraftTensors, *, packed: bool) -> None:
        state, tokens = params.state, params.q.shape[1]
        self.params = params
        self.plan: SlotPlan = plan_slots(params.state_indices, params.num_accepted, params.read_indices)
        self.in_place = tokens == 1 and torch.equal(self.plan.read, self.plan.write[:, 0])
        # The packed functions, which alone take slots with gaps between them, take one token.
        packed = packed and self.in_place
        self.gathered = not (state[:1] if packed else state).is_contiguous()
        read = torch.full((len(params.q),), PADDING, dtype=torch.int32, device=state.device)
        read[self.plan.active] = self.plan.read.int()
        self.pool = state
        if self.gathered:
            self.pool = state[self.plan.touched]
            places = torch.searchsorted(self.plan.touched, read.clamp(min=0).long())
            read = torch.where(read == PADDING, read, places.int())
        self.read = read
        self.after: Tensor | None = None
        if not self.in_place:
            self.after = torch.empty(
                len(params.q), tokens, *state.shape[1:], dtype=state.dtype, device=state.device
            )

    def verifying(self) -> dict[str, Any]:
        """The arguments for a call that stores the state after each token in `after`, if there is one."""
        rows = torch.arange(len(self.read), dtype=torch.int32, device=self.read.device)
        # Given without a buffer too: 0.5.21 asks for its length.
        given: dict[str, Any] = {
            "intermediate_state_indices": torch.where(self.read == PADDING, PADDING, rows)
        }
        if self.after is not None:
            given |= {
                "disable_state_update": True,
                "intermediate_states_buffer": self.after,
                "cache_steps": self.after.shape[1],
            }
        return given

    def finish(self, out: Tensor) -> dict[str, Tensor]:
        """Bring the new states to their slots, and return o."""
        plan, state, v = self.plan, self.params.state, self.params.v
        if self.after is not None:
            for token in range(self.after.shape[1]):
                kept = plan.write[:, token] != PADDING
                state[plan.write[kept, token]] = self.after[plan.active[kept], token]
        elif self.gathered:
            state[plan.touched] = self.pool
        o = torch.full_like(v, torch.nan)
        o[plan.active] = out.reshape(v.shape)[plan.active]
        return {"o": o}
