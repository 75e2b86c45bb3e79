# SPDX-License-Identifier: Apache-2.0
"""Tells an error that is rounding from one of the formula, by the same kernel's result in fp64 arithmetic.

Let x be a kernel's result, s its result in fp64 (`gdnbench.sim.Fp64Shadows`), y the exact one, all elements
of a tensor that count. e = max |x - y| and e' = max |s - y|.

If the formula is right, both are sums of the same sensitivities times roundings, to first order: x has
roundings of at least 2^-24 each (no format of a kernel's floats is finer than f32, but f64), s of 2^-53. So
e' is expected at 2^-29 e. The roundings behind x may cancel, and those behind s may not; a factor of 2^10 is
allowed for that. y is computed in fp64 too and has errors of its own: 2^-53 max |y|, times 2^9 for the length
of its sums. So e' of a right formula stays below

    bound = max(2^-19 e, 2^-44 max |y|)

If e is above max |y| / 2 all the same, the formula is right and unstable: fp8, the coarsest format, rounds by
2^-4, and the roundings were amplified until no digit was right.

An e' above the bound is not rounding. Below e / 16, or below 2^-24 max |y|, the unit of f32, the kernel has
an approximation that is smaller than its roundings: a polynomial in place of a function, for instance. What
is larger is an error of the formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

ROUNDING = 2.0**-19
FLOOR = 2.0**-44
APPROXIMATION = 1 / 16
UNSTABLE = 0.5
UNIT = 2.0**-24


class Cause(StrEnum):
    """What an error is."""

    EXACT = "exact"
    ROUNDING = "rounding"
    UNSTABLE = "rounding, amplified"
    APPROXIMATION = "rounding, and an approximation"
    FORMULA = "formula"
    UNKNOWN = "unknown: no shadow"


@dataclass(frozen=True, slots=True)
class Precision:
    """The errors of one tensor: e and e' of the module, e' over the elements without a shadow alone, and the
    largest exact number. `shadowed` of its `elements` have a shadow."""

    tensor: str
    stage: bool
    elements: int
    shadowed: int
    size: float
    error: float
    fp64_error: float
    unshadowed_error: float

    @property
    def bound(self) -> float:
        """The largest e' that is rounding."""
        return max(ROUNDING * self.error, FLOOR * self.size)

    @property
    def cause(self) -> Cause:
        if self.error == 0 and self.fp64_error <= self.bound:
            return Cause.EXACT
        if self.fp64_error <= self.bound:
            return Cause.ROUNDING if self.error <= UNSTABLE * self.size else Cause.UNSTABLE
        if self.unshadowed_error >= self.fp64_error:
            return Cause.UNKNOWN
        if self.fp64_error <= max(APPROXIMATION * self.error, UNIT * self.size):
            return Cause.APPROXIMATION
        return Cause.FORMULA

    def as_json(self) -> dict[str, Any]:
        return {
            "tensor": self.tensor,
            "stage": self.stage,
            "cause": str(self.cause),
            "elements": self.elements,
            "shadowed": self.shadowed,
            "largest": self.size,
            "error": self.error,
            "fp64_error": self.fp64_error,
            "unshadowed_error": self.unshadowed_error,
            "bound": self.bound,
        }


def precision_of(
    name: str, stage: bool, own: Tensor, fp64: Tensor, shadowed: Tensor, exact: Tensor
) -> Precision:
    """The errors of a tensor: the kernel's result, in fp64 arithmetic, which elements of that come from
    shadows, the exact result; float64, but `shadowed`, which is bool; all of one shape."""
    finite = exact.isfinite()
    errors, remaining = (_errors(result, exact) for result in (own, fp64))
    return Precision(
        name,
        stage,
        exact.numel(),
        int(shadowed.sum()),
        _largest(exact[finite].abs()),
        _largest(errors),
        _largest(remaining),
        _largest(remaining[~shadowed]),
    )


def _errors(result: Tensor, exact: Tensor) -> Tensor:
    """|result - exact|; 0 where both are NaN or the same infinity, infinite where one is not finite."""
    error = (result - exact).abs()
    same = (result == exact) | (result.isnan() & exact.isnan())
    return error.where(error.isfinite(), torch.inf).where(~same, 0.0)


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def precisions(
    own: Mapping[str, Tensor],
    fp64: Mapping[str, Tensor],
    shadowed: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    stages: Sequence[str],
) -> tuple[Precision, ...]:
    """Those of all tensors that the kernel left and that have an exact result, the stages first."""
    names = [*(name for name in stages if name in own), *(name for name in own if name not in stages)]
    return tuple(
        precision_of(
            name, name in stages, own[name].double(), fp64[name], shadowed[name], exact[name].double()
        )
        for name in names
        if name in exact and name in fp64
    )
