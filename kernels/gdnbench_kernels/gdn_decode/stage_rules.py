"""What a stage of gdn_decode is held to, where the ratio to torch's error says too little.

beta_t is one number for each token and head. Where it is made of b, torch's own may happen to be the nearest
float, and a number that is an ulp off, as every way to compute a sigmoid has some, would be over twice its
error. With u = 2^-24, half an ulp of a number just over 1: exp to two ulps of its result is 4 u, and of
1 / (1 + t) or t / (1 + t) no more; the sum, its reciprocal with its refinement and the product are 1, 2 and
1 u, beta_max once more 1. Below the normal floats exp and the two products round by 2^-150 each. A beta
that is rounded to bf16 is 2^-9 off, 3,600 times as far.

delta_t has that error of beta_t in every element at once, where torch may have none: it is allowed beside the
ratio. With |k_t| <= 1 a token multiplies what is off in the state by a matrix of norm <= 1 (beta_max <= 2,
alpha_t <= 1), so the error of token t is at most beta_max times the sum of those of the tokens up to it, and
over S tokens in norm at most beta_max S times the relative error of one.
"""

from __future__ import annotations

from gdnbench_kernels.contract import Call, Limit

UNIT = 2.0**-24
BETA_UNITS = 9


def stage_limit(call: Call, stage: str) -> Limit | None:
    """The limits above; None for other stages, and for a beta that was given."""
    if call.conventions.get("gate") != "raw":
        return None
    if stage == "beta_t":
        return Limit(BETA_UNITS * UNIT, absolute=3 * 2.0**-150, instead=True)
    if stage == "delta_t":
        steps = call.tensors["v"].shape[1]
        growth = 1.0 if steps == 1 else steps * max(1.0, float(call.scalars.get("beta_max") or 1.0))
        return Limit(BETA_UNITS * UNIT * growth, added=True)
    return None
