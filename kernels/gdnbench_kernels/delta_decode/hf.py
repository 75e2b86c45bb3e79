# SPDX-License-Identifier: Apache-2.0
"""Runs one of transformers' recurrent functions on the slots of a decode call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from gdnbench_kernels.gdn import per_value_head
from gdnbench_kernels.state_slots import PADDING, plan_slots
from gdnbench_kernels.transformers_functions import check_scale


class DecodeTensors(Protocol):
    """The parameters of a decode call that functions of gathered states read."""

    @property
    def q(self) -> Tensor: ...
    @property
    def k(self) -> Tensor: ...
    @property
    def v(self) -> Tensor: ...
    @property
    def g(self) -> Tensor: ...
    @property
    def beta(self) -> Tensor: ...
    @property
    def state(self) -> Tensor: ...
    @property
    def state_indices(self) -> Tensor: ...
    @property
    def read_indices(self) -> Tensor | None: ...
    @property
    def scale(self) -> float | None: ...
    @property
    def qk(self) -> str: ...


def recur_on_slots(recurrent: Callable[..., Any], params: DecodeTensors) -> dict[str, Tensor]:
    """Update `state` in place and return o [B, 1, Hv, V], NaN for padding sequences.

    Raises NotImplementedError for more than one token per sequence: the function writes one state, not one
    per token.
    """
    q, k, v, state = params.q, params.k, params.v, params.state
    check_scale(params.scale, k.shape[3])
    if q.shape[1] != 1:
        raise NotImplementedError(f"transformers decodes one token a sequence, the call has S = {q.shape[1]}")
    # With one token per sequence num_accepted can only be 1.
    plan = plan_slots(params.state_indices, read_indices=params.read_indices)
    active, value_heads = plan.active, v.shape[2]
    o = torch.full_like(v, torch.nan)
    out, final = recurrent(
        per_value_head(q[active], value_heads, axis=2),
        per_value_head(k[active], value_heads, axis=2),
        v[active],
        g=params.g[active],
        beta=params.beta[active],
        initial_state=state[plan.read],
        output_final_state=True,
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )
    assert final is not None
    o[active] = out
    written = plan.write[:, 0]
    kept = written != PADDING
    state[written[kept]] = final[kept].to(state.dtype)
    return {"o": o}
