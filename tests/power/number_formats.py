# SPDX-License-Identifier: Apache-2.0
"""Number formats and exponentials of kernels, emulated on wider floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

LOG2_E = 1 / math.log(2)
LEAST_NORMAL = 2.0**-126
"""The smallest normal float32; bfloat16 has the same."""

Exp = Callable[[Tensor], Tensor]


def keep_bits(x: Tensor, bits: int, *, truncate: bool = False) -> Tensor:
    """`x` in float32 with `bits` explicit bits of mantissa: rounded to nearest even, or cut off."""
    dropped = 23 - bits
    words = x.float().contiguous().view(torch.int32)
    if not truncate:
        words = words + (1 << (dropped - 1)) - 1 + ((words >> dropped) & 1)
    kept = ((words >> dropped) << dropped).view(torch.float32)
    return torch.where(x.isfinite(), kept, x.float())


FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "float32": lambda x: x.float(),
    "float64": lambda x: x,
    "bfloat16": lambda x: x.bfloat16().float(),
    "float16": lambda x: x.half().float(),
    "tf32": lambda x: keep_bits(x, 10),
    "tf32 truncated": lambda x: keep_bits(x, 10, truncate=True),
    "bfloat16 truncated": lambda x: keep_bits(x, 7, truncate=True),
    "split bfloat16": lambda x: x.bfloat16().float() + (x - x.bfloat16().float()).bfloat16().float(),
}
"""`split bfloat16`: a number as the sum of two bf16, as kernels do that want more bits of a bf16 product."""


def in_format(x: Tensor, name: str, io: torch.dtype) -> Tensor:
    """`x` rounded to a format, in its own dtype. A kernel whose inputs are wider than the format keeps their
    dtype instead: nothing is rounded where `io` is float32, and bf16 becomes fp16 where `io` is fp16, as do
    truncated formats, which have half its accuracy."""
    if name in ("float32", "float64") or io == torch.float32:
        return x
    if io == torch.float16 and ("bfloat16" in name or "truncated" in name):
        name = "float16"
    return FORMATS[name](x).to(x.dtype)


def truncated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in `dtype`, cut off towards 0."""
    if dtype == torch.bfloat16:
        return keep_bits(x, 7, truncate=True).bfloat16()
    near = x.to(dtype)
    over = near.abs().to(x.dtype) > x.abs()
    return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near) if over.any() else near


def flushed(x: Tensor) -> Tensor:
    """`x` with 0 in place of subnormal numbers."""
    return torch.where(x.abs() < LEAST_NORMAL, torch.zeros_like(x), x)


def signs(like: Tensor, seed: int = 0) -> Tensor:
    """+1 or -1 at random, the same in every call."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, 2, like.shape, generator=generator) * 2 - 1).to(like.dtype)


def normal(like: Tensor, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same in every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator).to(like.dtype)


def exp2_of_scaled(x: Tensor) -> Tensor:
    """exp x as 2^(x log2 e), the product rounded to the dtype."""
    return torch.exp2(x * LOG2_E)


def approximate_exp(x: Tensor) -> Tensor:
    """exp x with the largest error of `ex2.approx`, and its subnormal results flushed. That error is 2^-22
    (PTX ISA), and near x = 0, where gates are faint, 2^-23.5 on an H200 (`gdn_decode.leeway`)."""
    scaled = torch.exp2(x * LOG2_E)
    error = torch.where(x.abs() < 2.0**-20, 2.0**-23.5, 2.0**-22)
    return flushed(scaled * (1 + error * signs(scaled)))


def exp_by_polynomial(error: float) -> Exp:
    """2^n p(f) whose p has the relative error `error`, which oscillates over a binade as that of a minimax
    polynomial of degree 3 does."""

    def exp(x: Tensor) -> Tensor:
        scaled = x * LOG2_E
        t = 2 * (scaled - scaled.floor()) - 1
        wave = 8 * t**4 - 8 * t**2 + 1
        return torch.exp2(scaled) * torch.where(scaled.isfinite(), 1 + error * wave, 1.0)

    return exp


def exp_in(name: str) -> Exp:
    """exp whose argument and result are in a narrow format."""
    return lambda x: FORMATS[name](FORMATS[name](x).exp()).to(x.dtype)
