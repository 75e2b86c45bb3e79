"""What approximate instructions may cost a kernel of kda_decode, where torch's kernel may happen to be exact.

As in `gdn_decode.leeway`, which derives the errors of a raw gate, with u = 2^-24 and errors relative to the
exact term:

    term      where              error                from
    alpha_t   always             2^-22 + 2 u |g|      ex2.approx; g log2(e) and the constant round
              |g| < 2^-20        0, not 2^-22         see `delta_decode.leeway.FAINT`
              gate raw           and 9 u |g|          g itself: as beta_t, `delta_decode.stage_rules`
                                 and u exp(A_log)     1 + exp(x)
              gate bounded       and 9 u |g|          the sigmoid and its product: as beta_t
                                 and |g| (1 - s) |z| r   z, see below
    beta_t    beta_form logit    9 u                  `delta_decode.stage_rules`
    q_t, k_t  qk raw             2^-22                rsqrt.approx (PTX ISA, "rsqrt")

A bounded gate is g = lower_bound s with s = sigmoid(z) and z = exp(A_log) (x + dt_bias). A relative error r
of z moves s by s (1 - s) |z| r. By ex2.approx exp(A_log) errs by 2^-22 + 2 u |A_log|; the sum, the product
with it, and z log2(e) with its constant, inside the sigmoid, round by u each: r = 2^-22 + (4 + 2 |A_log|) u.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_decode.leeway import APPROXIMATE, Errors, exponential_error, leeway_of
from gdnbench_kernels.delta_decode.stage_rules import BETA_UNITS, UNIT
from gdnbench_kernels.kda_decode.steps import exact_steps


def leeway(call: Call, output: str) -> Tensor | None:
    """By how much each element of `o` or `state` may be off; None for another name. fp64, zero where the
    exact result is not finite."""

    def errors(exact: Mapping[str, Tensor]) -> Errors:
        return {
            "alpha_t": alpha_error(call, exact["alpha_t"].log().abs().nan_to_num(0.0, 0.0, 0.0)),
            **({"beta_t": BETA_UNITS * UNIT} if call.conventions.get("beta_form") == "logit" else {}),
            **({"q_t": APPROXIMATE, "k_t": APPROXIMATE} if call.conventions.get("qk") == "raw" else {}),
        }

    return leeway_of(exact_steps, call, output, errors)


def alpha_error(call: Call, g: Tensor) -> Tensor:
    """The relative error of alpha, from the magnitude of the exact log decay [..., Hv, K], fp64."""
    form = call.conventions.get("gate", "log")
    error = exponential_error(g) + 2 * UNIT * g
    if form == "log":
        return error
    A_log = call.tensors.get("A_log")
    log_rate = torch.zeros(1, dtype=torch.float64) if A_log is None else A_log.double().unsqueeze(-1)
    error = error + BETA_UNITS * UNIT * g
    if form == "raw":
        return error + UNIT * log_rate.exp()
    bound = call.scalars["lower_bound"]
    assert isinstance(bound, int | float)
    sigmoid = g / -bound
    of_z = ((1 - sigmoid) * sigmoid.logit().abs()).nan_to_num(0.0, 0.0, 0.0)
    return error + g * of_z * (APPROXIMATE + (4 + 2 * log_rate.abs()) * UNIT)
