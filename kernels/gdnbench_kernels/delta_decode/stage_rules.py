"""Limits of the stages of decode, for cases in which the ratio to torch's error says too little.

beta_t is one number per token and head. If it is computed from b, torch's result may happen to be the nearest
float. A result that is one ulp off, as any computation of a sigmoid sometimes gives, then exceeds twice
torch's error. With u = 2^-24, half an ulp of a number just over 1: exp to two ulps errs by 4 u, and 1 / (1 +
t) or t / (1 + t) by no more; the sum, its refined reciprocal and the product add 1, 2 and 1 u, beta_max
another 1. Below the normal floats exp and the two products round by 2^-150 each. A beta rounded to bf16 has
an error of 2^-9, 3,600 times as much.

delta_t has the error of beta_t in every element, where torch may have none, so that error is allowed in
addition to the ratio. With |k_t| <= 1 a token multiplies the state's error by a matrix of norm <= 1 (beta_max
<= 2, alpha_t <= 1, of every channel). So the error of token t is at most beta_max times the sum of the errors
of the tokens up to it, and over S tokens in norm at most beta_max S times the relative error of one.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from gdnbench_kernels.contract import Call, Limit

UNIT = 2.0**-24
BETA_UNITS = 9


def computed_beta_limit(call: Call, stage: str) -> Limit | None:
    """The limits above, of a call whose kernel computes beta from b; None for other stages."""
    if stage == "beta_t":
        return Limit(BETA_UNITS * UNIT, absolute=3 * 2.0**-150, instead=True)
    if stage == "delta_t":
        steps = call.tensors["v"].shape[1]
        growth = 1.0 if steps == 1 else steps * max(1.0, float(call.scalars.get("beta_max") or 1.0))
        return Limit(BETA_UNITS * UNIT * growth, added=True)
    return None
