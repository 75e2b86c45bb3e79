"""The kernel named `fla` of gdn_decode: flash-linear-attention's fused_recurrent_gated_delta_rule.

The function has no pool: it reads one state per sequence and returns new states in fp32. A launch is that
call on states gathered before it, in the pool's dtype. Not part of a launch, hence not timed:

    the gather of the states from their slots    reads and writes every state once
    the scatter of the new ones, rounded         the same

A serving engine that uses this function also pays for both, unless its own kernel avoids them. Padding
sequences are left out of the launch. The function allocates states and outputs in the launch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Launch
from gdnbench_kernels.gdn_decode.slots import PADDING, plan_slots
from gdnbench_kernels.peers import (
    PeerLaunch,
    call_kind,
    contiguous_aligned,
    fla_module,
    warmed_up,
    with_signature_of,
)


def _bind(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    read_indices: Tensor | None = None,
    scale: float | None = None,
    beta_max: float = 1.0,
    qk: str = "normalised",
    gate: str = "log",
) -> PeerLaunch:
    """The arguments of flash-linear-attention for a call of the contract whose pool is [slots, Hv, K, V]."""
    if q.shape[1] != 1:
        raise NotImplementedError(
            "flash-linear-attention's decode returns one state a sequence, not one a token;"
            f" the call has S = {q.shape[1]}"
        )
    function = fla_module("ops.gated_delta_rule").fused_recurrent_gated_delta_rule
    # With one token per sequence num_accepted can only be 1.
    plan = plan_slots(state_indices, None, read_indices)
    if not len(plan.active):
        raise NotImplementedError("flash-linear-attention launches nothing where every sequence is padding")
    every = len(plan.active) == len(q)
    inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    given: dict[str, Any] = {
        name: contiguous_aligned(x if every else x[plan.active]) for name, x in inputs.items()
    }
    if gate == "raw":
        given |= {"use_gate_in_kernel": True, "A_log": A_log, "dt_bias": dt_bias}
        given |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": beta_max == 2}
    call = partial(
        function,
        **given,
        scale=scale,
        initial_state=state[plan.read],
        output_final_state=True,
        use_qk_l2norm_in_kernel=qk == "raw",
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


@with_signature_of(_bind)
def fla(**call: Any) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, K, V] in place and return o [B, 1, Hv, V], NaN for padding sequences. Raises
    NotImplementedError for a call that flash-linear-attention does not take, ImportError if it is missing."""
    return dict(_bind(**call)())


@with_signature_of(_bind)
def prepare(**call: Any) -> Launch:
    """A launch of the call, compiled. It does not change the pool until its outputs are read."""
    return warmed_up(_bind(**call), once=call_kind("fla", call))
