"""The kernel named `torch` of kda_prefill: the chunked form with the roundings of the served dtype.

Operands are in q's dtype, products exact, sums in fp32, and stored intermediates are rounded to q's dtype:
see `chunked`. With fp32 inputs everything is at least fp32. Within one chunk a NaN reaches earlier tokens
too, as in any kernel that multiplies a masked tile by dense values (0 * NaN); it never leaves its sequence.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import run_chunked
from gdnbench_kernels.kda_prefill.chunked import inputs_of
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.rounding import tensor_core_arithmetic

_CONVERTED = ("gate", "A_log", "dt_bias", "lower_bound", "beta_form", "beta_max", "state_layout", "qk")
"""Arguments of representations that this kernel does not take; replay converts them."""


@takes_params(KdaPrefillParams, without=_CONVERTED)
def torch_chunked(params: KdaPrefillParams, *, stages: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """o [T, Hv, V] in v's dtype and final_state [N, Hv, V, K] in `final_state_dtype`; fills `stages` if
    given."""
    return run_chunked(inputs_of(params), tensor_core_arithmetic(params.v.dtype), params, stages)
