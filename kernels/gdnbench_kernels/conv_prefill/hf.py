# SPDX-License-Identifier: Apache-2.0
"""The kernel named `hf` of conv_prefill: transformers' causal_conv1d_fn, sequence by sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.conv import shifted
from gdnbench_kernels.conv_prefill.params import ConvPrefillParams
from gdnbench_kernels.conv_prefill.windows import plan_windows, windows_before
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.transformers_functions import transformers_function


@takes_params(ConvPrefillParams)
def hf(params: ConvPrefillParams) -> dict[str, Tensor]:
    """Update `conv_state` in place, if given, and return y [T, D] in x's dtype, NaN where no active sequence
    has tokens.

    The function has no windows. As its caller does, this kernel gives it those before a sequence as further
    inputs, and drops their outputs.
    """
    x, weight, pool = params.x, params.weight, params.conv_state
    convolve = transformers_function("causal_conv1d_fn", "torch_causal_conv1d_fn")
    activation = None if params.activation == "none" else params.activation
    plan = plan_windows(
        params.cu_seqlens, None if pool is None else params.state_indices, params.has_initial_state
    )
    y = torch.full_like(x, torch.nan)
    for place, (n, window) in enumerate(windows_before(plan, x, weight, pool)):
        tokens = slice(*plan.bounds[n])
        inputs = torch.cat([window, x[tokens].T], dim=1).unsqueeze(0)
        y[tokens] = convolve(inputs, weight, params.bias, activation)[0, :, window.shape[1] :].T
        if pool is not None:
            pool[plan.slots[place]] = shifted(window, x[tokens])
    return {"y": y}
