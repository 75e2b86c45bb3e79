"""How far approximate instructions move gates, step sizes and normalised queries and keys.

A right kernel may compute its functions by `ex2.approx`, `lg2.approx`, `sqrt.approx`, `rsqrt.approx` and
`div.full`, as Triton compiles them. The bounds of the instructions are those of the PTX ISA; with u = 2^-24:

    instruction       error
    ex2.approx        2^-22 of the result
    lg2.approx        2^-22 where the argument is in (0.5, 2), 2^-22 of the result elsewhere
    rsqrt.approx      2^-22 of the result; sqrt.approx 2^-23
    div.full          2 ulps, 2^-22 of the result

Any other operation rounds by u of its result, and so does a constant such as log2(e). Each function below
adds the errors of its steps, each moved to the result by the derivative there; products of errors are left
out. Arguments and results are fp64, errors are absolute or relative as their functions say.

    exp(x)       2^-22 + 2 u |x| of itself: x log2(e) and the constant round

    softplus(x)  ln2 lg2(1 + exp(y)), y = x + dt_bias, by s (1 - exp(-s) = sigmoid(y) is its derivative):
                 sigmoid (2^-22 + 3 u |y|)    exp, and y itself
                 u                            the sum 1 + exp(y), of which the logarithm moves by u
                 ln2 2^-22                    lg2.approx where exp(y) < 1; else 2^-22 s
                 2 u s                        the product with ln2, and the constant

    sigmoid(z)   1 / (1 + exp(-z)), relative to itself, with z off by r of itself:
                 (1 - sigmoid) (2^-22 + |z| (2 u + r))   exp
                 u + 2^-22 + u                the sum, the division, the product with beta_max or lower_bound

    x / |x|      sqrt.approx and div.full, 2^-23 + 2^-22, the larger of the two ways; and half the error of
                 the sum under the root. A warp sums K squares, K / 32 in each lane and those of 32 lanes in
                 pairs: a square, K / 32 - 1 and 5 sums, and that with epsilon round

The logarithm is the large one where gates are slow: near 1 it errs by 2^-22, however small the result is.
An H200's errs there by up to 2^-22.6, mostly to one side.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

import torch
from torch import Tensor

APPROXIMATE = 2.0**-22
"""The relative error of ex2.approx, rsqrt.approx and div.full (PTX ISA)."""
UNIT = 2.0**-24
"""Unit roundoff of float32."""
FAINT = 2.0**-20
"""Below this |g| an H200's ex2.approx is right to 2^-23.5, which twice torch's error and rounding nearly
cover. A leeway of 2^-22 would be larger than the decay itself and hide a gate that is lost."""
LANES = 32


def decay_error(g: Tensor) -> Tensor:
    """The relative error of alpha = exp(g) from |g|, which is exact: 2^-22 + 2 u |g|, without 2^-22 where |g|
    is faint."""
    return torch.where(g < FAINT, 0.0, APPROXIMATE) + 2 * UNIT * g


def softplus_error(s: Tensor) -> Tensor:
    """The absolute error of s = softplus(x + dt_bias), from the exact s >= 0."""
    sigmoid = -torch.expm1(-s)
    y = (s + sigmoid.log()).nan_to_num(0.0, 0.0, 0.0)
    logarithm = torch.where(s < math.log(2), math.log(2), s) * APPROXIMATE
    return sigmoid * (APPROXIMATE + 3 * UNIT * y.abs()) + UNIT + logarithm + 2 * UNIT * s


def raw_gate_error(g: Tensor, log_rate: Tensor) -> Tensor:
    """The absolute error of |g| = exp(A_log) softplus(x + dt_bias), from the exact |g| and A_log."""
    rate = log_rate.exp()
    of_rate = APPROXIMATE + 2 * UNIT * log_rate.abs()
    return g * (of_rate + UNIT) + rate * softplus_error(g / rate)


def sigmoid_error(sigmoid: Tensor, of_argument: Tensor | float = 0.0) -> Tensor:
    """The relative error of a multiple of sigmoid(z), from the exact sigmoid(z); `of_argument`: the relative
    error of z."""
    exponent = (1 - sigmoid) * (APPROXIMATE + sigmoid.logit().abs() * (2 * UNIT + of_argument))
    return exponent.nan_to_num(0.0, 0.0, 0.0) + APPROXIMATE + 2 * UNIT


def bounded_gate_error(g: Tensor, lower_bound: float, log_rate: Tensor | None) -> Tensor:
    """The absolute error of |g| = |lower_bound| sigmoid(exp(A_log) (x + dt_bias)), from the exact |g|. The
    rate errs as exp(A_log) does, the sum and the product with it round; no rate is a rate of 1."""
    of_rate = 0.0 if log_rate is None else APPROXIMATE + 2 * UNIT * log_rate.abs()
    return g * sigmoid_error(g / -lower_bound, of_rate + 2 * UNIT)


def norm_error(length: int) -> float:
    """The relative error of each element of a vector of `length` divided by its norm."""
    roundings = length / LANES + 6
    return APPROXIMATE + APPROXIMATE / 2 + UNIT * roundings / 2
