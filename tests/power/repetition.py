# SPDX-License-Identifier: Apache-2.0
"""What makes a kernel's bits differ from call to call, for the kernels of any operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class OffEverySecondCall:
    """A counter or a workspace is not reset: every second call is off by 2^-6."""

    calls = 0

    def finish(self, found: dict[str, Tensor], _: Any) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls % 2 == 0:
            found["o"] *= 1 + 2.0**-6
        return found


class RandomOrders:
    """Calls `sum_in_order` with another order of the terms each time, as atomic sums have: right, but not
    repeatable. The terms lie along the last axis of the first operand."""

    def __init__(self, sum_in_order: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        self.sum_in_order = sum_in_order
        self.calls = 0

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        self.calls += 1
        order = torch.randperm(a.shape[-1], generator=torch.Generator().manual_seed(self.calls))
        return self.sum_in_order(a, b, order)


def product_in_order(a: Tensor, b: Tensor, order: Tensor) -> Tensor:
    """a @ b, its terms in `order`."""
    return a[..., order] @ b[..., order, :]
