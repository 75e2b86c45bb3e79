"""What approximate instructions may cost a kernel of gdn_decode, where torch's kernel may happen to be exact.

A state in fp32 is held to twice torch's error, some 2^-24 of its values; `gate_errors` derives how far a
right kernel's terms may be off. Errors are relative to the exact term:

    term      where            error in `gate_errors`
    alpha_t   always           exp(g): `decay_error`
              gate raw         and that of g: `raw_gate_error`
    beta_t    gate raw         `sigmoid_error`
    q_t, k_t  qk raw           `norm_error`

The decode kernels of vLLM and SGLang compute softplus(x) as log(1 + exp(x)), and as x above 20, and
flash-linear-attention's as ln2 lg2.approx(1 + ex2.approx(x log2 e)). With x below -17 the sum is 1, and the
kernel has no decay at all; the exact one is exp(A_log) 2^-24 or less.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_decode.leeway import leeway_of
from gdnbench_kernels.gate_errors import decay_error, norm_error, raw_gate_error, sigmoid_error
from gdnbench_kernels.gdn_decode.steps import exact_steps
from gdnbench_kernels.leeway import Errors, Terms


def leeway(call: Call, output: str) -> Tensor | None:
    """By how much each element of `o` or `state` may be off; None for another name. fp64, zero where the
    exact result is not finite."""

    def errors(exact: Terms) -> Errors:
        g = exact["alpha_t"].log().abs().nan_to_num(0.0, 0.0, 0.0)
        found: dict[str, Tensor | float] = {"alpha_t": decay_error(g)}
        if call.conventions.get("gate") == "raw":
            found["alpha_t"] += raw_gate_error(g, call.tensors["A_log"].double())
            found["beta_t"] = sigmoid_error(exact["beta_t"] / float(call.scalars.get("beta_max") or 1.0))
        if call.conventions.get("qk") == "raw":
            norm = norm_error(call.tensors["k"].shape[-1])
            found |= {"q_t": norm, "k_t": norm}
        return found

    return leeway_of(exact_steps, call, output, errors)
