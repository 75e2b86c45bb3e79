"""Shared by the kernels named `fla` of the decode operations: flash-linear-attention's recurrent functions.

The functions have no pool: they read one state per sequence and return new states in fp32. A launch is that
call on states gathered before it, in the pool's dtype. Not part of a launch, hence not timed:

    the gather of the states from their slots    reads and writes every state once
    the scatter of the new ones, rounded         the same

A serving engine that uses such a function also pays for both, unless its own kernel avoids them. Padding
sequences do not reach the launch. The functions allocate states and outputs in the launch.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.delta_decode.hf import DecodeTensors
from gdnbench_kernels.peers import PeerLaunch, contiguous_aligned
from gdnbench_kernels.state_slots import PADDING, plan_slots


def refuse_drafts(params: DecodeTensors) -> None:
    """Raises NotImplementedError for a call of several tokens a sequence."""
    if params.q.shape[1] != 1:
        raise NotImplementedError(
            "flash-linear-attention's decode returns one state a sequence, not one a token;"
            f" the call has S = {params.q.shape[1]}"
        )


def bind_gathered(function: Callable[..., Any], params: DecodeTensors, more: Mapping[str, Any]) -> PeerLaunch:
    """A launch of `function`, whose other arguments are `more`, for a call of one token a sequence and
    states in the layout that `more` says. Raises NotImplementedError if all sequences are padding."""
    v, state = params.v, params.state
    # With one token per sequence num_accepted can only be 1.
    plan = plan_slots(params.state_indices, None, params.read_indices)
    if not len(plan.active):
        raise NotImplementedError("flash-linear-attention launches nothing where every sequence is padding")
    every = len(plan.active) == len(v)
    inputs = {"q": params.q, "k": params.k, "v": v, "g": params.g, "beta": params.beta}
    call = partial(
        function,
        **{name: contiguous_aligned(x if every else x[plan.active]) for name, x in inputs.items()},
        **more,
        scale=params.scale,
        initial_state=state[plan.read],
        output_final_state=True,
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )

    def finish(result: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        out, final = result
        o = torch.full_like(v, torch.nan)
        o[plan.active] = out
        slots = plan.write[:, 0]
        kept = slots != PADDING
        state[slots[kept]] = final[kept].to(state.dtype)
        return {"o": o}

    return PeerLaunch(call, finish)
