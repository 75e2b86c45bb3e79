"""What approximate instructions may cost a kernel of gdn_decode, where torch's kernel may happen to be exact.

A state in fp32 is held to twice torch's error, some 2^-24 of its values. `ex2.approx` errs by up to 2^-22
(PTX ISA, "ex2"), and so does a right kernel's state. With u = 2^-24 and errors relative to the exact term:

    term      where            error              from
    alpha_t   always           2^-22 + 2 u |g|    ex2.approx; g log2(e) and the constant round
              |g| < 2^-20      0, not 2^-22       see `FAINT`
              gate raw         and 9 u |g|        g itself: as beta_t, `stage_rules`
                               and u exp(A_log)   1 + exp(x), see below
    beta_t    gate raw         9 u                `stage_rules`
    q_t, k_t  qk raw           2^-22              rsqrt.approx (PTX ISA, "rsqrt")

The decode kernels of vLLM and SGLang compute softplus(x) as log(1 + exp(x)), and as x above 20. The sum
rounds by u of itself, which moves its logarithm by u, whatever x is. So g = -exp(A_log) softplus(x) is off by
u exp(A_log), and alpha_t by as much of itself. That is more than 9 u |g| where softplus(x) < 1 / 9. With x
below -17 the sum is 1, and the kernel has no decay at all; the exact one is exp(A_log) 2^-24 or less.

Each term moves the exact state and outputs in proportion, for errors this small. The leeway is the sum of
what the four move, each by itself, by the whole of its error and in the same direction in every token: errors
that differ in sign move less.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.stage_rules import BETA_UNITS, UNIT
from gdnbench_kernels.gdn_decode.steps import exact_steps

APPROXIMATE = 2.0**-22
FAINT = 2.0**-20
"""Below this |g| an H200's ex2.approx is right to 2^-23.5, which twice torch's error and rounding nearly
cover. A leeway of 2^-22 would be larger than the decay itself and hide a gate that is lost."""


def leeway(call: Call, output: str) -> Tensor | None:
    """By how much each element of `o` or `state` may be off; None for another name. fp64, zero where the
    exact result is not finite."""
    if output not in ("o", "state"):
        return None
    given = {**call.tensors, **call.scalars, **call.conventions}
    exact = {**exact_steps.gates(**given), **exact_steps.normalise(**given)}
    raw_gate, raw_qk = call.conventions.get("gate") == "raw", call.conventions.get("qk") == "raw"
    g = exact["alpha_t"].log().abs().nan_to_num(0.0, 0.0, 0.0)
    errors: dict[str, Tensor | float] = {
        "alpha_t": torch.where(g < FAINT, 0.0, APPROXIMATE)
        + (2 + (BETA_UNITS if raw_gate else 0)) * UNIT * g
        + (UNIT * call.tensors["A_log"].double().exp() if raw_gate else 0.0),
        **({"beta_t": BETA_UNITS * UNIT} if raw_gate else {}),
        **({"q_t": APPROXIMATE, "k_t": APPROXIMATE} if raw_qk else {}),
    }
    right = exact_steps.update(stages=exact, **given)[output]
    found = torch.zeros_like(right)
    for term, error in errors.items():
        moved = exact_steps.update(stages={**exact, term: exact[term] * (1 + error)}, **given)[output]
        found += (moved - right).abs().nan_to_num(0.0, 0.0, 0.0)
    return found
