# SPDX-License-Identifier: Apache-2.0
"""Matrix products in the orders of summation that kernels have."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.power.number_formats import keep_bits

Product = Callable[[Tensor, Tensor], Tensor]


def parts(x: Tensor, size: int, dim: int) -> tuple[Tensor, ...]:
    """`x` in pieces of `size` along a dim; the last may be shorter."""
    return tuple(x.narrow(dim, i, min(size, x.shape[dim] - i)) for i in range(0, x.shape[dim], size))


def plain(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def reversed_sums(a: Tensor, b: Tensor) -> Tensor:
    """The terms of each sum in descending order."""
    return a.flip(-1) @ b.flip(-2)


def split_k(count: int) -> Product:
    """`count` partial sums, added one after another."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        pairs = zip(a.chunk(count, -1), b.chunk(count, -2), strict=True)
        return torch.stack([left @ right for left, right in pairs]).sum(0)

    return product


def pairwise(a: Tensor, b: Tensor) -> Tensor:
    """Partial sums of 16 terms, added in pairs: a tree."""
    sums = [left @ right for left, right in zip(parts(a, 16, -1), parts(b, 16, -2), strict=True)]
    while len(sums) > 1:
        sums = [torch.stack(sums[i : i + 2]).sum(0) for i in range(0, len(sums), 2)]
    return sums[0]


def fma_order(a: Tensor, b: Tensor) -> Tensor:
    """One term after another, as a loop of FMAs over K."""
    out = a[..., :, :1] * b[..., :1, :]
    for i in range(1, a.shape[-1]):
        out = torch.addcmul(out, a[..., :, i : i + 1], b[..., i : i + 1, :])
    return out


def split_columns(a: Tensor, b: Tensor) -> Tensor:
    """Two halves of the result's columns, as two CTAs compute them."""
    return torch.cat([a @ half.contiguous() for half in b.tensor_split(2, -1)], -1)


def tf32(*, truncate: bool) -> Product:
    """Operands in tf32."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        return keep_bits(a, 10, truncate=truncate) @ keep_bits(b, 10, truncate=truncate)

    return product
