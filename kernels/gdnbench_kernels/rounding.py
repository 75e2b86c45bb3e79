# SPDX-License-Identifier: Apache-2.0
"""The precision in which a kernel computes, and the one to which it rounds stored values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Sums and products in `compute`; every stored intermediate is rounded to `stored` once."""

    compute: torch.dtype
    stored: torch.dtype

    def load(self, x: Tensor) -> Tensor:
        """`x` as an operand: widened to `compute`, exactly for every narrower dtype."""
        return x.to(self.compute)

    def store(self, x: Tensor) -> Tensor:
        """`x` as a stored intermediate: rounded to `stored`."""
        return x.to(self.stored)


def tensor_core_arithmetic(dtype: torch.dtype) -> Arithmetic:
    """The arithmetic of tensor cores with operands of `dtype`: exact products, fp32 sums, rounded to
    `dtype`."""
    return Arithmetic(torch.float32, dtype)


EXACT = Arithmetic(torch.float64, torch.float64)
"""The oracle's arithmetic: everything in fp64."""
