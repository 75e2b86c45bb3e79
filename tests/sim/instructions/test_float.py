# SPDX-License-Identifier: Apache-2.0
"""Floating-point arithmetic against exact fractions rounded once (`exact`), by PTX ISA 9.7.3 to 9.7.5."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.sim.instructions.exact import (
    SHAPES,
    Value,
    decode,
    elementwise,
    encode,
    minus,
    over,
    plus,
    same_f64,
    saturated,
    times,
)
from tests.sim.instructions.one_instruction import apply, check, one
from tests.sim.instructions.operands import CORNERS, float_bits, pairs, triples

Array = npt.NDArray[Any]
MODES = ["rn", "rz", "rm", "rp"]
STORAGE = {"f32": np.uint32, "f64": np.uint64, "f16": np.uint16, "bf16": np.uint16}


def two(name: str, seed: int, count: int = 512) -> tuple[Array, Array]:
    return pairs(float_bits(name, seed, count), float_bits(name, seed + 1, count), CORNERS)


def three(name: str, seed: int, count: int = 256) -> tuple[Array, Array, Array]:
    return triples(*(float_bits(name, seed + i, count) for i in range(3)), corners=10)


@cache
def exact(op: str, name: str, mode: str, ftz: bool = False, sat: bool = False) -> Any:
    """The bits of the exact result of `op`, rounded once. Kept for the next engine."""

    @cache
    def compute(*bits: int) -> int:
        values = [decode(b, name, ftz) for b in bits]
        if op == "add":
            value = plus(values[0], values[1], mode)
        elif op == "sub":
            value = plus(values[0], minus(values[1]), mode)
        elif op == "mul":
            value = times(values[0], values[1])
        elif op == "div":
            value = over(values[0], values[1])
        else:
            value = plus(times(values[0], values[1]), values[2], mode)
        result = encode(value, name, mode, ftz)
        return saturated(result, name) if sat else result

    return compute


@pytest.mark.every(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_f32(engine: str, op: str, mode: str) -> None:
    a, b = two("f32", 1)
    expected = elementwise(exact(op, "f32", mode), np.uint32, a, b)
    check(one(engine, f"{op}.{mode}.f32 %d0, %s0, %s1;", [a, b], np.uint32), expected, a, b)


@pytest.mark.parametrize("mode", MODES)
def test_fma_f32(engine: str, mode: str) -> None:
    a, b, c = three("f32", 3)
    expected = elementwise(exact("fma", "f32", mode), np.uint32, a, b, c)
    check(one(engine, f"fma.{mode}.f32 %d0, %s0, %s1, %s2;", [a, b, c], np.uint32), expected, a, b, c)


@pytest.mark.parametrize("mode", MODES)
def test_fma_rounds_once(engine: str, mode: str) -> None:
    """Products that lie next to a tie of the sum, on which rounding twice goes wrong."""
    random = np.random.default_rng(4)
    a = random.integers(0x3F800000, 0x40000000, 4000, dtype=np.uint32)
    b = random.integers(0x3F800000, 0x40000000, 4000, dtype=np.uint32)
    half_ulp = random.integers(20, 32, 4000).astype(np.uint32)
    c = (a * 0 + 0x3F800000 + (half_ulp << np.uint32(23))).astype(np.uint32)
    c ^= random.integers(0, 2, 4000).astype(np.uint32) << np.uint32(31)
    expected = elementwise(exact("fma", "f32", mode), np.uint32, a, b, c)
    check(one(engine, f"fma.{mode}.f32 %d0, %s0, %s1, %s2;", [a, b, c], np.uint32), expected, a, b, c)


def test_defaults_round_to_nearest(engine: str) -> None:
    a, b = two("f32", 5, 64)
    for op in ("add", "sub", "mul"):
        check(
            one(engine, f"{op}.f32 %d0, %s0, %s1;", [a, b], np.uint32),
            elementwise(exact(op, "f32", "rn"), np.uint32, a, b),
            a,
            b,
        )


def subnormal_results(seed: int) -> tuple[Array, Array]:
    """Operands whose sums, products and quotients lie around the smallest normal number."""
    random = np.random.default_rng(seed)
    fraction = random.integers(0, 1 << 23, (2, 2000)).astype(np.uint32)
    exponent = random.integers(0, 4, (2, 2000)).astype(np.uint32) + np.array([[0], [0]], np.uint32)
    sign = random.integers(0, 2, (2, 2000)).astype(np.uint32) << np.uint32(31)
    both = sign | exponent << np.uint32(23) | fraction
    both[1, 1000:] += np.uint32(127 << 23)  # near one: products and quotients stay small
    return both[0], both[1]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div.rn"])
def test_subnormals(engine: str, op: str) -> None:
    a, b = subnormal_results(6)
    name = op.split(".")[0]
    check(
        one(engine, f"{op}.f32 %d0, %s0, %s1;", [a, b], np.uint32),
        elementwise(exact(name, "f32", "rn"), np.uint32, a, b),
        a,
        b,
    )


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div.rn"])
def test_ftz(engine: str, op: str) -> None:
    """Subnormal operands and results are zeros of their sign."""
    a, b = (np.concatenate(x) for x in zip(subnormal_results(7), two("f32", 8, 64), strict=True))
    name = op.split(".")[0]
    check(
        one(engine, f"{op}.ftz.f32 %d0, %s0, %s1;", [a, b], np.uint32),
        elementwise(exact(name, "f32", "rn", ftz=True), np.uint32, a, b),
        a,
        b,
    )


def test_fma_ftz_sat(engine: str) -> None:
    a, b, c = three("f32", 9, 64)
    for suffix, ftz, sat in ((".ftz", True, False), (".sat", False, True), (".ftz.sat", True, True)):
        check(
            one(engine, f"fma.rn{suffix}.f32 %d0, %s0, %s1, %s2;", [a, b, c], np.uint32),
            elementwise(exact("fma", "f32", "rn", ftz, sat), np.uint32, a, b, c),
            a,
            b,
            c,
        )


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_sat(engine: str, op: str) -> None:
    a, b = two("f32", 10, 128)
    check(
        one(engine, f"{op}.sat.f32 %d0, %s0, %s1;", [a, b], np.uint32),
        elementwise(exact(op, "f32", "rn", sat=True), np.uint32, a, b),
        a,
        b,
    )


@pytest.mark.parametrize("mode", MODES)
def test_packed_f32(engine: str, mode: str) -> None:
    """Both halves of a 64-bit register, each as f32 by itself."""
    a, b, c = three("f32", 11, 64)
    high = [np.roll(x, 7 * i + 1) for i, x in enumerate((a, b, c))]
    whole = [h.astype(np.uint64) << np.uint64(32) | x for x, h in zip((a, b, c), high, strict=True)]
    ops = {
        "add": (2, "add.{}.f32x2 %d0, %s0, %s1;"),
        "sub": (2, "sub.{}.f32x2 %d0, %s0, %s1;"),
        "mul": (2, "mul.{}.f32x2 %d0, %s0, %s1;"),
        "fma": (3, "fma.{}.f32x2 %d0, %s0, %s1, %s2;"),
    }
    for op, (count, text) in ops.items():
        lower = elementwise(exact(op, "f32", mode), np.uint64, *(a, b, c)[:count])
        upper = elementwise(exact(op, "f32", mode), np.uint64, *high[:count])
        check(
            one(engine, text.format(mode), whole[:count], np.uint64),
            upper << np.uint64(32) | lower,
            *whole[:count],
        )


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_halves(engine: str, name: str) -> None:
    a, b = two(name, 12)
    for op in ("add", "sub", "mul"):
        check(
            one(engine, f"{op}.{name} %d0, %s0, %s1;", [a, b], np.uint16),
            elementwise(exact(op, name, "rn"), np.uint16, a, b),
            a,
            b,
        )
    a, b, c = three(name, 14)
    fma = elementwise(exact("fma", name, "rn"), np.uint16, a, b, c)
    check(one(engine, f"fma.rn.{name} %d0, %s0, %s1, %s2;", [a, b, c], np.uint16), fma, a, b, c)
    relu = elementwise(
        lambda bits: 0 if bits & 0x8000 and not decode(bits, name).nan else bits, np.uint16, fma
    )
    check(one(engine, f"fma.rn.relu.{name} %d0, %s0, %s1, %s2;", [a, b, c], np.uint16), relu, a, b, c)


def test_f16_modifiers(engine: str) -> None:
    a, b = two("f16", 15)
    for suffix, ftz, sat in ((".ftz", True, False), (".sat", False, True), (".ftz.sat", True, True)):
        for op in ("add", "sub", "mul"):
            check(
                one(engine, f"{op}{suffix}.f16 %d0, %s0, %s1;", [a, b], np.uint16),
                elementwise(exact(op, "f16", "rn", ftz, sat), np.uint16, a, b),
                a,
                b,
            )


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_packed_halves(engine: str, name: str) -> None:
    lows, highs = three(name, 16, 64), three(name, 19, 64)
    whole = [h.astype(np.uint32) << np.uint32(16) | x for x, h in zip(lows, highs, strict=True)]
    for op, count, text in (
        ("add", 2, f"add.{name}x2 %d0, %s0, %s1;"),
        ("sub", 2, f"sub.{name}x2 %d0, %s0, %s1;"),
        ("mul", 2, f"mul.{name}x2 %d0, %s0, %s1;"),
        ("fma", 3, f"fma.rn.{name}x2 %d0, %s0, %s1, %s2;"),
    ):
        lower = elementwise(exact(op, name, "rn"), np.uint32, *lows[:count])
        upper = elementwise(exact(op, name, "rn"), np.uint32, *highs[:count])
        check(one(engine, text, whole[:count], np.uint32), upper << np.uint32(16) | lower, *whole[:count])


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("mode", MODES)
def test_mixed_precision(engine: str, name: str, mode: str) -> None:
    """The halves are converted to f32, which holds them exactly; one f32 operation follows."""
    a = np.concatenate([float_bits(name, 22), float_bits(name, 23)])
    b = np.roll(a, 5)
    c = np.resize(float_bits("f32", 24), a.shape)

    def mixed(op: str, x: int, y: int, z: int, sat: bool = False) -> int:
        first, second, last = decode(x, name), decode(y, name), decode(z, "f32")
        value = {
            "add": lambda: plus(first, last, mode),
            "sub": lambda: plus(first, minus(last), mode),
            "fma": lambda: plus(times(first, second), last, mode),
        }[op]()
        bits = encode(value, "f32", mode)
        return saturated(bits, "f32") if sat else bits

    for op in ("add", "sub"):
        expected = elementwise(lambda x, z, op=op: mixed(op, x, 0, z), np.uint32, a, c)
        check(one(engine, f"{op}.{mode}.f32.{name} %d0, %s0, %s1;", [a, c], np.uint32), expected, a, c)
    expected = elementwise(lambda x, y, z: mixed("fma", x, y, z), np.uint32, a, b, c)
    text = f"fma.{mode}.f32.{name} %d0, %s0, %s1, %s2;"
    check(one(engine, text, [a, b, c], np.uint32), expected, a, b, c)
    expected = elementwise(lambda x, y, z: mixed("fma", x, y, z, sat=True), np.uint32, a, b, c)
    text = f"fma.{mode}.sat.f32.{name} %d0, %s0, %s1, %s2;"
    check(one(engine, text, [a, b, c], np.uint32), expected, a, b, c)


@pytest.mark.every(2)
@pytest.mark.parametrize("mode", MODES)
def test_f64(engine: str, mode: str) -> None:
    a, b = two("f64", 25, 64)
    for op in ("add", "sub", "mul", "div"):
        expected = elementwise(exact(op, "f64", mode), np.uint64, a, b)
        actual = one(engine, f"{op}.{mode}.f64 %d0, %s0, %s1;", [a, b], np.uint64)
        check(actual, same_f64(actual, expected), a, b)
    a, b, c = triples(*(float_bits("f64", seed, 64) for seed in (27, 28, 29)), corners=8)
    expected = elementwise(exact("fma", "f64", mode), np.uint64, a, b, c)
    actual = one(engine, f"fma.{mode}.f64 %d0, %s0, %s1, %s2;", [a, b, c], np.uint64)
    check(actual, same_f64(actual, expected), a, b, c)


def root(value: Value, name: str, mode: str) -> int:
    """The square root, correctly rounded: the encoding whose square is nearest on the right side."""
    if value.nan or (value.negative and value.number != 0):
        return SHAPES[name].nan
    if not value.finite or value.number == 0:
        return encode(value, name)
    precise = value.number * 4**1200
    digits = int(precise)
    low = math.isqrt(digits)
    sticky = 1 if low * low != precise else 0
    return encode(Value(Fraction(2 * low + sticky, 2 * 2**1200), False), name, mode)


@pytest.mark.every(2)
@pytest.mark.parametrize("mode", MODES)
def test_reciprocal_and_root(engine: str, mode: str) -> None:
    a = np.concatenate([float_bits("f32", 30), subnormal_results(31)[0]])
    one_ = decode(0x3F800000, "f32")
    reciprocal = elementwise(lambda x: encode(over(one_, decode(x, "f32")), "f32", mode), np.uint32, a)
    check(one(engine, f"rcp.{mode}.f32 %d0, %s0;", [a], np.uint32), reciprocal, a)
    roots = elementwise(lambda x: root(decode(x, "f32"), "f32", mode), np.uint32, a)
    check(one(engine, f"sqrt.{mode}.f32 %d0, %s0;", [a], np.uint32), roots, a)


@pytest.mark.parametrize("mode", MODES)
def test_reciprocal_and_root_f64(engine: str, mode: str) -> None:
    a = float_bits("f64", 32, 128)
    one_ = decode(0x3FF0000000000000, "f64")
    expected = elementwise(lambda x: encode(over(one_, decode(x, "f64")), "f64", mode), np.uint64, a)
    actual = one(engine, f"rcp.{mode}.f64 %d0, %s0;", [a], np.uint64)
    check(actual, same_f64(actual, expected), a)
    expected = elementwise(lambda x: root(decode(x, "f64"), "f64", mode), np.uint64, a)
    actual = one(engine, f"sqrt.{mode}.f64 %d0, %s0;", [a], np.uint64)
    check(actual, same_f64(actual, expected), a)


def order(bits: int, name: str) -> tuple[Any, bool]:
    """A key that sorts numbers, -0 before +0."""
    value = decode(bits, name)
    return value.number, not value.negative


def chosen(op: str, name: str, *bits: int, nan: bool = False) -> int:
    """min or max as 9.7.3.11 and 9.7.3.12 define them."""
    numbers = [b for b in bits if not decode(b, name).nan]
    if not numbers or (nan and len(numbers) < len(bits)):
        return SHAPES[name].nan
    return (min if op == "min" else max)(numbers, key=lambda b: order(b, name))


@pytest.mark.every(2)
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_extrema(engine: str, op: str, name: str) -> None:
    a, b = two(name, 33, 128)
    storage, sign = STORAGE[name], SHAPES[name].sign
    for nan in (False, True):
        suffix = ".NaN" if nan else ""
        expected = elementwise(lambda x, y, nan=nan: chosen(op, name, x, y, nan=nan), storage, a, b)
        check(one(engine, f"{op}{suffix}.{name} %d0, %s0, %s1;", [a, b], storage), expected, a, b)

        def xorsign(x: int, y: int, nan: bool = nan) -> int:
            result = chosen(op, name, x & ~sign, y & ~sign, nan=nan)
            return result if decode(result, name).nan else result | (x ^ y) & sign

        expected = elementwise(xorsign, storage, a, b)
        text = f"{op}{suffix}.xorsign.abs.{name} %d0, %s0, %s1;"
        check(one(engine, text, [a, b], storage), expected, a, b)


@pytest.mark.parametrize("op", ["min", "max"])
def test_extrema_of_three(engine: str, op: str) -> None:
    a, b, c = three("f32", 35, 64)
    sign = SHAPES["f32"].sign
    for suffix, nan, mask in (
        ("", False, 0),
        (".NaN", True, 0),
        (".abs", False, sign),
        (".NaN.abs", True, sign),
    ):

        def expect(*x: int, nan: bool = nan, mask: int = mask) -> int:
            return chosen(op, "f32", *(v & ~mask for v in x), nan=nan)

        text = f"{op}{suffix}.f32 %d0, %s0, %s1, %s2;"
        check(one(engine, text, [a, b, c], np.uint32), elementwise(expect, np.uint32, a, b, c), a, b, c)


@pytest.mark.parametrize("op", ["min", "max"])
def test_extrema_flush(engine: str, op: str) -> None:
    a, b = (np.concatenate(x) for x in zip(subnormal_results(36), two("f32", 37, 64), strict=True))

    def flushed(bits: int) -> int:
        return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits

    expected = elementwise(lambda x, y: chosen(op, "f32", flushed(x), flushed(y)), np.uint32, a, b)
    check(one(engine, f"{op}.ftz.f32 %d0, %s0, %s1;", [a, b], np.uint32), expected, a, b)


@pytest.mark.parametrize("op", ["min", "max"])
def test_extrema_f64(engine: str, op: str) -> None:
    a, b = two("f64", 38, 64)
    expected = elementwise(lambda x, y: chosen(op, "f64", x, y), np.uint64, a, b)
    actual = one(engine, f"{op}.f64 %d0, %s0, %s1;", [a, b], np.uint64)
    check(actual, same_f64(actual, expected), a, b)


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_sign_operations(engine: str, name: str) -> None:
    """NaN operands give an unspecified NaN: only that it is one is tested."""
    a = float_bits(name, 39)
    sign = SHAPES[name].sign
    storage = STORAGE[name]
    nan = elementwise(lambda x: int(decode(x, name).nan), np.uint8, a).astype(bool)
    for op, change in (("abs", lambda x: x & ~sign), ("neg", lambda x: x ^ sign)):
        actual = one(engine, f"{op}.{name} %d0, %s0;", [a], storage)
        check(actual[~nan], elementwise(change, storage, a)[~nan], a[~nan])
        assert all(decode(int(bits), name).nan for bits in actual[nan])


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_copysign_and_testp(engine: str, name: str) -> None:
    a, b = two(name, 40, 64)
    sign, storage = SHAPES[name].sign, STORAGE[name]
    expected = elementwise(lambda x, y: x & sign | y & ~sign, storage, a, b)
    check(one(engine, f"copysign.{name} %d0, %s0, %s1;", [a, b], storage), expected, a, b)
    shape = SHAPES[name]

    def kind(bits: int) -> str:
        value = decode(bits, name)
        if value.nan or not value.finite:
            return "notanumber" if value.nan else "infinite"
        return "zero" if value.number == 0 else "normal" if bits & shape.infinity else "subnormal"

    tests = {
        "finite": ("zero", "normal", "subnormal"),
        "infinite": ("infinite",),
        "number": ("zero", "normal", "subnormal", "infinite"),
        "notanumber": ("notanumber",),
        "normal": ("normal", "zero"),
        "subnormal": ("subnormal",),
    }
    text = "".join(f"testp.{test}.{name} %d{i}, %s0;\n" for i, test in enumerate(tests))
    results = apply(engine, text, [a], [np.bool_] * len(tests))
    for (test, kinds), actual in zip(tests.items(), results, strict=True):
        assert actual.tolist() == [kind(bits) in kinds for bits in a.tolist()], test


def test_a_merge_of_bits_by_a_constant_in_some_lanes(engine: str) -> None:
    """LLVM 22.1 makes one instruction of the merge, a load and the select, with its operands exchanged, where
    source and result are registers that live across blocks. So fmodf of CUDA was wrong."""
    a, b = two("f32", 41, 64)
    kept = np.uint32(0x7FFFFFFF)
    expected = np.where((b & kept) > np.uint32(0x7F800000), b, a & ~kept | b & kept)
    for merge in (
        "copysign.f32 %z, %x, %y;",
        "and.b32 %x, %x, 0x80000000; and.b32 %z, %y, 0x7fffffff; or.b32 %z, %x, %z;",
        "lop3.b32 %z, %x, %y, 0x80000000, 0xE4;",  # the third operand chooses the first or the second
    ):
        text = f""".reg .pred %p; .reg .b32 %x, %y, %z, %w; mov.b32 %x, %s0; mov.b32 %y, %s1; bra NEXT;
        NEXT: abs.f32 %w, %y; setp.nan.f32 %p, %w, %w; {merge} selp.b32 %d0, %y, %z, %p; bra LAST;
        LAST:"""
        check(one(engine, text, [a, b], np.uint32), expected, a, b)
