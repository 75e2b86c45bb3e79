# SPDX-License-Identifier: Apache-2.0
"""The fp64 oracle of conv_decode."""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.conv_decode.forward import forward
from gdnbench_kernels.conv_decode.params import ConvDecodeParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.rounding import EXACT


@takes_params(ConvDecodeParams)
def reference(params: ConvDecodeParams) -> dict[str, Tensor]:
    """y [T, D], NaN where no active sequence has tokens, and the whole pool after the call; both fp64. The
    given pool stays unchanged."""
    return forward(params, EXACT)
