"""How far errors of a kernel's gates, step sizes, queries and keys move the results of a decode call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_decode.steps import DecodeSteps

Errors = Mapping[str, Tensor | float]
"""The relative error of each stage that has one."""


def leeway_of(
    steps: DecodeSteps, call: Call, output: str, errors: Callable[[Mapping[str, Tensor]], Errors]
) -> Tensor | None:
    """By how much each element of `o` or `state` may be off; None for another name. fp64, zero where the
    exact result is not finite. `steps`: exact ones; `errors`: of the exact stages before the update.

    Each term moves the exact state and outputs in proportion, for errors this small. The leeway is the sum of
    what the terms move, each by itself, by the whole of its error and in the same direction in every token:
    errors that differ in sign move less.
    """
    if output not in ("o", "state"):
        return None
    given = {**call.tensors, **call.scalars, **call.conventions}
    exact = {**steps.gates(**given), **steps.normalise(**given)}
    right = steps.update(stages=exact, **given)[output]
    found = torch.zeros_like(right)
    for term, error in errors(exact).items():
        moved = steps.update(stages={**exact, term: exact[term] * (1 + error)}, **given)[output]
        found += (moved - right).abs().nan_to_num(0.0, 0.0, 0.0)
    return found
