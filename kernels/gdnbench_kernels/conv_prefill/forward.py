# SPDX-License-Identifier: Apache-2.0
"""conv_prefill in a given arithmetic, sequence by sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.conv import convolve, shifted
from gdnbench_kernels.conv_prefill.params import ConvPrefillParams
from gdnbench_kernels.conv_prefill.windows import plan_windows, windows_before
from gdnbench_kernels.rounding import Arithmetic


def forward(params: ConvPrefillParams, arithmetic: Arithmetic) -> dict[str, Tensor]:
    """y and, if the call has a pool, conv_state, in the stored dtype; sums are in the compute dtype. The pool
    is written in place if it has the stored dtype and is no fp64, else it is a copy."""
    x, weight, pool = params.x, params.weight, params.conv_state
    with_slots = None if pool is None else params.state_indices
    plan = plan_windows(params.cu_seqlens, with_slots, params.has_initial_state)
    y = torch.full(x.shape, torch.nan, dtype=arithmetic.stored, device=x.device)
    after = None if pool is None else pool.to(arithmetic.stored, copy=arithmetic.stored == torch.float64)
    for place, (n, window) in enumerate(windows_before(plan, x, weight, pool)):
        tokens = slice(*plan.bounds[n])
        y[tokens] = convolve(
            x[tokens], window, weight, params.bias, params.activation, arithmetic.compute
        ).to(arithmetic.stored)
        if after is not None:
            after[plan.slots[place]] = shifted(window, x[tokens]).to(after.dtype)
    return {"y": y} if after is None else {"y": y, "conv_state": after}
