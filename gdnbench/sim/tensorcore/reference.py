# SPDX-License-Identifier: Apache-2.0
"""The arithmetic models in NumPy, written for readability. `product` defines them and names their sources.

The `hardware` model uses only integers: significands, nominal exponents and one fixed-point sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdnbench.sim.tensorcore.formats import F16, F32, Codes, Decoded, Format
from gdnbench.sim.tensorcore.product import (
    NAN_BITS,
    ZERO_EXPONENT,
    IntegerProduct,
    Model,
    Product,
    Rule,
    canonical_nan,
    check_operands,
    fused_sum_rule,
    integer_result,
    named_model,
    written,
)
from gdnbench.sim.tensorcore.scaled import (
    GROUP,
    GROUP_FRACTION_BITS,
    GROUP_K,
    ScaledProduct,
    Scales,
    check_scaled,
)

Ints = NDArray[np.int64]


def multiply(
    product: Product | IntegerProduct,
    model: str,
    a: Codes,
    b: Codes,
    c: Codes | None,
    out: Codes | None = None,
) -> Codes:
    """D = A B^T + C, on codes (see `product.Multiply`)."""
    if isinstance(product, IntegerProduct):
        left, right = product.a.values(a), product.b.values(b)
        return written(integer_result(product, (left[:, None, :] * right[None, :, :]).sum(axis=2), c), out)
    chosen = check_operands(product, model, a, b, c, out)
    if c is None:
        c = np.zeros((a.shape[0], b.shape[0]), product.accumulator.storage)
    with np.errstate(invalid="ignore", over="ignore"):
        model_of = _exact if chosen is Model.EXACT else _hardware
        return written(model_of(product, a, b, c), out)


def multiply_scaled(
    product: ScaledProduct, model: str, a: Codes, scale_a: Codes, b: Codes, scale_b: Codes, c: Codes | None
) -> Codes:
    """D = (A scale_A) (B scale_B)^T + C, on codes (see `scaled.MultiplyScaled`)."""
    check_scaled(product, a, scale_a, b, scale_b, c)
    chosen = named_model(model)
    if c is None:
        c = np.zeros((a.shape[0], b.shape[0]), np.uint32)
    sa, sb = product.scale.decode(scale_a), product.scale.decode(scale_b)
    with np.errstate(invalid="ignore", over="ignore"):
        if chosen is Model.EXACT:
            d = _exact_scaled(product, a, scale_a, b, scale_b, c)
        elif product.k == GROUP_K:
            d = _group_sum(product, a, sa, b, sb, c)
        else:
            shift = sa.exponent + sb.exponent.T
            unscaled = product.unscaled
            d = _fused_sum(unscaled, product.a, product.b, a, b, c, fused_sum_rule(unscaled), shift)
    nan = np.logical_or.outer(sa.nan.any(axis=1), sb.nan.any(axis=1))
    return np.where(nan, np.uint32(NAN_BITS["f32"]), d)


def _exact_scaled(
    product: ScaledProduct, a: Codes, scale_a: Codes, b: Codes, scale_b: Codes, c: Codes
) -> Codes:
    """The `exact` model of a block-scaled product."""
    block = product.block
    va = product.a.values(a) * np.repeat(product.scale.values(scale_a), block, axis=1)
    vb = product.b.values(b) * np.repeat(product.scale.values(scale_b), block, axis=1)
    total = F32.values(c)
    for k in range(product.k):
        total = total + va[:, k, None] * vb[None, :, k]
    return round_from_fp64(total, F32, NAN_BITS["f32"])


def _group_sum(product: ScaledProduct, a: Codes, sa: Scales, b: Codes, sb: Scales, c: Codes) -> Codes:
    """One fused sum of C and the exact dot products of `GROUP` elements, [M,N,groups] terms."""
    pa, pb, pc = product.a.decode(a), product.b.decode(b), F32.decode(c)
    of_group = np.arange(0, product.k, GROUP) // product.block
    unit_a, unit_b = _in_units(product.a, pa), _in_units(product.b, pb)
    dots = np.einsum("mgk,ngk->mng", *(u.reshape(len(u), -1, GROUP) for u in (unit_a, unit_b)))
    factors = sa.significand[:, None, of_group] * sb.significand[None, :, of_group]
    scale_bits = 2 * (product.scale.fraction_bits + product.a.fraction_bits - product.a.min_exponent)
    terms = _Terms(
        dots * factors, sa.exponent[:, None, of_group] + sb.exponent[None, :, of_group], scale_bits
    )
    addend = _Terms(_signed(pc), _nominal(pc), F32.fraction_bits)
    largest = np.maximum(terms.exponent.max(axis=2), addend.exponent)
    total = _aligned(terms, largest[:, :, None], GROUP_FRACTION_BITS).sum(axis=2)
    total += _aligned(addend, largest, GROUP_FRACTION_BITS)
    bits = _encode(total, largest - GROUP_FRACTION_BITS, F32)
    bits = np.where(pc.inf, c, bits)
    return np.where(pc.nan, np.uint32(NAN_BITS["f32"]), bits)


def _in_units(form: Format, parts: Decoded) -> Ints:
    """Finite numbers as integers, in units of the format's smallest subnormal."""
    return _signed(parts) << (parts.exponent - form.min_exponent)


def round_from_fp64(values: NDArray[np.float64], form: Format, nan: int) -> Codes:
    """Bits of fp64 values in f32 or f16, to nearest even, with one NaN."""
    if form == F32:
        bits: Codes = values.astype(np.float32).view(np.uint32)
    else:
        bits = values.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(values), form.storage.type(nan), bits)


def _exact(product: Product, a: Codes, b: Codes, c: Codes) -> Codes:
    va, vb = product.a.values(a), product.b.values(b)
    total = product.accumulator.values(c)
    for k in range(product.k):
        total = total + va[:, k, None] * vb[None, :, k]
    return round_from_fp64(total, product.accumulator, int(canonical_nan(product)))


def _hardware(product: Product, a: Codes, b: Codes, c: Codes) -> Codes:
    how = fused_sum_rule(product)
    fa, fb = product.a, product.b
    if how.widened:
        a, b = _as_f16(fa, a), _as_f16(fb, b)
        fa = fb = F16
    total = c if how.c_fused else np.zeros_like(c)
    for ks in how.sums:
        total = _fused_sum(product, fa, fb, a[:, ks], b[:, ks], total, how)
    return total if how.c_fused else _add(product, total, c)


def _as_f16(form: Format, codes: Codes) -> Codes:
    """fp8 codes as f16 codes, exactly; `cvt.rn.f16x2.e4m3x2` gives NaN 0x7FFF."""
    return round_from_fp64(form.values(codes), F16, 0x7FFF)


def _add(product: Product, x: Codes, y: Codes) -> Codes:
    """IEEE addition of accumulators, to nearest even, with the one NaN."""
    nan = canonical_nan(product)
    if product.accumulator == F32:
        sums: Codes = (x.view(np.float32) + y.view(np.float32)).view(np.uint32)
    else:
        sums = (x.view(np.float16) + y.view(np.float16)).view(np.uint16)
    return np.where(product.accumulator.decode(sums).nan, nan, sums)


@dataclass(frozen=True, slots=True)
class _Terms:
    """Exact terms of a fused sum: value = significand * 2^(exponent - scale), signed."""

    significand: Ints
    exponent: Ints
    scale: int


def _nominal(parts: Decoded) -> Ints:
    """The exponents that the adder uses: a zero has its own."""
    return np.where(parts.significand == 0, ZERO_EXPONENT, parts.exponent)


def _signed(parts: Decoded) -> Ints:
    return np.where(parts.negative, -parts.significand, parts.significand)


def _fused_sum(
    product: Product,
    fa: Format,
    fb: Format,
    a: Codes,
    b: Codes,
    c: Codes,
    how: Rule,
    shift: Ints | int = 0,
) -> Codes:
    """One fused sum of C and all products of a[M,K] and b[N,K], the products times 2^shift[M,N]."""
    fraction_bits = how.fraction_bits
    accumulator = product.accumulator
    pa, pb, pc = fa.decode(a), fb.decode(b), accumulator.decode(c)

    # [M,N,K] products, followed by C as one more term.
    products = _Terms(
        _signed(pa)[:, None, :] * _signed(pb)[None, :, :],
        _nominal(pa)[:, None, :] + _nominal(pb)[None, :, :] + np.expand_dims(shift, -1),
        fa.fraction_bits + fb.fraction_bits,
    )
    addend = _Terms(_signed(pc), _nominal(pc), accumulator.fraction_bits)
    largest = np.maximum(products.exponent.max(axis=2), addend.exponent)

    total: Ints = _aligned(products, largest[:, :, None], fraction_bits).sum(axis=2)
    total = total + _aligned(addend, largest, fraction_bits)
    bits = _encode(total, largest - fraction_bits, accumulator, how.cut)
    return _with_specials(product, bits, pa, pb, pc)


def _aligned(terms: _Terms, largest: Ints, fraction_bits: int) -> Ints:
    """Terms in units of 2^(largest - fraction_bits), cut toward zero."""
    shift = fraction_bits - terms.scale + terms.exponent - largest
    magnitude = np.abs(terms.significand)
    cut: Ints = (magnitude << np.clip(shift, 0, 63)) >> np.clip(-shift, 0, 63)
    return np.where(terms.significand < 0, -cut, cut)


def _encode(total: Ints, unit: Ints, form: Format, cut: int = 0) -> Codes:
    """`total * 2^unit` in f32 truncated toward zero, or in f16 rounded to nearest even; overflow gives Inf, 0
    gives +0. The low `cut` bits of the significand are zero."""
    magnitude = np.abs(total)
    length = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64)  # bit length: totals stay below 2^53
    exponent = np.maximum(length - 1 + unit, form.min_exponent)
    # The sum in units of the result's last place.
    drop = exponent - form.fraction_bits - unit
    kept = (magnitude >> np.clip(drop, 0, 62)) << np.clip(-drop, 0, 62)
    if form == F16:
        rest = magnitude - ((magnitude >> np.clip(drop, 0, 62)) << np.clip(drop, 0, 62))
        half = np.int64(1) << np.clip(drop - 1, 0, 62)
        kept += (drop > 0) & ((rest > half) | ((rest == half) & (kept % 2 == 1)))
    kept = (kept >> cut) << cut

    # A significand that rounds up to the next power of two carries into the exponent field.
    field = exponent + form.bias - 1
    bits = (field << form.fraction_bits) + kept
    infinity = ((1 << form.exponent_bits) - 1) << form.fraction_bits
    bits = np.minimum(bits, infinity)
    bits |= np.where((total < 0) & (kept != 0), 1 << (form.bits - 1), 0)
    return np.where(kept == 0, 0, bits).astype(form.storage)


def _with_specials(product: Product, bits: Codes, pa: Decoded, pb: Decoded, pc: Decoded) -> Codes:
    """Inf and NaN of the exact sum, which depend only on the operands' signs and kinds."""

    def kinds(parts: Decoded) -> NDArray[np.float64]:
        kind = np.where(parts.inf, np.inf, np.sign(parts.significand))
        return np.where(parts.nan, np.nan, np.where(parts.negative, -kind, kind))

    total = (kinds(pa)[:, None, :] * kinds(pb)[None, :, :]).sum(axis=2) + kinds(pc)
    form = product.accumulator
    infinity = form.storage.type(((1 << form.exponent_bits) - 1) << form.fraction_bits)
    sign = form.storage.type(1 << (form.bits - 1))
    bits = np.where(total == np.inf, infinity, bits)
    bits = np.where(total == -np.inf, infinity | sign, bits)
    return np.where(np.isnan(total), canonical_nan(product), bits)
