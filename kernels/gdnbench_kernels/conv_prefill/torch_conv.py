"""The kernel named `torch` of conv_prefill: sums in fp32 on the recorded operands, tap after tap, and y
rounded to x's dtype once."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.conv_prefill.forward import forward
from gdnbench_kernels.conv_prefill.params import ConvPrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.rounding import tensor_core_arithmetic


@takes_params(ConvPrefillParams)
def torch_conv(params: ConvPrefillParams) -> dict[str, Tensor]:
    """Update `conv_state` in place, if given, and return y [T, D] in x's dtype, NaN where no active sequence
    has tokens."""
    return forward(params, tensor_core_arithmetic(params.x.dtype))
