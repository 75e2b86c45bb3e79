"""In which precision a kernel computes and to which it rounds what it stores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Sums and products in `compute`; every stored intermediate rounded to `stored`, once."""

    compute: torch.dtype
    stored: torch.dtype

    def load(self, x: Tensor) -> Tensor:
        """`x` as an operand: widened to `compute`, which is exact for every narrower dtype."""
        return x.to(self.compute)

    def store(self, x: Tensor) -> Tensor:
        """`x` as it is kept between two products: rounded to `stored`."""
        return x.to(self.stored)


def served(dtype: torch.dtype) -> Arithmetic:
    """What tensor cores do with operands of `dtype`: exact products, fp32 sums, rounded to `dtype`."""
    return Arithmetic(torch.float32, dtype)


EXACT = Arithmetic(torch.float64, torch.float64)
"""The oracle's arithmetic: nothing is rounded below fp64."""
