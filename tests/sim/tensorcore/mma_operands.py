# SPDX-License-Identifier: Apache-2.0
"""Operands for the tests: stratified by binades, every code, and the special values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gdnbench.sim.tensorcore.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    F16,
    TF32,
    Codes,
    Format,
    Specials,
)
from gdnbench.sim.tensorcore.product import Product
from tests.sim.silicon import corners

SPREADS = (0, 6, 20, 40)

PRODUCTS = (
    *(Product(f, f, "f32", k, "mma.sync") for f in (F16, BF16) for k in (8, 16)),
    *(Product(F16, F16, "f16", k, "mma.sync") for k in (8, 16)),
    *(Product(TF32, TF32, "f32", k, "mma.sync") for k in (4, 8)),
    *(Product(E4M3, E5M2, d, k, "mma.sync") for d in ("f32", "f16") for k in (16, 32)),
    Product(E4M3, E4M3, "f32", 32, "mma.sync"),
    Product(E5M2, E5M2, "f16", 32, "mma.sync"),
    Product(F16, F16, "f32", 16),
    Product(F16, F16, "f16", 16),
    Product(BF16, BF16, "f32", 16),
    Product(F16, BF16, "f32", 16),
    Product(TF32, TF32, "f32", 8),
    *(Product(E4M3, f, "f32", 32) for f in (E4M3, E5M2, E3M2, E2M3, E2M1)),
    *(Product(f, E4M3, "f16", 32) for f in (E5M2, E3M2, E2M3, E2M1)),
    *(Product(f, f, "f32", 16, "wgmma") for f in (F16, BF16)),
    Product(F16, F16, "f16", 16, "wgmma"),
    Product(TF32, TF32, "f32", 8, "wgmma"),
    *(Product(E4M3, f, d, 32, "wgmma") for f in (E4M3, E5M2) for d in ("f32", "f16")),
)


def stratified(
    rng: np.random.Generator, form: Format, shape: tuple[int, ...], spread: int, center: int = 0
) -> Codes:
    """Finite codes whose exponents lie evenly in `spread` binades around 2^center, clipped to the format."""
    field = rng.integers(-(spread // 2), spread - spread // 2 + 1, shape) + center + form.bias
    field = np.clip(field, 0, form.max_exponent + form.bias)
    fraction = rng.integers(0, 1 << form.fraction_bits, shape)
    if form.specials is Specials.NAN_ONLY:
        fraction = np.where(field == form.max_exponent + form.bias, fraction & ~1, fraction)
    sign = rng.integers(0, 2, shape) << (form.exponent_bits + form.fraction_bits)
    code = (sign | field << form.fraction_bits | fraction) << form.ignored
    return (code | rng.integers(0, 1 << form.ignored, shape)).astype(form.storage)


def cancelling(rng: np.random.Generator, form: Format, shape: tuple[int, int], sign: int) -> Codes:
    """Rows whose first two elements are large and, but for `sign`, equal; the others lie within 20 binades.

    With sign 1 in one operand and 0 in the other, two large products cancel: the sum is what alignment to
    them has left of the rest.
    """
    codes = stratified(rng, form, shape, 20)
    codes[:, :1] = stratified(rng, form, (shape[0], 1), 4, center=13)
    codes[:, 1] = codes[:, 0] ^ form.storage.type(sign << (form.bits - 1))
    return codes


def special_codes(form: Format) -> Codes:
    """Zeros, smallest and largest subnormals and normals, ones, Inf and NaNs, of both signs."""
    field, top = 1 << form.fraction_bits, (1 << form.exponent_bits) - 1
    magnitudes = {0, 1, field - 1, field, form.bias << form.fraction_bits, (top << form.fraction_bits) - 1}
    magnitudes |= {(top << form.fraction_bits) + x for x in (0, 1, field // 2, field - 2, field - 1)}
    sign = 1 << (form.exponent_bits + form.fraction_bits)
    both = sorted(magnitudes | {m | sign for m in magnitudes})
    return np.array([code << form.ignored for code in both], dtype=form.storage)


def sprinkled(rng: np.random.Generator, form: Format, codes: Codes, one_in: int) -> Codes:
    """`codes` with a special value now and then."""
    special = rng.choice(special_codes(form), codes.shape)
    chosen: NDArray[np.bool_] = rng.integers(0, one_in, codes.shape) == 0
    return np.where(chosen, special, codes)


def every_kind(
    rng: np.random.Generator, product: Product, m: int, n: int
) -> list[tuple[str, Codes, Codes, Codes | None]]:
    """(what, a, b, c) of all strata: spreads, specials, random codes, sparse operands, tiny and huge."""
    fa, fb, fc, k = product.a, product.b, product.accumulator, product.k
    cases: list[tuple[str, Codes, Codes, Codes | None]] = []
    for spread in SPREADS:
        a, b = stratified(rng, fa, (m, k), spread), stratified(rng, fb, (n, k), spread)
        c = stratified(rng, fc, (m, n), spread, center=2)
        cases.append((f"spread {spread}", a, b, c))
        cases.append((f"spread {spread} without C", a, b, None))
        a, b, c = (sprinkled(rng, f, x, 2 * k) for f, x in ((fa, a), (fb, b), (fc, c)))
        cases.append((f"spread {spread} with specials", a, b, c))
        cases.append(
            (f"spread {spread} mostly specials", sprinkled(rng, fa, a, 2), sprinkled(rng, fb, b, 2), c)
        )
        zero = rng.integers(0, 3, a.shape) > 0
        cases.append((f"spread {spread} sparse", np.where(zero, fa.storage.type(0), a), b, c))
    for center in (fa.min_exponent, fa.max_exponent):
        a, b = stratified(rng, fa, (m, k), 3, center), stratified(rng, fb, (n, k), 6)
        for c_center in (fc.min_exponent, center, fc.max_exponent):
            cases.append(
                (f"around 2^{center}, C 2^{c_center}", a, b, stratified(rng, fc, (m, n), 4, c_center))
            )
    a, b, c = (
        rng.integers(0, 1 << f.bits, s, f.storage) for f, s in ((fa, (m, k)), (fb, (n, k)), (fc, (m, n)))
    )
    cases.append(("any codes", a, b, c))
    cases.append(("corners", *corners.tile(product)))
    return cases
