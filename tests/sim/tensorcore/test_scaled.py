# SPDX-License-Identifier: Apache-2.0
"""Block-scaled products: both implementations against exact rationals, one dot product at a time.

The expectation is written from MMA-Sim's published rule on numbers that ml_dtypes decodes, with every number
of the rule as a parameter, so that a wrong one can be shown to differ.
"""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.tensorcore import native, reference
from gdnbench.sim.tensorcore.formats import E2M1, E3M2, E4M3, E5M2, F16, Codes
from gdnbench.sim.tensorcore.scaled import UE4M3, UE8M0, ScaledProduct
from tests.seeds import drawn
from tests.sim.tensorcore.mma_operands import stratified
from tests.sim.tensorcore.mma_scalar import SMALLEST, codes_of, exponent, rounded, values
from tests.subset import quick

MODELS = ("hardware", "exact")
BYTES = (ScaledProduct(E4M3, E5M2, UE8M0, 32, 32), ScaledProduct(E2M1, E3M2, UE8M0, 32, 32))
NIBBLES = (
    ScaledProduct(E2M1, E2M1, UE8M0, 32, 64),
    ScaledProduct(E2M1, E2M1, UE8M0, 16, 64),
    ScaledProduct(E2M1, E2M1, UE4M3, 16, 64),
)
PRODUCTS = (*BYTES, *NIBBLES)
SCALE_DTYPES = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": ml_dtypes.float8_e4m3fn}
# Ranges of scale codes: all with NaN; around 1; the smallest, subnormals of ue4m3 too; the largest.
RANGES = {
    "ue8m0": ((0, 256), (122, 133), (0, 20), (230, 255)),
    "ue4m3": ((0, 128), (40, 72), (0, 9), (100, 127)),
}


def scale_values(product: ScaledProduct, codes: Codes) -> np.ndarray:
    return codes.view(SCALE_DTYPES[product.scale.name]).astype(np.float64)


def operands(
    rng: np.random.Generator, product: ScaledProduct, m: int, n: int, low: int, high: int
) -> tuple[Codes, Codes, Codes, Codes, Codes]:
    a, b = (stratified(rng, form, (rows, product.k), 6) for form, rows in ((product.a, m), (product.b, n)))
    scale_a, scale_b = (rng.integers(low, high, (rows, product.scales)).astype(np.uint8) for rows in (m, n))
    # Accumulators of the size of the products, and others 40 binades away.
    unit = np.nan_to_num(np.outer(*(scale_values(product, s)[:, 0] for s in (scale_a, scale_b))), nan=1.0)
    with np.errstate(over="ignore", under="ignore"):
        c = (rng.normal(size=(m, n)) * unit * 2.0 ** rng.integers(-40, 30, (m, n))).astype(np.float32)
    c[rng.random((m, n)) < 0.1] = 0.0
    return a, scale_a, b, scale_b, c.view(np.uint32)


def term(value: Fraction, place: int) -> list[tuple[Fraction, int]]:
    return [(value, place)] if value else []


def dot(
    product: ScaledProduct, a: list[float], sa: list[float], b: list[float], sb: list[float], c: float, *,
    bits: int | None = None, group: int = 16,
) -> float:  # fmt: skip
    """One element of D by MMA-Sim's rule."""
    numbers = (*sa, *sb, c, *a, *b)
    if any(map(math.isnan, (*sa, *sb, c))):
        return math.nan
    if not all(map(math.isfinite, numbers)):
        return sum(x * y for x, y in zip(a, b, strict=True)) + c
    smallest_scale = {"ue8m0": -127, "ue4m3": -6}[product.scale.name]
    terms = term(Fraction(c), exponent(c, SMALLEST["f32"]))
    for start in range(0, product.k, group if product.k == 64 else 1):
        x, y = sa[start // product.block], sb[start // product.block]
        factor, place = Fraction(x) * Fraction(y), exponent(x, smallest_scale) + exponent(y, smallest_scale)
        if product.k == 64:
            pairs = zip(a[start : start + group], b[start : start + group], strict=True)
            total = sum((Fraction(p) * Fraction(q) for p, q in pairs), Fraction(0))
            terms += [(total * factor, place)] if factor else []
        else:
            p, q = a[start], b[start]
            place += exponent(p, SMALLEST[product.a.name]) + exponent(q, SMALLEST[product.b.name])
            terms += term(Fraction(p) * Fraction(q) * factor, place)
    if not terms:
        return 0.0
    kept = bits if bits is not None else 35 if product.k == 64 else 25
    unit = Fraction(2) ** (max(place for _, place in terms) - kept)
    return rounded(sum(math.trunc(value / unit) for value, _ in terms) * unit, "f32")


def expected(
    product: ScaledProduct, a: Codes, sa: Codes, b: Codes, sb: Codes, c: Codes, **rule: int
) -> Codes:
    va, vb, vc = values(product.a.name, a), values(product.b.name, b), values("f32", c)
    ua, ub = scale_values(product, sa), scale_values(product, sb)
    return np.array(
        [
            [
                codes_of(
                    dot(product, *map(list, (va[i], ua[i], vb[j], ub[j])), float(vc[i, j]), **rule), "f32"
                )
                for j in range(len(b))
            ]
            for i in range(len(a))
        ],
        np.uint32,
    )


@pytest.mark.parametrize("implementation", [reference, native], ids=["reference", "native"])
@pytest.mark.parametrize("product", quick(PRODUCTS, 0, 2, 4, ids=map(str, PRODUCTS)))
def test_sums_are_those_of_the_published_rule(product: ScaledProduct, implementation: object) -> None:
    rng = np.random.default_rng(70)
    for low, high in RANGES[product.scale.name]:
        a, sa, b, sb, c = operands(rng, product, 5, 4, low, high)
        want = expected(product, a, sa, b, sb, c)
        got = implementation.multiply_scaled(product, "hardware", a, sa, b, sb, c)
        np.testing.assert_array_equal(got, want, err_msg=f"scales {low}..{high - 1}")


@pytest.mark.parametrize(
    ("product", "rule"),
    [
        *((product, {"bits": bits}) for product, bits in ((BYTES[0], 24), (BYTES[0], 26))),
        *((NIBBLES[2], rule) for rule in ({"bits": 34}, {"bits": 36}, {"bits": 25}, {"group": 8})),
    ],
    ids=str,
)
def test_another_rule_differs(product: ScaledProduct, rule: dict[str, int]) -> None:
    """K = 64: the first group has large scales and a dot product of zero; the others are cut there."""
    low, high = RANGES[product.scale.name][1 if product.k == 32 else 2]
    a, sa, b, sb, c = operands(np.random.default_rng(71), product, 16, 16, low, high)
    if product.k == 64:
        a[:, :16], sa[:, 0], sb[:, 0], c[:] = 0, 0x78, 0x78, 0
    got = reference.multiply_scaled(product, "hardware", a, sa, b, sb, c)
    assert (got != expected(product, a, sa, b, sb, c, **rule)).any()


def test_a_group_of_zeros_cuts_a_small_accumulator() -> None:
    """By MMA-Sim a group has the exponent of its scales alone. With a zero scale it does not count."""
    product = NIBBLES[2]
    zeros, one = np.zeros((1, 64), np.uint8), np.full((1, 4), 0x38, np.uint8)
    c = np.full((1, 1), 2.0**-30 + 2.0**-36, np.float32).view(np.uint32)
    for implementation in (reference, native):
        cut = implementation.multiply_scaled(product, "hardware", zeros, one, zeros, one, c)
        assert cut.view(np.float32)[0, 0] == 2.0**-30
        kept = implementation.multiply_scaled(product, "hardware", zeros, 0 * one, zeros, one, c)
        np.testing.assert_array_equal(kept, c)


@pytest.mark.parametrize("product", quick(PRODUCTS, 0, 2, 4, ids=map(str, PRODUCTS)))
def test_both_implementations_agree(product: ScaledProduct) -> None:
    rng = np.random.default_rng(drawn(f"scaled product {product}"))
    for low, high in RANGES[product.scale.name]:
        a, sa, b, sb, c = operands(rng, product, 37, 29, low, high)
        a[3], b[5] = (rng.integers(0, 1 << form.bits, product.k) for form in (product.a, product.b))
        c[:, 7] = rng.integers(0, 1 << 32, 37, np.uint32)
        for model in MODELS:
            for accumulator in (None, c):
                arguments = (product, model, a, sa, b, sb, accumulator)
                want, got = (each.multiply_scaled(*arguments) for each in (reference, native))
                np.testing.assert_array_equal(got, want, err_msg=f"{model}, scales {low}..{high - 1}")


@pytest.mark.parametrize("product", quick(PRODUCTS, 0, 2, 4, ids=map(str, PRODUCTS)))
def test_the_exact_model_is_one_rounding_of_fp64(product: ScaledProduct) -> None:
    """Few significant bits within few binades: fp64 holds every partial sum exactly, in any order."""
    a, sa, b, sb, c = operands(np.random.default_rng(72), product, 9, 11, *RANGES[product.scale.name][1])
    c = np.round(c.view(np.float32) % 8).view(np.uint32)
    va, vb = (
        values(form.name, codes) * np.repeat(scale_values(product, scales), product.block, axis=1)
        for form, codes, scales in ((product.a, a, sa), (product.b, b, sb))
    )
    want = (va @ vb.T + c.view(np.float32).astype(np.float64)).astype(np.float32)
    for implementation in (reference, native):
        got = implementation.multiply_scaled(product, "exact", a, sa, b, sb, c)
        np.testing.assert_array_equal(got.view(np.float32), want)


@pytest.mark.parametrize("scale", [UE8M0, UE4M3], ids=lambda scale: scale.name)
def test_scales_are_those_of_ml_dtypes(scale: object) -> None:
    codes = np.arange(256 if scale is UE8M0 else 128, dtype=np.uint8)
    want = codes.view(SCALE_DTYPES[scale.name]).astype(np.float64)
    np.testing.assert_array_equal(scale.values(codes), want)
    if scale is UE4M3:  # without a sign
        np.testing.assert_array_equal(scale.values(codes | 0x80), want)


@pytest.mark.parametrize(
    "arguments",
    [
        (E4M3, E4M3, UE4M3, 32, 32),
        (E4M3, E4M3, UE8M0, 16, 32),
        (E2M1, E4M3, UE8M0, 32, 64),
        (E2M1, E2M1, UE4M3, 32, 64),
        (E2M1, E2M1, UE8M0, 32, 96),
        (F16, F16, UE8M0, 32, 32),
    ],
    ids=str,
)
def test_products_that_the_isa_does_not_have(arguments: tuple[object, ...]) -> None:
    """Tables 39 and 55 of PTX ISA 9.0."""
    with pytest.raises(UnsupportedError, match=f"k {arguments[-1]}"):
        ScaledProduct(*arguments)
