"""The arithmetic models in NumPy, written for readability. `product` defines them and names their sources.

The `hardware` model uses only integers: significands, nominal exponents and one fixed-point sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdnbench.sim.tensorcore.formats import F16, F32, Codes, Decoded, Format
from gdnbench.sim.tensorcore.product import (
    ZERO_EXPONENT,
    Model,
    Product,
    Rule,
    canonical_nan,
    check_operands,
    fused_sum_rule,
)

Ints = NDArray[np.int64]


def multiply(product: Product, model: str, a: Codes, b: Codes, c: Codes | None) -> Codes:
    """D = A B^T + C, on codes (see `product.Multiply`)."""
    chosen = check_operands(product, model, a, b, c)
    if c is None:
        c = np.zeros((a.shape[0], b.shape[0]), product.accumulator.storage)
    with np.errstate(invalid="ignore", over="ignore"):
        return _exact(product, a, b, c) if chosen is Model.EXACT else _hardware(product, a, b, c)


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
) -> Codes:
    """One fused sum of C and all products of a[M,K] and b[N,K]."""
    fraction_bits = how.fraction_bits
    accumulator = product.accumulator
    pa, pb, pc = fa.decode(a), fb.decode(b), accumulator.decode(c)

    # [M,N,K] products, followed by C as one more term.
    products = _Terms(
        _signed(pa)[:, None, :] * _signed(pb)[None, :, :],
        _nominal(pa)[:, None, :] + _nominal(pb)[None, :, :],
        fa.fraction_bits + fb.fraction_bits,
    )
    addend = _Terms(_signed(pc), _nominal(pc), accumulator.fraction_bits)
    largest = np.maximum(products.exponent.max(axis=2), addend.exponent)

    def aligned(terms: _Terms, largest: Ints) -> Ints:
        """Terms in units of 2^(largest - fraction_bits), cut toward zero."""
        shift = fraction_bits - terms.scale + terms.exponent - largest
        magnitude = np.abs(terms.significand)
        cut: Ints = (magnitude << np.clip(shift, 0, 63)) >> np.clip(-shift, 0, 63)
        return np.where(terms.significand < 0, -cut, cut)

    total: Ints = aligned(products, largest[:, :, None]).sum(axis=2) + aligned(addend, largest)
    bits = _encode(total, largest - fraction_bits, accumulator, how.cut)
    return _with_specials(product, bits, pa, pb, pc)


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
