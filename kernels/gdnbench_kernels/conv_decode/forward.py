# SPDX-License-Identifier: Apache-2.0
"""conv_decode in a given arithmetic, sequence by sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.conv import convolve
from gdnbench_kernels.conv_decode.params import ConvDecodeParams
from gdnbench_kernels.conv_decode.windows import plan_windows, store_windows, windows_before
from gdnbench_kernels.rounding import Arithmetic


def forward(params: ConvDecodeParams, arithmetic: Arithmetic) -> dict[str, Tensor]:
    """y and conv_state in the stored dtype; sums are in the compute dtype. The pool is written in place if it
    has the stored dtype and is no fp64, else it is a copy."""
    x, weight, stored = params.x, params.weight, arithmetic.stored
    plan = plan_windows(params.cu_seqlens, params.state_indices, params.num_accepted, params.read_indices)
    y = torch.full(x.shape, torch.nan, dtype=stored, device=x.device)
    before = windows_before(plan, x, weight, params.conv_state)
    for n, window in before:
        tokens = slice(*plan.bounds[n])
        found = convolve(x[tokens], window, weight, params.bias, params.activation, arithmetic.compute)
        y[tokens] = found.to(stored)
    pool = params.conv_state.to(stored, copy=stored == torch.float64)
    store_windows(pool, plan, x, before)
    return {"y": y, "conv_state": pool}
