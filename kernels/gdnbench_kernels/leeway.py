"""By how much errors of a kernel's gates, step sizes, queries and keys move its results.

The results move in proportion, for errors this small. Two kinds of error are allowed for. An error is a share
of its bound of the one kind and the rest of the other, so that the larger of what the two move is enough.

- Errors of one direction, such as those of `lg2.approx` near 1: each term by the whole of its bound in every
  token and channel, and the sum of what the terms move.
- Errors independent of one another, as of channels whose gates differ: where products with the state are
  sums of both signs, errors of one direction cancel, and these do not. An error spread evenly within its
  bound b has a standard deviation of b / sqrt(3), and with derivatives d_i a result one of
  sqrt(sum (b_i d_i)^2 / 3). The sum is that of b_i with random signs. It is measured by `DRAWS` draws of
  signs and as an average over the V values of a head, which have the same gates, queries and keys;
  `DEVIATIONS` of it are allowed, which a normal error exceeds with a probability of 6e-5.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

DRAWS = 4
DEVIATIONS = 4

Terms = Mapping[str, Tensor]
Errors = Mapping[str, Tensor | float]
"""The relative error of each term that has one. A tensor has one for each element; a number is that of a
whole vector, the last axis, in one direction."""


def moved_by(results: Callable[[Terms], Tensor], exact: Terms, errors: Errors, value_axis: int) -> Tensor:
    """By how much `errors` of the terms `exact` may move each element of `results(exact)`: fp64, zero where a
    result is not finite. `value_axis`: the axis of the result that is V."""
    right = results(exact)

    def moved(factors: Mapping[str, Tensor | float]) -> Tensor:
        changed = {name: exact[name] * (1 + factor) for name, factor in factors.items()}
        return (results({**exact, **changed}) - right).nan_to_num(0.0, 0.0, 0.0)

    found = torch.zeros_like(right)
    for name, error in errors.items():
        found += moved({name: error}).abs()
    generator = torch.Generator().manual_seed(0)
    squares = torch.zeros_like(right)
    for _ in range(DRAWS):
        signed = {name: error * _signs(exact[name], error, generator) for name, error in errors.items()}
        squares += moved(signed).square()
    deviation = (squares / DRAWS / 3).mean(value_axis, keepdim=True).sqrt()
    return torch.maximum(found, DEVIATIONS * deviation)


def _signs(term: Tensor, error: Tensor | float, generator: Generator) -> Tensor:
    """Random signs, one for each error of a term."""
    shape = term.shape if isinstance(error, Tensor) else (*term.shape[:-1], 1)
    return (torch.randint(0, 2, shape, generator=generator) * 2 - 1).to(term)
