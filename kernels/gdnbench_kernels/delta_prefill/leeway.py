"""What approximate instructions may cost a kernel of gdn_prefill or kda_prefill, where torch's kernel may
happen to be exact.

With q, k and v in 16 bits torch's error is far larger. With all of them in fp32 it is some 2^-24, and where a
state does nothing but decay, too. `gate_errors` derives how far a right kernel's terms may be off. Errors are
relative to the exact term:

    term     where              error in `gate_errors`
    alpha    always             exp(g): `decay_error`, and that of g that the operation adds
    beta     beta_form logit    `sigmoid_error`
    q, k     qk raw             `norm_error`
             always             2^-22: a chunked kernel multiplies them by exponentials of sums of gates
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import Gates, PrefillTensors
from gdnbench_kernels.delta_prefill.recurrence import recurrence
from gdnbench_kernels.gate_errors import APPROXIMATE, decay_error, norm_error
from gdnbench_kernels.gdn import normalised
from gdnbench_kernels.leeway import Terms, moved_by


@dataclass(frozen=True, slots=True)
class _Factors:
    """g holds the factors of the state, beta the step sizes."""

    def log_decay(self, g: Tensor, compute: torch.dtype) -> Tensor:
        return g.to(compute).log()

    def alpha(self, g: Tensor, compute: torch.dtype) -> Tensor:
        return g.to(compute)

    def step_size(self, beta: Tensor, compute: torch.dtype) -> Tensor:
        return beta.to(compute)


def exact_terms(params: PrefillTensors, gates: Gates) -> dict[str, Tensor]:
    """q, k, g and beta of a call in fp64: q and k normalised, g the factors of the state."""
    return {
        "q": normalised(params.q, params.qk, torch.float64),
        "k": normalised(params.k, params.qk, torch.float64),
        "g": gates.alpha(params.g, torch.float64),
        "beta": gates.step_size(params.beta, torch.float64),
    }


def magnitudes(alpha: Tensor) -> Tensor:
    """|g| of alpha = exp(g), 0 where alpha is 0 or not finite: no relative error moves that."""
    return alpha.log().abs().nan_to_num(0.0, 0.0, 0.0)


def leeway_of(params: Any, exact: Terms, output: str, more: Mapping[str, Tensor]) -> Tensor | None:
    """By how much each element of `o` or `final_state` may be off; None for another name, or if the call has
    no such output. fp64, in the call's state layout, zero where the exact result is not finite. `exact`: see
    `exact_terms`; `more`: errors relative to a term of it, besides those that both operations have. See
    `leeway.moved_by`."""
    if output != "o" and not (output == "final_state" and params.output_final_state):
        return None
    of_vector = APPROXIMATE + (norm_error(params.k.shape[-1]) if params.qk == "raw" else 0.0)
    of_decay = decay_error(magnitudes(exact["g"])) + more.get("g", 0.0)
    errors: dict[str, Tensor | float] = {**more, "g": of_decay, "q": of_vector, "k": of_vector}
    by_key = output == "final_state" and params.state_layout == "VK"
    return moved_by(
        lambda terms: recurrence(replace(params, **terms, qk="normalised"), _Factors())[output],
        exact,
        errors,
        value_axis=-2 if by_key else -1,
    )
