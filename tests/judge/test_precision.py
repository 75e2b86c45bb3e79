# SPDX-License-Identifier: Apache-2.0
"""The causes of errors, at their bounds; the bounds are those that the module derives."""

from __future__ import annotations

import torch

from gdnbench.judge.precision import Cause, Precision, precision_of, precisions


def cause(error: float, fp64_error: float, size: float = 1.0, unshadowed: float = 0.0) -> Cause:
    return Precision("o", False, 4, 4, size, error, fp64_error, unshadowed).cause


def test_bounds() -> None:
    assert cause(2.0**-9, 2.0**-28) is Cause.ROUNDING
    assert cause(2.0**-9, 2.0**-27) is Cause.APPROXIMATION
    assert cause(2.0**-9, 2.0**-13) is Cause.APPROXIMATION
    assert cause(2.0**-9, 2.0**-12) is Cause.FORMULA
    assert cause(2.0**-24, 2.0**-24) is Cause.APPROXIMATION
    assert cause(2.0**-23, 2.0**-23) is Cause.FORMULA
    assert cause(0.0, 0.0) is Cause.EXACT
    assert cause(0.5, 2.0**-40) is Cause.ROUNDING
    assert cause(0.75, 2.0**-40) is Cause.UNSTABLE


def test_the_size_of_the_tensor_counts() -> None:
    """An error of 2^-40 among numbers of 2^6 is within the reference's own 2^-44 2^6; among 1 it is not."""
    assert cause(2.0**-30, 2.0**-40, size=2.0**6) is Cause.ROUNDING
    assert cause(2.0**-30, 2.0**-40) is Cause.APPROXIMATION


def test_an_error_at_an_element_without_a_shadow_is_unknown() -> None:
    assert cause(0.5, 0.5, unshadowed=0.5) is Cause.UNKNOWN
    assert cause(0.5, 0.5, unshadowed=0.25) is Cause.FORMULA


def test_errors_of_a_tensor() -> None:
    exact = torch.tensor([1.0, -4.0, torch.inf, torch.nan, 2.0], dtype=torch.float64)
    own = torch.tensor([1.5, -4.0, torch.inf, torch.nan, 2.0], dtype=torch.float64)
    fp64 = torch.tensor([1.25, -4.0, torch.inf, torch.nan, 2.125], dtype=torch.float64)
    shadowed = torch.tensor([True, True, True, True, False])
    found = precision_of("o", False, own, fp64, shadowed, exact)
    assert (found.size, found.error, found.fp64_error, found.unshadowed_error) == (4, 0.5, 0.25, 0.125)
    assert (found.elements, found.shadowed) == (5, 4)


def test_a_nan_where_a_number_is_due_is_an_infinite_error() -> None:
    number, nan = torch.ones(1, dtype=torch.float64), torch.full((1,), torch.nan, dtype=torch.float64)
    found = precision_of("o", False, nan, number, torch.tensor([True]), number)
    assert (found.error, found.fp64_error) == (torch.inf, 0.0)
    assert found.cause is Cause.UNSTABLE


def test_stages_come_first_and_only_what_the_reference_has() -> None:
    one, yes = torch.ones(1, dtype=torch.float64), torch.tensor([True])
    own = {"o": one, "A": one, "workspace": one}
    shadowed = dict.fromkeys(own, yes)
    found = precisions(own, own, shadowed, {"o": one, "A": one}, ["A"])
    assert [(each.tensor, each.stage) for each in found] == [("A", True), ("o", False)]
