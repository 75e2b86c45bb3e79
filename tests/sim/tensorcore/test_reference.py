# SPDX-License-Identifier: Apache-2.0
"""The NumPy models against exact rational arithmetic, and the numbers of the rule against wrong ones."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.tensorcore.formats import BF16, E4M3, E5M2, F16, F32, TF32, Codes, Format
from gdnbench.sim.tensorcore.product import BYTE_FORMATS, Product
from gdnbench.sim.tensorcore.reference import multiply
from tests.messages import wording
from tests.sim.tensorcore.mma_operands import PRODUCTS, SPREADS, cancelling, every_kind, stratified
from tests.sim.tensorcore.mma_scalar import Rule, codes_of, dot, fused_sum, values
from tests.subset import quick

M, N = 4, 5

Numbers = list[float]


def expected_dot(product: Product, a: Numbers, b: Numbers, c: float) -> float:
    """The `hardware` rule for one element, from the published description."""
    if product.unit == "mma.sync" and product.a in BYTE_FORMATS:
        # ptxas: bytes 0 and 1 of each register as f16, then bytes 2 and 3, then an ordinary addition of C.
        low = [k for k in range(product.k) if k % 4 in (0, 1)]
        high = [k for k in range(product.k) if k % 4 in (2, 3)]
        formats, total = ("f16", "f16", product.d), 0.0
        for ks in (low, high):
            total = fused_sum([a[k] for k in ks], [b[k] for k in ks], total, formats, Rule())
        with np.errstate(over="ignore", invalid="ignore"):
            kind = np.float32 if product.d == "f32" else np.float16
            return float(kind(total) + kind(c))
    formats = (product.a.name, product.b.name, product.d)
    return dot(a, b, c, formats, published(product))


def published(product: Product) -> Rule:
    """One sum an instruction; wgmma's of bytes keep 13 bits ("f32_e8m13" in MMA-Sim)."""
    if product.unit == "wgmma" and product.a in BYTE_FORMATS:
        return Rule(bits=13, terms=product.k, kept=13)
    return Rule(terms=product.k)


def numbers(
    product: Product, a: Codes, b: Codes, c: Codes | None
) -> tuple[list[Numbers], list[Numbers], list[Numbers]]:
    c_values = np.zeros((len(a), len(b))) if c is None else values(product.d, c)
    return values(product.a.name, a).tolist(), values(product.b.name, b).tolist(), c_values.tolist()


@pytest.mark.every(2)
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_hardware_is_the_published_rule(product: Product) -> None:
    rng = np.random.default_rng(20)
    for what, a, b, c in every_kind(rng, product, M, N):
        va, vb, vc = numbers(product, a, b, c)
        want = [
            [codes_of(expected_dot(product, va[i], vb[j], vc[i][j]), product.d) for j in range(len(b))]
            for i in range(len(a))
        ]
        got = multiply(product, "hardware", a, b, c)
        assert got.dtype == product.accumulator.storage
        np.testing.assert_array_equal(got, want, err_msg=what)


@pytest.mark.every(2)
@pytest.mark.parametrize("product", quick(PRODUCTS, *range(0, len(PRODUCTS), 3), ids=map(str, PRODUCTS)))
def test_exact_is_fp64_rounded_once(product: Product) -> None:
    rng = np.random.default_rng(21)
    for what, a, b, c in every_kind(rng, product, M, N):
        va, vb, vc = numbers(product, a, b, c)
        for i in range(len(a)):
            for j in range(len(b)):
                total = vc[i][j]
                for x, y in zip(va[i], vb[j], strict=True):
                    total += x * y
                want = codes_of(total, product.d)
                assert multiply(product, "exact", a, b, c)[i, j] == want, what


def test_exact_is_within_its_rounding_of_the_true_sum() -> None:
    product = Product(BF16, BF16, "f32", 16)
    rng = np.random.default_rng(22)
    for spread in SPREADS:
        a, b = stratified(rng, BF16, (M, 16), spread), stratified(rng, BF16, (N, 16), spread)
        c = stratified(rng, F32, (M, N), spread)
        va, vb, vc = numbers(product, a, b, c)
        got = multiply(product, "exact", a, b, c).view(np.float32)
        for i in range(M):
            for j in range(N):
                terms = [Fraction(x) * Fraction(y) for x, y in zip(va[i], vb[j], strict=True)]
                terms.append(Fraction(vc[i][j]))
                true = sum(terms, Fraction(0))
                # 16 fp64 additions of partial sums no larger than sum |term| (and 2^-53 of it), one to f32.
                fp64 = (
                    16
                    * Fraction(1, 2**53)
                    * sum((abs(t) for t in terms), Fraction(0))
                    * (1 + Fraction(1, 2**48))
                )
                bound = fp64 + Fraction(1, 2**24) * (abs(true) + fp64)
                assert abs(Fraction(float(got[i, j])) - true) <= bound


class TestMutations:
    """A rule with one number changed gives other bits on these operands, so the numbers are really tested."""

    PRODUCTS = (
        Product(F16, F16, "f32", 16),
        Product(BF16, BF16, "f32", 16),
        Product(F16, F16, "f16", 16),
        Product(TF32, TF32, "f32", 8),
        Product(E4M3, E5M2, "f32", 32),
        Product(BF16, BF16, "f32", 16, "wgmma"),
        Product(E4M3, E5M2, "f32", 32, "wgmma"),
    )
    QUICK = quick(PRODUCTS, 0, 3, 6, ids=map(str, PRODUCTS))

    def differing(self, product: Product, rule: Rule, spread: int | None, steps: int = 1) -> int:
        """Elements in which `rule` differs from the model, over `steps` instructions in a row; spread None
        for operands whose large products cancel."""
        rng = np.random.default_rng(23)

        def operand(form: Format, sign: int) -> Codes:
            if spread is None:
                return cancelling(rng, form, (20, product.k), sign)
            return stratified(rng, form, (20, product.k), spread)

        a = [operand(product.a, 1) for _ in range(steps)]
        b = [operand(product.b, 0) for _ in range(steps)]
        c = stratified(rng, product.accumulator, (20, 20), spread or 0, center=2)
        got = c
        for x, y in zip(a, b, strict=True):
            got = multiply(product, "hardware", x, y, got)
        va, vb, vc = numbers(product, np.concatenate(a, axis=1), np.concatenate(b, axis=1), c)
        formats = (product.a.name, product.b.name, product.d)
        want = [
            [codes_of(dot(x, y, vc[i][j], formats, rule), product.d) for j, y in enumerate(vb)]
            for i, x in enumerate(va)
        ]
        return int((got != np.array(want)).sum())

    @pytest.mark.every(2)
    @pytest.mark.parametrize("product", QUICK)
    @pytest.mark.parametrize("spread", [6, 20, 40, None])
    def test_right_numbers_agree(self, product: Product, spread: int | None) -> None:
        assert self.differing(product, published(product), spread) == 0
        assert self.differing(product, published(product), spread, steps=2) == 0

    @pytest.mark.parametrize("product", QUICK)
    @pytest.mark.parametrize("more", [-2, -1, 1, 2])
    def test_other_fraction_bits_differ(self, product: Product, more: int) -> None:
        right = published(product)
        assert self.differing(product, replace(right, bits=right.bits + more), spread=None) > 0

    @pytest.mark.parametrize("kept", [11, 12, 14, 23])
    def test_other_bits_of_the_result_differ(self, kept: int) -> None:
        product = Product(E4M3, E5M2, "f32", 32, "wgmma")
        assert self.differing(product, replace(published(product), kept=kept), spread=6) > 0

    @pytest.mark.parametrize("product", QUICK)
    def test_half_as_many_terms_differ(self, product: Product) -> None:
        assert self.differing(product, replace(published(product), terms=product.k // 2), spread=6) > 0

    @pytest.mark.parametrize("product", QUICK)
    def test_twice_as_many_terms_differ(self, product: Product) -> None:
        rule = replace(published(product), terms=2 * product.k)
        assert self.differing(product, rule, spread=6, steps=2) > 0

    def test_renormalised_products_differ(self) -> None:
        """1.5 * 1.5 = 2.25 has the nominal exponent 0; with its true one, 1, 2^-25 would be lost."""
        product = Product(BF16, BF16, "f32", 16)
        a = np.zeros((1, 16), np.uint16)
        b = np.zeros((1, 16), np.uint16)
        a[0, :3] = [0x3FC0, 0xBFC0, 0x3F80]  # 1.5, -1.5, 1
        b[0, :3] = [0x3FC0, 0x3FC0, 0x3300]  # 1.5, 1.5, 2^-25
        assert multiply(product, "hardware", a, b, None).view(np.float32)[0, 0] == 2.0**-25

    def test_fp8_of_mma_sync_is_not_one_sum_of_32(self) -> None:
        product = Product(E4M3, E5M2, "f32", 32, "mma.sync")
        assert self.differing(product, Rule(terms=32), spread=20) > 0


class TestSpecialValues:
    """One row of A against one of B and a C, values and results spelled out."""

    INF, NAN = math.inf, math.nan

    def one(self, product: Product, a: Numbers, b: Numbers, c: float) -> int:
        kind = {"f16": np.float16, "f32": np.float32}
        x = np.zeros((1, product.k), np.float16)
        y = np.zeros((1, product.k), np.float16)
        x[0, : len(a)], y[0, : len(b)] = a, b
        accumulator = np.array([[c]], kind[product.d]).view(product.accumulator.storage)
        return int(multiply(product, "hardware", x.view(np.uint16), y.view(np.uint16), accumulator)[0, 0])

    @pytest.mark.parametrize(
        ("a", "b", "c", "want"),
        [
            ([INF], [1.0], 0.0, 0x7F800000),
            ([INF], [-1.0], 1.0, 0xFF800000),
            ([INF], [0.0], 0.0, 0x7FFFFFFF),
            ([INF, INF], [1.0, -1.0], 0.0, 0x7FFFFFFF),
            ([INF], [1.0], -INF, 0x7FFFFFFF),
            ([1.0], [1.0], -INF, 0xFF800000),
            ([NAN], [0.0], 0.0, 0x7FFFFFFF),
            ([1.0], [1.0], -NAN, 0x7FFFFFFF),
            ([-0.0], [1.0], -0.0, 0),  # a zero sum is +0
            ([1.0, 1.0], [1.0, -1.0], 0.0, 0),
            ([2.0**-24], [2.0**-24], 0.0, (127 - 48) << 23),
            ([0.0], [0.0], 2.0**-149, 1),
            ([0.0], [0.0], -(2.0**-149), 0x80000001),
            ([65504.0] * 16, [65504.0] * 16, 3.4028234663852886e38, 0x7F7FFFFF),
        ],
    )
    def test_f32(self, a: Numbers, b: Numbers, c: float, want: int) -> None:
        assert self.one(Product(F16, F16, "f32", 16), a, b, c) == want

    @pytest.mark.parametrize(
        ("a", "b", "c", "want"),
        [
            ([INF], [1.0], 0.0, 0x7C00),
            ([NAN], [1.0], 0.0, 0x7FFF),
            ([65504.0], [1.0], 0.0, 0x7BFF),
            ([65504.0], [1.0], 16.0, 0x7C00),  # halfway to 2^16, to even
            ([65504.0], [1.0], 15.9, 0x7BFF),
            ([2.0**-24], [0.5], 0.0, 0),  # halfway to the smallest subnormal, to even
            ([2.0**-24], [0.75], 0.0, 1),
            ([2.0**-24], [-1.5], 0.0, 0x8002),
        ],
    )
    def test_f16(self, a: Numbers, b: Numbers, c: float, want: int) -> None:
        assert self.one(Product(F16, F16, "f16", 16), a, b, c) == want

    def test_a_zero_takes_no_part_in_the_alignment(self) -> None:
        """0 * 2^127 cuts nothing off C, as an H200 has it (tests/sim/silicon/corners.py)."""
        product = Product(BF16, BF16, "f32", 16)
        zeros, huge = np.zeros((1, 16), np.uint16), np.full((1, 16), 0x7F00, np.uint16)
        c = np.array([[2.0**-126 + 2.0**-149]], np.float32)
        assert multiply(product, "hardware", zeros, huge, c.view(np.uint32)).view(np.float32)[0, 0] == c[0, 0]

    def test_a_finite_sum_beyond_f32_is_infinite(self) -> None:
        product = Product(BF16, BF16, "f32", 16)
        huge = np.zeros((1, 16), np.uint16)
        huge[0, 0] = 0x7F7F  # (2 - 2^-7) * 2^127
        for model in ("hardware", "exact"):
            assert multiply(product, model, huge, huge, None)[0, 0] == 0x7F800000


class TestRefusals:
    @pytest.mark.parametrize(
        ("a", "b", "d", "k", "unit"),
        [
            (F16, F16, "f32", 32, "tcgen05"),
            (F16, BF16, "f32", 16, "mma.sync"),
            (BF16, BF16, "f16", 16, "tcgen05"),
            (TF32, TF32, "f16", 8, "tcgen05"),
            (F16, E5M2, "f32", 16, "tcgen05"),
            (F32, F32, "f32", 8, "tcgen05"),
            (F16, BF16, "f32", 16, "wgmma"),
            (E4M3, E4M3, "f32", 16, "wgmma"),
        ],
    )
    def test_products_no_unit_has(self, a: object, b: object, d: object, k: int, unit: object) -> None:
        with pytest.raises(UnsupportedError, match=f"k {k}"):
            Product(a, b, d, k, unit)  # type: ignore[arg-type]

    def test_operands_of_another_shape_or_type(self) -> None:
        product = Product(F16, F16, "f32", 16)
        good = np.zeros((2, 16), np.uint16)
        with pytest.raises(ValueError, match=wording("sim.tensorcore.shape-wrong", k=16)):
            multiply(product, "hardware", good[:, :8], good, None)
        with pytest.raises(ValueError, match="int16"):
            multiply(product, "hardware", good.view(np.int16), good, None)
        with pytest.raises(ValueError, match=wording("sim.tensorcore.accumulator-wrong", wanted="uint32")):
            multiply(product, "hardware", good, good, np.zeros((2, 3), np.uint32))
        with pytest.raises(ValueError, match="hardware, exact"):
            multiply(product, "fast", good, good, None)
