"""The fp64 oracle of kda_decode. It accepts every convention, so no conversion changes the caller's inputs
first."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gdnbench_kernels.kda_decode.params import KdaDecodeParams
from gdnbench_kernels.kda_decode.steps import exact_steps
from gdnbench_kernels.params import by_name, takes_params


@takes_params(KdaDecodeParams)
def reference(params: KdaDecodeParams, *, stages: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """o [B, S, Hv, V] and the whole pool after the call, both fp64; the given pool stays unchanged. Fills
    `stages`, if given, with every stage.

    o of padding sequences is NaN.
    """
    if params.state.dtype == torch.float64:
        params = replace(params, state=params.state.clone())
    return exact_steps.run_steps(stages, **by_name(params))
