# SPDX-License-Identifier: Apache-2.0
"""Conversions against Python integers, exact fractions and ml_dtypes, by PTX ISA 9.7.9.21."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.sim.instructions.exact import (
    SHAPES,
    Value,
    decode,
    elementwise,
    encode,
    power,
    same_f64,
    saturated,
)
from tests.sim.instructions.one_instruction import BLOCK, apply, check, one
from tests.sim.instructions.operands import float_bits, integers
from tests.subset import quick

Array = npt.NDArray[Any]
INTEGERS = [f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64)]
STORAGE = {"f32": np.uint32, "f64": np.uint64, "f16": np.uint16, "bf16": np.uint16}
MODES = ["rn", "rz", "rm", "rp"]


def dtype(name: str) -> np.dtype[Any]:
    return np.dtype(f"{'i' if name[0] == 's' else 'u'}{int(name[1:]) // 8}")


def bounds(name: str) -> tuple[int, int]:
    info = np.iinfo(dtype(name))
    return int(info.min), int(info.max)


def wrap(value: int, name: str) -> int:
    low, high = bounds(name)
    return (value - low) % (high - low + 1) + low


@pytest.mark.every(2)
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer(engine: str, source: str) -> None:
    a = integers(dtype(source), 1)
    targets = [name for name in INTEGERS if name != source]
    text = "".join(f"cvt.{target}.{source} %d{i}, %s0;\n" for i, target in enumerate(targets))
    for target, actual in zip(targets, apply(engine, text, [a], [dtype(t) for t in targets]), strict=True):
        check(actual, elementwise(lambda x, t=target: wrap(x, t), dtype(target), a), a)
    text = "".join(f"cvt.sat.{target}.{source} %d{i}, %s0;\n" for i, target in enumerate(targets))
    for target, actual in zip(targets, apply(engine, text, [a], [dtype(t) for t in targets]), strict=True):
        low, high = bounds(target)
        check(actual, elementwise(lambda x, lo=low, hi=high: max(lo, min(hi, x)), dtype(target), a), a)


@pytest.mark.parametrize(("source", "target"), [("s8", "s16"), ("u8", "u32"), ("s16", "s64"), ("s8", "u16")])
def test_wider_registers(engine: str, source: str, target: str) -> None:
    """The source is chopped to its type; the result is extended to its register (9.4.1)."""
    a = integers(np.uint32, 2)
    narrow = elementwise(lambda x: wrap(wrap(x, source), target), dtype(target), a)
    signed = target[0] == "s"
    expected = narrow.astype(np.int64 if signed else np.uint64).view(np.uint64)
    check(one(engine, f"cvt.{target}.{source} %d0, %s0;", [a], np.uint64), expected, a)


ROUND_TO_INTEGER = {
    "rni": lambda x: round(x),  # Fraction rounds half to even
    "rzi": lambda x: math.trunc(x),
    "rmi": lambda x: math.floor(x),
    "rpi": lambda x: math.ceil(x),
}


def float_operands(source: str, seed: int) -> Array:
    """Numbers of every size, ties, and those around the ends of the integer types."""
    bits = float_bits(source, seed, 200)
    shape = SHAPES[source]
    values = [Fraction(n, 2) for n in range(-9, 10)]
    for exponent in (7, 8, 15, 16, 31, 32, 63, 64):
        for delta in (-2, -1, 0, 1, Fraction(1, 2), Fraction(-1, 2)):
            values += [power(exponent) + delta, -power(exponent) + delta]
    near = [encode(Value(Fraction(v), v < 0), source, "rz") for v in values]
    finite = [b for b in near if b & shape.infinity != shape.infinity]
    return np.concatenate([bits, np.array(finite, STORAGE[source])])


@pytest.mark.every(2)
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("mode", ROUND_TO_INTEGER)
def test_float_to_integer(engine: str, source: str, mode: str) -> None:
    a = float_operands(source, 3)
    text = "".join(f"cvt.{mode}.{target}.{source} %d{i}, %s0;\n" for i, target in enumerate(INTEGERS))
    results = apply(engine, text, [a], [dtype(t) for t in INTEGERS])
    for target, actual in zip(INTEGERS, results, strict=True):
        low, high = bounds(target)
        wide = source == "f64" or target in ("u64", "s64")
        missing = wrap(1 << (int(target[1:]) - 1), target) if wide else 0

        def convert(bits: int, low: int = low, high: int = high, missing: int = missing) -> int:
            value = decode(bits, source)
            if value.nan:
                return missing
            if not value.finite:
                return low if value.negative else high
            return max(low, min(high, ROUND_TO_INTEGER[mode](value.number)))

        check(actual, elementwise(convert, dtype(target), a), a)


@pytest.mark.every(3)
@pytest.mark.parametrize("target", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("mode", MODES)
def test_integer_to_float(engine: str, target: str, mode: str) -> None:
    for source in INTEGERS:
        a = integers(dtype(source), 4)
        expected = elementwise(lambda x: encode(Value(Fraction(x), x < 0), target, mode), STORAGE[target], a)
        check(one(engine, f"cvt.{mode}.{target}.{source} %d0, %s0;", [a], STORAGE[target]), expected, a)


def ties(source: str, target: str, seed: int) -> Array:
    """Bit patterns of `source` that lie on, and next to, the ties of `target`."""
    random = np.random.default_rng(seed)
    drop = SHAPES[source].fraction_bits - SHAPES[target].fraction_bits
    unit = STORAGE[source]
    base = float_bits(source, seed, 300) >> unit(drop) << unit(drop)
    return base + (np.uint64(1 << (drop - 1)) + random.integers(-1, 2, base.size).astype(np.int64)).astype(
        unit
    )


def any_nan(actual: Array, expected: Array, name: str) -> Array:
    """`expected`, with the NaN of `actual` where both are one: PTX leaves payloads open, silicon vectors do
    not."""

    def nan(bits: Array) -> Array:
        return elementwise(lambda x: decode(x, name).nan, np.bool_, bits)

    return np.where(nan(actual) & nan(expected), actual, expected)


NARROWING = [("f64", "f32"), ("f64", "f16"), ("f64", "bf16"), ("f32", "f16"), ("f32", "bf16")]


@pytest.mark.every(2)
@pytest.mark.parametrize(("source", "target"), NARROWING)
@pytest.mark.parametrize("mode", MODES)
def test_narrowing(engine: str, source: str, target: str, mode: str) -> None:
    a = np.concatenate([float_bits(source, 5), ties(source, target, 6)])
    expected = elementwise(lambda x: encode(decode(x, source), target, mode), STORAGE[target], a)
    actual = one(engine, f"cvt.{mode}.{target}.{source} %d0, %s0;", [a], STORAGE[target])
    check(actual, any_nan(actual, expected, target) if source == "f64" else expected, a)


NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def widened(a: Array, source: str, target: str) -> Array:
    """NumPy's exact conversion, with PTX's NaN."""
    with np.errstate(invalid="ignore"):
        values = a.view(NUMPY[source]).astype(NUMPY[target])
    nan = STORAGE[target](SHAPES[target].nan)
    return np.where(np.isnan(values), nan, values.view(STORAGE[target]))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("source", "target"), [("f16", "f32"), ("bf16", "f32"), ("f16", "f64"), ("bf16", "f64"), ("f32", "f64")]
)
def test_widening(engine: str, source: str, target: str) -> None:
    a = np.arange(1 << 16, dtype=np.uint16) if source != "f32" else float_bits(source, 7)
    expected = widened(a, source, target)
    actual = one(engine, f"cvt.{target}.{source} %d0, %s0;", [a], STORAGE[target])
    check(actual, any_nan(actual, expected, target) if source == "bf16" or target == "f64" else expected, a)


@pytest.mark.parametrize("source", ["f32", "f64", "f16"])
def test_round_to_integral(engine: str, source: str) -> None:
    a = float_operands(source, 8)
    for mode, function in ROUND_TO_INTEGER.items():

        def integral(bits: int, function: Any = function) -> int:
            value = decode(bits, source)
            number = Fraction(function(value.number)) if value.finite else value.number
            return encode(Value(number, value.negative), source)

        actual = one(engine, f"cvt.{mode}.{source}.{source} %d0, %s0;", [a], STORAGE[source])
        expected = elementwise(integral, STORAGE[source], a)
        check(actual, same_f64(actual, expected) if source == "f64" else expected, a)


def test_f32_modifiers(engine: str) -> None:
    a = float_bits("f32", 9)
    sat = elementwise(lambda x: saturated(x, "f32"), np.uint32, a)
    check(one(engine, "cvt.sat.f32.f32 %d0, %s0;", [a], np.uint32), sat, a)
    ftz = elementwise(lambda x: encode(decode(x, "f32", True), "f32", ftz=True), np.uint32, a)
    check(one(engine, "cvt.ftz.f32.f32 %d0, %s0;", [a], np.uint32), ftz, a)
    half = np.arange(1 << 16, dtype=np.uint16)
    wide = widened(half, "bf16", "f32")
    flushed = np.where(wide & np.uint32(0x7F800000) == 0, wide & np.uint32(0x80000000), wide)
    check(one(engine, "cvt.ftz.f32.bf16 %d0, %s0;", [half], np.uint32), flushed, half)


def relu(value: Value) -> Value:
    return Value(Fraction(0), False) if not value.nan and (value.negative or value.number == 0) else value


def satfinite(bits: int, target: str) -> int:
    """Inf as the largest number."""
    shape = SHAPES[target]
    return bits - 1 if bits & ~shape.sign == shape.infinity else bits


@pytest.mark.every(2)
@pytest.mark.parametrize("target", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_packed_halves(engine: str, target: str, mode: str) -> None:
    """The first source goes to the upper half."""
    a = np.concatenate([float_bits("f32", 10), ties("f32", target, 11)])
    b = np.roll(a, 3)
    for suffix, clamp, finite in (("", False, False), (".relu", True, False), (".satfinite", False, True),
                                  (".relu.satfinite", True, True)):  # fmt: skip

        def half(bits: int, clamp: bool = clamp, finite: bool = finite) -> int:
            value = decode(bits, "f32")
            result = encode(relu(value) if clamp else value, target, mode)
            return satfinite(result, target) if finite else result

        expected = elementwise(lambda x, y, half=half: half(x) << 16 | half(y), np.uint32, a, b)
        text = f"cvt.{mode}{suffix}.{target}x2.f32 %d0, %s0, %s1;"
        check(one(engine, text, [a, b], np.uint32), expected, a, b)
        expected = elementwise(half, np.uint16, a)
        check(one(engine, f"cvt.{mode}{suffix}.{target}.f32 %d0, %s0;", [a], np.uint16), expected, a)


@pytest.mark.parametrize("mode", ["rna", "rn", "rz"])
def test_tf32(engine: str, mode: str) -> None:
    a = np.concatenate([float_bits("f32", 12), ties("f32", "tf32", 13)])

    def convert(bits: int, finite: bool = False) -> int:
        value = decode(bits, "f32")
        if value.nan:
            return 0x7FFFE000
        result = encode(value, "tf32", mode)
        return (satfinite(result, "tf32") if finite else result) << 13

    if mode == "rna":  # what it makes of NaN is left to the silicon vectors
        a = a[~elementwise(lambda x: decode(x, "f32").nan, np.bool_, a)]
    expected = elementwise(convert, np.uint32, a)
    check(one(engine, f"cvt.{mode}.tf32.f32 %d0, %s0;", [a], np.uint32), expected, a)
    expected = elementwise(lambda x: convert(x, finite=True), np.uint32, a)
    check(one(engine, f"cvt.{mode}.satfinite.tf32.f32 %d0, %s0;", [a], np.uint32), expected, a)


# Type, largest number, code of NaN or of the largest number, bits from one code of a pair to the next, bits.
SMALL = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 0x7F, 8, 8),
    "e5m2": (ml_dtypes.float8_e5m2, 57344.0, 0x7F, 8, 8),
    "e2m3": (ml_dtypes.float6_e2m3fn, 7.5, 0x1F, 8, 6),
    "e3m2": (ml_dtypes.float6_e3m2fn, 28.0, 0x1F, 8, 6),
    "e2m1": (ml_dtypes.float4_e2m1fn, 6.0, 0x07, 4, 4),
}


def small_codes(a: Array, name: str, clamp_negative: bool = False) -> Array:
    """ml_dtypes rounds to nearest even; clamping first makes it saturate. NaN is NaN, or the positive
    largest."""
    kind, largest, nan, *_ = SMALL[name]
    values = np.clip(a, -largest, largest)
    if clamp_negative:
        values = np.where(values <= 0, np.float32(0), values)
    codes = np.where(np.isnan(a), np.float32(0), values).astype(kind).view(np.uint8)
    return np.where(np.isnan(a), np.uint8(nan), codes)


def small_operands(name: str, seed: int) -> Array:
    """f32 numbers around the range of a small format, with every tie, and the corners of f32."""
    kind, largest, _, _, bits = SMALL[name]
    values = np.arange(1 << bits).astype(np.uint8).view(kind).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    ties_ = (values[1:] + values[:-1]) / np.float32(2)
    around = np.concatenate(
        [values, ties_, np.nextafter(ties_, np.float32(9e9)), np.nextafter(ties_, np.float32(-9e9))]
    )
    random = np.random.default_rng(seed).normal(0, largest / 2, 500).astype(np.float32)
    return np.concatenate([around, random, float_bits("f32", seed).view(np.float32)])


@pytest.mark.parametrize("name", SMALL)
def test_small_floats_from_f32(engine: str, name: str) -> None:
    a = small_operands(name, 14)
    b = np.roll(a, 1)
    step = SMALL[name][3]
    result = np.uint8 if step == 4 else np.uint16
    with np.errstate(invalid="ignore"):
        for suffix, clamp in (("", False), (".relu", True)):
            high, low = small_codes(a, name, clamp).astype(np.uint16), small_codes(b, name, clamp)
            expected = (high << np.uint16(step) | low).astype(result)
            text = f"cvt.rn.satfinite{suffix}.{name}x2.f32 %d0, %s0, %s1;"
            check(one(engine, text, [a.view(np.uint32), b.view(np.uint32)], result), expected, a, b)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", quick(SMALL, 0, 4))
@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_small_floats_from_halves(engine: str, name: str, half: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint32)
    both = bits << np.uint32(16) | np.roll(bits, 1)
    kind = np.float16 if half == "f16" else ml_dtypes.bfloat16
    step = SMALL[name][3]
    result = np.uint8 if step == 4 else np.uint16
    with np.errstate(invalid="ignore"):
        codes = small_codes(bits.astype(np.uint16).view(kind).astype(np.float32), name).astype(np.uint16)
    expected = (codes << np.uint16(step) | np.roll(codes, 1)).astype(result)
    check(one(engine, f"cvt.rn.satfinite.{name}x2.{half}x2 %d0, %s0;", [both], result), expected, both)


@pytest.mark.parametrize("name", SMALL)
def test_small_floats_to_f16(engine: str, name: str) -> None:
    kind, _, _, step, bits = SMALL[name]
    if step == 4:
        packed = np.arange(256, dtype=np.uint8)
        low, high = packed & 15, packed >> 4
    else:
        codes = np.arange(1 << bits, dtype=np.uint16)
        low, high = np.resize(codes, 1024), np.resize(np.roll(codes, 7), 1024)
        packed = high << np.uint16(8) | low
    halves = [codes.astype(np.uint8).view(kind).astype(np.float16).view(np.uint16) for codes in (high, low)]
    halves = [np.where(np.isnan(h.view(np.float16)), np.uint16(0x7FFF), h) for h in halves]
    expected = halves[0].astype(np.uint32) << np.uint32(16) | halves[1]
    check(one(engine, f"cvt.rn.f16x2.{name}x2 %d0, %s0;", [packed], np.uint32), expected, packed)


def test_scales(engine: str) -> None:
    """ue8m0 is a power of two: 2^(code - 127), 255 NaN."""
    a = np.concatenate([float_bits("f32", 15), np.arange(0, 256, dtype=np.uint32) << np.uint32(23)])
    a &= np.uint32(0x7FFFFFFF)
    b = np.roll(a, 1)

    def code(bits: int, mode: str) -> int:
        value = decode(bits, "f32")
        if value.nan:
            return 255
        if not value.finite:
            return 254
        if value.number == 0:
            return 0
        exponent = value.number.numerator.bit_length() - value.number.denominator.bit_length()
        exponent -= power(exponent) > value.number
        up = mode == "rp" and power(exponent) != value.number
        return max(0, min(254, exponent + up + 127))

    for mode in ("rz", "rp"):
        expected = elementwise(lambda x, y, m=mode: code(x, m) << 8 | code(y, m), np.uint16, a, b)
        text = f"cvt.{mode}.satfinite.ue8m0x2.f32 %d0, %s0, %s1;"
        check(one(engine, text, [a, b], np.uint16), expected, a, b)
    packed = np.arange(256, dtype=np.uint16) << np.uint16(8) | np.arange(256, dtype=np.uint16)[::-1]

    def bf16(scale: int) -> int:
        return 0x7FFF if scale == 255 else encode(Value(power(scale - 127), False), "bf16")

    expected = elementwise(lambda x: bf16(x >> 8) << 16 | bf16(x & 255), np.uint32, packed)
    check(one(engine, "cvt.rn.bf16x2.ue8m0x2 %d0, %s0;", [packed], np.uint32), expected, packed)


@pytest.mark.parametrize("target", ["f32", "f64"])
@pytest.mark.parametrize("source", ["u8", "u16", "u32", "u64", "s32", "s64"])
def test_zero_rounded_down_on_a_cpu_without_avx512(
    as_cpu: Callable[[str], None], source: str, target: str
) -> None:
    """IEEE 754, 6.3: an integer zero has no sign. LLVM's code for CPUs without AVX-512 gave -0."""
    as_cpu("x86-64-v3")
    zeros = np.zeros(BLOCK, dtype(source))
    assert not one("compiled", f"cvt.rm.{target}.{source} %d0, %s0;", [zeros], STORAGE[target]).any()
