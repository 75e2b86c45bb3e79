# SPDX-License-Identifier: Apache-2.0
"""Functions of float32 as Triton compiles them, of approximate instructions.

`H200` has the special-function unit of an H200, bit for bit, as tests/sim/silicon verifies it. `WORST` has
instructions that err by as much as the PTX ISA allows, in either direction, at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.sim.special_function_unit import ex2, lg2, rcp, sqrt

Function = Callable[[Tensor], Tensor]

ALLOWED = 0.75 * 2.0**-22
"""What is left of the error of an instruction when its result is rounded to float32, 2^-24 of it."""


def _errs(exact: Function, error: Callable[[Tensor, Tensor], Tensor]) -> Function:
    """`exact` of fp64 with an error of `error(x, exact x)` in a direction that hangs on x's bits."""

    def compute(x: Tensor) -> Tensor:
        wide = x.double()
        right = exact(wide)
        low_bits = x.float().contiguous().view(torch.int32).bitwise_and(0xFF) * 167 % 251
        sign = torch.where(low_bits % 2 == 0, -1.0, 1.0).double()
        return (right + sign * error(wide, right)).float()

    return compute


def _of_logarithm(x: Tensor, right: Tensor) -> Tensor:
    return ALLOWED * torch.where((x > 0.5) & (x < 2), 1.0, right.abs())


@dataclass(frozen=True)
class Functions:
    """The instructions, and functions of them. Every operation rounds to float32."""

    ex2: Function
    lg2: Function
    rcp: Function
    sqrt: Function

    def exp(self, x: Tensor) -> Tensor:
        return self.ex2(x * torch.tensor(math.log2(math.e), dtype=torch.float32))

    def softplus(self, x: Tensor, linear_above: float = 20.0) -> Tensor:
        logarithm = self.lg2(1 + self.exp(x.clamp(max=linear_above)))
        return torch.where(x > linear_above, x, logarithm * torch.tensor(math.log(2), dtype=torch.float32))

    def sigmoid(self, x: Tensor) -> Tensor:
        return self.rcp(1 + self.exp(-x))

    def normalise(self, x: Tensor) -> Tensor:
        """Each of 32 lanes sums its neighbours' squares one by one; a butterfly sums the lanes."""
        squares = x.float().square()
        lanes = squares.reshape(*squares.shape[:-1], min(32, squares.shape[-1]), -1).unbind(-1)
        total = lanes[0]
        for one in lanes[1:]:
            total = total + one
        while total.shape[-1] > 1:
            total = total[..., : total.shape[-1] // 2] + total[..., total.shape[-1] // 2 :]
        return x.float() * self.rcp(self.sqrt(total + torch.tensor(1e-6, dtype=torch.float32)))


H200 = Functions(ex2, lg2, rcp, sqrt)
WORST = Functions(
    _errs(torch.exp2, lambda x, right: ALLOWED * right),
    _errs(torch.log2, _of_logarithm),
    # A division is right to 2 ulps; the product with the reciprocal rounds too.
    _errs(torch.reciprocal, lambda x, right: 0.5 * 2.0**-22 * right),
    _errs(torch.sqrt, lambda x, right: 0.5 * 2.0**-23 * right),
)
