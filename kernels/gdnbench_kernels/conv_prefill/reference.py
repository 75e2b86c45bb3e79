# SPDX-License-Identifier: Apache-2.0
"""The fp64 oracle of conv_prefill."""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.conv_prefill.forward import forward
from gdnbench_kernels.conv_prefill.params import ConvPrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.rounding import EXACT


@takes_params(ConvPrefillParams)
def reference(params: ConvPrefillParams) -> dict[str, Tensor]:
    """y [T, D], NaN where no active sequence has tokens, and the whole pool after the call, if there is one;
    both fp64. The given pool stays unchanged."""
    return forward(params, EXACT)
