"""Sums that decide what random operands do not reach: a tile of 16 x 16 whose diagonal asks questions.

Question i is element (i, i); the rest of the tile is whatever comes of it. A GPU's answers to these tiles
confirm or refute, one by one, what the `hardware` model takes from MMA-Sim unseen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mma_scalar import DTYPES
from numpy.typing import NDArray

from gdnbench.sim.tensorcore.formats import Codes, Format
from gdnbench.sim.tensorcore.product import Product

FULL = 2.0 - 2.0**-23  # a float with all fraction bits set


@dataclass(frozen=True, slots=True)
class Corner:
    """The first elements of a row of A and of B (the rest are zeros, or `fill`), and C."""

    question: str
    a: tuple[float, ...]
    b: tuple[float, ...]
    c: float
    fill: tuple[float, float] = (0.0, 0.0)


def corners(product: Product) -> tuple[Corner, ...]:
    """The questions that the product's range reaches."""
    wide = product.a.exponent_bits == 8
    huge = 2.0**product.a.max_exponent
    small = 2.0**product.accumulator.min_exponent
    last = small * 2.0**-product.accumulator.fraction_bits  # the smallest subnormal of the accumulator
    common = (
        Corner("sum of negative zeros", (-0.0,), (1.0,), -0.0, fill=(-0.0, 1.0)),
        Corner("cancellation to zero", (1.0, 1.0), (1.0, -1.0), 0.0),
        Corner("cancellation of C", (1.0,), (1.0,), -1.0),
        Corner("exponent of a zero: C at 2^-20", (0.0,), (huge,), FULL * 2.0**-20, fill=(0.0, huge)),
        Corner("exponent of a zero: C at the bottom", (0.0,), (huge,), FULL * small, fill=(0.0, huge)),
        Corner("subnormal C alone", (0.0,), (0.0,), -3 * last),
        Corner("subnormal C and the smallest operand", (2.0**product.a.min_exponent,), (1.0,), 3 * last),
        Corner("negative sum cut or rounded to zero", (-(2.0**-13),), (2.0**-13,), 2.0**-26 - last),
    )
    if not wide:
        return common
    half_range = 2.0 ** (product.accumulator.min_exponent // 2)
    return (
        *common,
        Corner("sum below the smallest subnormal", (-half_range * 2.0**-12,), (half_range * 2.0**-12,), 0.0),
        Corner("sum that is subnormal", (half_range * 2.0**-3,), (half_range * 2.0**-5,), 0.0),
        Corner("overflow of one product", (huge,), (huge,), 0.0),
        Corner("overflow by the last place", (2.0**64,), (2.0**40,), FULL * 2.0**127),
        Corner("overflow that cancels", (huge, huge), (huge, -huge), 1.0),
        Corner("largest negative", (-(2.0**63),), (2.0**40,), -FULL * 2.0**127),
    )


def tile(product: Product) -> tuple[Codes, Codes, Codes]:
    """The questions as codes: a[16,K], b[16,K], c[16,16]; two instructions of m16n8."""
    a, b, c = np.zeros((16, product.k)), np.zeros((16, product.k)), np.zeros((16, 16))
    for i, corner in enumerate(corners(product)):
        a[i], b[i] = corner.fill
        a[i, : len(corner.a)], b[i, : len(corner.b)] = corner.a, corner.b
        c[i, i] = corner.c
    return codes(product.a, a), codes(product.b, b), codes(product.accumulator, c)


def codes(form: Format, values: NDArray[np.float64]) -> Codes:
    """Values that are representable, or for f16 accumulators too small or large, as ml_dtypes rounds them."""
    with np.errstate(over="ignore", under="ignore"):
        encoded: Codes = values.astype(DTYPES[form.name]).view(form.storage)
    return encoded
