"""The kernel named `torch` of conv_decode: sums in fp32 on the recorded operands, tap after tap, and y
rounded to x's dtype once."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.conv_decode.forward import forward
from gdnbench_kernels.conv_decode.params import ConvDecodeParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.rounding import tensor_core_arithmetic


@takes_params(ConvDecodeParams)
def torch_conv(params: ConvDecodeParams) -> dict[str, Tensor]:
    """Update `conv_state` in place and return y [T, D] in x's dtype, NaN where no active sequence
    has tokens."""
    return forward(params, tensor_core_arithmetic(params.x.dtype))
