"""The kernel named `torch` of gdn_prefill: the chunked form with the roundings of the served dtype.

It emulates the published three-kernel design (see `chunked`): operands in q's dtype, exact products, fp32
sums, and every intermediate that the design stores rounded to that dtype. With fp32 inputs everything is at
least fp32. Within one chunk a NaN reaches earlier tokens too, as in any kernel that multiplies a masked tile
by dense values (0 * NaN); it never leaves its sequence.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import run_chunked
from gdnbench_kernels.gdn_prefill.chunked import inputs_of
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.rounding import tensor_core_arithmetic


@takes_params(PrefillParams, without=("beta_max", "gate", "state_layout", "qk"))
def torch_chunked(params: PrefillParams, *, stages: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """o [T, Hv, V] in v's dtype and final_state [N, Hv, V, K] in `final_state_dtype`; fills `stages` if
    given."""
    return run_chunked(inputs_of(params), tensor_core_arithmetic(params.v.dtype), params, stages)
