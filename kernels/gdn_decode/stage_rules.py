"""What a stage of gdn_decode is held to, where the ratio to torch's error says too little.

beta_t is one number for each token and head. Where it is made of b, torch's own may happen to be the nearest
float, and a number that is an ulp off, as every way to compute a sigmoid has some, would be over twice its
error. With u = 2^-24, half an ulp of a number just over 1: exp to two ulps of its result is 4 u, and of
1 / (1 + t) or t / (1 + t) no more; the sum, its reciprocal with its refinement and the product are 1, 2 and
1 u, beta_max once more 1. Below the normal floats exp and the two products round by 2^-150 each. A beta
that is rounded to bf16 is 2^-9 off, 3,600 times as far.
"""

from __future__ import annotations

from gdnbench_kernels.contract import Call, Limit

UNIT = 2.0**-24
BETA_UNITS = 9


def stage_limit(call: Call, stage: str) -> Limit | None:
    """The limit above; None for other stages, and for a beta that was given."""
    if stage == "beta_t" and call.conventions.get("gate") == "raw":
        return Limit(BETA_UNITS * UNIT, absolute=3 * 2.0**-150, instead=True)
    return None
