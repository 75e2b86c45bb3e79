# SPDX-License-Identifier: Apache-2.0
"""The slots of a decode call as vLLM's functions take them."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.delta_decode.hf import DecodeTensors
from gdnbench_kernels.state_slots import PADDING, SlotPlan


class PoolWithoutSlot0:
    """The pool and the slots [B, S] int32 that vLLM's functions get.

    For vLLM slot 0 is no slot: a sequence that has it is padding. Where a call has a state in slot 0, or
    slots that are not contiguous, the states that it names are gathered into a pool whose slot 0 is empty;
    `finish` scatters them back.
    """

    def __init__(self, params: DecodeTensors, plan: SlotPlan) -> None:
        state, given = params.state, params.state_indices
        self._params = params
        self._plan = plan
        self._gathered = bool((plan.touched == 0).any()) or not state[0].is_contiguous()
        indices = given.int().clamp(min=0)
        self.pool = state
        if self._gathered:
            empty = torch.zeros_like(state[:1], memory_format=torch.contiguous_format)
            self.pool = torch.cat([empty, state[plan.touched]])
            places = torch.searchsorted(plan.touched, given.long()) + 1
            indices = torch.where(given == PADDING, 0, places).int()
        idle = torch.ones(len(indices), dtype=torch.bool, device=indices.device)
        idle[plan.active] = False
        self.indices = indices.masked_fill(idle.unsqueeze(1), 0).contiguous()

    def finish(self, out: Tensor) -> dict[str, Tensor]:
        """Bring the new states to their slots, and return o, of which `out` has the elements in order."""
        plan, v = self._plan, self._params.v
        if self._gathered:
            self._params.state[plan.touched] = self.pool[1:]
        o = torch.full_like(v, torch.nan)
        o[plan.active] = out.view(v.shape)[plan.active]
        return {"o": o}
