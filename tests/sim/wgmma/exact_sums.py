# SPDX-License-Identifier: Apache-2.0
"""wgmma's sums of one entry of D in exact fractions, by MMA-Sim's rule and without the simulator's code.

MMA-Sim: Xie et al., arXiv 2511.10909, `nv_ptx.wgmma` and `arithmetic.nv_fused_dot_add`. In one thing the rule
here is another: terms of zero take no part in the alignment, which an H200 said of mma.sync
(`gdnbench/sim/tensorcore/product.py`). `test_recorded_sums.py` holds these sums to an H200's.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Encoding:
    """A float's fields; `width` is that of a code in memory, in bits."""

    exponent: int
    fraction: int
    bias: int
    width: int


ENCODINGS = {
    "f16": Encoding(5, 10, 15, 16),
    "bf16": Encoding(8, 7, 127, 16),
    "tf32": Encoding(8, 10, 127, 32),
    "e4m3": Encoding(4, 3, 7, 8),
    "e5m2": Encoding(5, 2, 15, 8),
    "f32": Encoding(8, 23, 127, 32),
}
TF32_IGNORED = 13  # low bits of a tf32 code that mean nothing
BYTES = ("e4m3", "e5m2")

# Of D, A and B: what wgmma multiplies, with both orders of the two kinds of bytes.
TYPES = (
    ("f32", "f16", "f16"),
    ("f32", "bf16", "bf16"),
    ("f16", "f16", "f16"),
    ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e5m2"),
    ("f32", "e5m2", "e4m3"),
    ("f16", "e5m2", "e5m2"),
    ("f16", "e4m3", "e5m2"),
    ("f32", "e4m3", "e4m3"),
)
Types = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Number:
    """A code's meaning: `kind` is "finite", "inf" or "nan"; a subnormal has its format's least exponent."""

    kind: str
    negative: bool = False
    exponent: int = 0
    magnitude: Fraction = Fraction(0)


def decode(name: str, code: int) -> Number:
    form = ENCODINGS[name]
    if name == "tf32":
        code >>= TF32_IGNORED
    negative = bool(code >> (form.exponent + form.fraction) & 1)
    field = code >> form.fraction & ((1 << form.exponent) - 1)
    fraction = code & ((1 << form.fraction) - 1)
    full = field == (1 << form.exponent) - 1
    if name == "e4m3":  # no infinities, one NaN of each sign (OCP 8-bit floating point, table 1)
        if full and fraction == 7:
            return Number("nan")
    elif full:
        return Number("nan") if fraction else Number("inf", negative)
    part = Fraction(fraction, 1 << form.fraction)
    if field == 0:
        return Number("finite", negative, 1 - form.bias, part * power(1 - form.bias))
    return Number("finite", negative, field - form.bias, (1 + part) * power(field - form.bias))


def power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def cut(value: Fraction, exponent: int) -> Fraction:
    """`value` toward zero at 2^exponent."""
    whole = int(abs(value) / power(exponent)) * power(exponent)
    return -whole if value < 0 else whole


def encode(d: str, value: Fraction) -> int:
    """The code of D: f32 toward zero, f16 to nearest even, Inf beyond the largest finite number, 0 is +0."""
    if value == 0:
        return 0
    form = ENCODINGS[d]
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    while power(exponent) > size:
        exponent -= 1
    while power(exponent + 1) <= size:
        exponent += 1
    exponent = max(exponent, 1 - form.bias)
    units = size / power(exponent - form.fraction)
    kept = round(units) if d == "f16" else int(units)  # Fraction rounds halves to even
    hidden = 1 << form.fraction
    code = ((exponent + form.bias - 1) << form.fraction) + kept if kept >= hidden else kept
    infinity = ((1 << form.exponent) - 1) << form.fraction
    return (value < 0) << (form.exponent + form.fraction) | min(code, infinity)


def fused_sum(types: Types, a: list[int], b: list[int], c: int | None) -> int:
    """The code of sum a[k] b[k] + c. Terms are cut toward zero at their largest nominal exponent less 25, or
    13 for bytes; zeros take no part. An f32 D of bytes keeps 13 fraction bits."""
    d = types[0]
    fraction_bits = 13 if types[1] in BYTES else 25
    pairs = [(decode(types[1], x), decode(types[2], y)) for x, y in zip(a, b, strict=True)]
    if c is not None:
        pairs.append((decode(d, c), Number("finite", False, 0, Fraction(1))))
    terms: list[tuple[int, Fraction]] = []
    infinite: set[bool] = set()  # the signs of infinite terms
    nan = False
    for x, y in pairs:
        kinds = {x.kind, y.kind}
        negative = x.negative != y.negative
        if "nan" in kinds:
            nan = True
        elif "inf" in kinds:
            zero = any(v.kind == "finite" and v.magnitude == 0 for v in (x, y))
            nan = nan or zero
            infinite.add(negative)
        elif x.magnitude and y.magnitude:
            value = x.magnitude * y.magnitude
            terms.append((x.exponent + y.exponent, -value if negative else value))
    if nan or len(infinite) == 2:
        return 0x7FFFFFFF if d == "f32" else 0x7FFF
    if infinite:
        infinity = (0x7F800000, 0xFF800000) if d == "f32" else (0x7C00, 0xFC00)
        return infinity[infinite.pop()]
    unit = max((exponent for exponent, _ in terms), default=0) - fraction_bits
    code = encode(d, sum((cut(value, unit) for _, value in terms), Fraction(0)))
    if d == "f32" and fraction_bits == 13:
        code &= ~((1 << 10) - 1)  # Inf has no fraction bits to lose
    return code
