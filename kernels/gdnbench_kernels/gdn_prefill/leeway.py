# SPDX-License-Identifier: Apache-2.0
"""What approximate instructions may cost a kernel of gdn_prefill: see `delta_prefill.leeway`."""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_prefill.leeway import exact_terms, leeway_of
from gdnbench_kernels.gdn_prefill.chunked import GdnGates
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import from_call


def leeway(call: Call, output: str) -> Tensor | None:
    """By how much each element of `o` or `final_state` may be off; see `leeway_of`."""
    params = from_call(PrefillParams, {**call.tensors, **call.scalars, **call.conventions})
    return leeway_of(params, exact_terms(params, GdnGates(params.gate)), output, {})
