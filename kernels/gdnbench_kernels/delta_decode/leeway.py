# SPDX-License-Identifier: Apache-2.0
"""How far errors of a kernel's gates, step sizes, queries and keys move the results of a decode call."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_decode.steps import DecodeSteps
from gdnbench_kernels.leeway import Errors, Terms, moved_by


def leeway_of(
    steps: DecodeSteps, call: Call, output: str, errors: Callable[[Terms], Errors]
) -> Tensor | None:
    """By how much each element of `o` or `state` may be off; None for another name. fp64, zero where the
    exact result is not finite. `steps`: exact ones; `errors`: of the exact stages before the update. See
    `leeway.moved_by`."""
    if output not in ("o", "state"):
        return None
    given = {**call.tensors, **call.scalars, **call.conventions}
    exact = {**steps.gates(**given), **steps.normalise(**given)}
    by_key = output == "state" and call.conventions.get("state_layout", "VK") == "VK"
    return moved_by(
        lambda terms: steps.update(stages=terms, **given)[output],
        exact,
        errors(exact),
        value_axis=-2 if by_key else -1,
    )
