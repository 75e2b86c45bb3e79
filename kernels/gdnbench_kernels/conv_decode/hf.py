# SPDX-License-Identifier: Apache-2.0
"""The kernel named `hf` of conv_decode: transformers' causal_conv1d_update on gathered windows."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.conv_decode.params import ConvDecodeParams
from gdnbench_kernels.conv_decode.windows import plan_windows, windows_before
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.transformers_functions import transformers_function


@takes_params(ConvDecodeParams)
def hf(params: ConvDecodeParams) -> dict[str, Tensor]:
    """Update `conv_state` in place and return y [T, D] in x's dtype, NaN where no active sequence has tokens.

    Raises NotImplementedError for windows after tokens but the last: the function leaves one a sequence.
    """
    x, weight, pool = params.x, params.weight, params.conv_state
    update = transformers_function("causal_conv1d_update", "torch_causal_conv1d_update")
    activation = None if params.activation == "none" else params.activation
    plan = plan_windows(params.cu_seqlens, params.state_indices, params.num_accepted, params.read_indices)
    last = [plan.length(place) for place in range(len(plan.active))]
    if any(one.tokens != n for n, windows in zip(last, plan.write, strict=True) for one in windows):
        raise NotImplementedError(
            "transformers leaves the window after a sequence's last token, the call has windows after each"
        )
    y = torch.full_like(x, torch.nan)
    for (n, window), windows in zip(windows_before(plan, x, weight, pool), plan.write, strict=True):
        tokens, state = slice(*plan.bounds[n]), window.unsqueeze(0)
        y[tokens] = update(x[tokens].T.unsqueeze(0), state, weight, params.bias, activation)[0].T
        for one in windows:
            pool[one.slot, :, : window.shape[1]] = state[0]
    return {"y": y}
