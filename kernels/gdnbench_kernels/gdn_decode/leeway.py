"""What approximate instructions may cost a kernel of gdn_decode, where torch's kernel may happen to be exact.

A state in fp32 is held to twice torch's error, some 2^-24 of its values. `ex2.approx` errs by up to 2^-22
(PTX ISA, "ex2"), and so does a right kernel's state. With u = 2^-24 and errors relative to the exact term:

    term      where            error              from
    alpha_t   always           2^-22 + 2 u |g|    ex2.approx; g log2(e) and the constant round
              |g| < 2^-20      0, not 2^-22       see `FAINT`
              gate raw         and 9 u |g|        g itself: as beta_t, `delta_decode.stage_rules`
                               and u exp(A_log)   1 + exp(x), see below
    beta_t    gate raw         9 u                `delta_decode.stage_rules`
    q_t, k_t  qk raw           2^-22              rsqrt.approx (PTX ISA, "rsqrt")

The decode kernels of vLLM and SGLang compute softplus(x) as log(1 + exp(x)), and as x above 20. The sum
rounds by u of itself, which moves its logarithm by u, whatever x is. So g = -exp(A_log) softplus(x) is off by
u exp(A_log), and alpha_t by as much of itself. That is more than 9 u |g| where softplus(x) < 1 / 9. With x
below -17 the sum is 1, and the kernel has no decay at all; the exact one is exp(A_log) 2^-24 or less.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_decode.leeway import APPROXIMATE, Errors, exponential_error, leeway_of
from gdnbench_kernels.delta_decode.stage_rules import BETA_UNITS, UNIT
from gdnbench_kernels.gdn_decode.steps import exact_steps


def leeway(call: Call, output: str) -> Tensor | None:
    """By how much each element of `o` or `state` may be off; None for another name. fp64, zero where the
    exact result is not finite."""
    raw_gate, raw_qk = call.conventions.get("gate") == "raw", call.conventions.get("qk") == "raw"

    def errors(exact: Mapping[str, Tensor]) -> Errors:
        g = exact["alpha_t"].log().abs().nan_to_num(0.0, 0.0, 0.0)
        return {
            "alpha_t": exponential_error(g)
            + (2 + (BETA_UNITS if raw_gate else 0)) * UNIT * g
            + (UNIT * call.tensors["A_log"].double().exp() if raw_gate else 0.0),
            **({"beta_t": BETA_UNITS * UNIT} if raw_gate else {}),
            **({"q_t": APPROXIMATE, "k_t": APPROXIMATE} if raw_qk else {}),
        }

    return leeway_of(exact_steps, call, output, errors)
