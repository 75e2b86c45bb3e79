# SPDX-License-Identifier: Apache-2.0
"""What approximate instructions may cost a kernel of kda_prefill: see `delta_prefill.leeway`. A gate that the
kernel computes adds its error (`KdaGates.decay_error`), and so does a beta."""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_prefill.leeway import exact_terms, leeway_of, magnitudes
from gdnbench_kernels.gate_errors import sigmoid_error
from gdnbench_kernels.kda_prefill.chunked import gates_of_params
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.params import from_call


def leeway(call: Call, output: str) -> Tensor | None:
    """By how much each element of `o` or `final_state` may be off; see `leeway_of`."""
    params = from_call(KdaPrefillParams, {**call.tensors, **call.scalars, **call.conventions})
    gates = gates_of_params(params)
    exact = exact_terms(params, gates)
    errors = {"g": gates.decay_error(magnitudes(exact["g"]))}
    if gates.beta_form == "logit":
        errors["beta"] = sigmoid_error(exact["beta"] / gates.beta_max)
    return leeway_of(params, exact, output, errors)
