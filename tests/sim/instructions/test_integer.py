# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic against Python integers, by the definitions of PTX ISA 9.7.1 and 9.7.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.sim.instructions.exact import elementwise
from tests.sim.instructions.one_instruction import apply, check, one
from tests.sim.instructions.operands import integers, pairs, triples

Array = npt.NDArray[Any]

SCALARS = ["u16", "u32", "u64", "s16", "s32", "s64"]


def dtype(name: str) -> np.dtype[Any]:
    return np.dtype(f"{'i' if name[0] == 's' else 'u'}{int(name[1:]) // 8}")


def wrap(value: int, name: str) -> int:
    """The low bits of `value` as a number of the type."""
    bits = int(name[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if name[0] == "s" and value >> (bits - 1) else value


def clamp(value: int, name: str) -> int:
    bits = int(name[1:])
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, value))


def two(name: str, seed: int) -> tuple[Array, Array]:
    return pairs(integers(dtype(name), seed), integers(dtype(name), seed + 1))


def three(name: str, seed: int) -> tuple[Array, Array, Array]:
    kind = dtype(name)
    return triples(*(integers(kind, seed + i) for i in range(3)))


def expect(
    engine: str, text: str, function: Callable[..., int], sources: tuple[Array, ...], result: str
) -> None:
    expected = elementwise(function, dtype(result), *sources)
    check(one(engine, text, sources, dtype(result)), expected, *sources)


def trunc_div(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
}


@pytest.mark.every(3)
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("name", SCALARS)
def test_binary(engine: str, op: str, name: str) -> None:
    expect(
        engine, f"{op}.{name} %d0, %s0, %s1;", lambda a, b: wrap(BINARY[op](a, b), name), two(name, 1), name
    )


@pytest.mark.parametrize("name", SCALARS)
def test_mul_hi(engine: str, name: str) -> None:
    bits = int(name[1:])
    expect(
        engine, f"mul.hi.{name} %d0, %s0, %s1;", lambda a, b: wrap(a * b >> bits, name), two(name, 2), name
    )


@pytest.mark.parametrize("name", ["u16", "s16", "u32", "s32"])
def test_wide(engine: str, name: str) -> None:
    wide = f"{name[0]}{2 * int(name[1:])}"
    a, b = two(name, 3)
    c = np.resize(integers(dtype(wide), 4), a.shape)
    expect(engine, f"mul.wide.{name} %d0, %s0, %s1;", lambda x, y: wrap(x * y, wide), (a, b), wide)
    expect(
        engine, f"mad.wide.{name} %d0, %s0, %s1, %s2;", lambda x, y, z: wrap(x * y + z, wide), (a, b, c), wide
    )


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("part", ["lo", "hi"])
def test_mad(engine: str, name: str, part: str) -> None:
    shift = int(name[1:]) if part == "hi" else 0
    expect(
        engine,
        f"mad.{part}.{name} %d0, %s0, %s1, %s2;",
        lambda a, b, c: wrap((a * b >> shift) + c, name),
        three(name, 5),
        name,
    )


def test_saturation(engine: str) -> None:
    expect(engine, "add.sat.s32 %d0, %s0, %s1;", lambda a, b: clamp(a + b, "s32"), two("s32", 6), "s32")
    expect(engine, "sub.sat.s32 %d0, %s0, %s1;", lambda a, b: clamp(a - b, "s32"), two("s32", 7), "s32")
    expect(
        engine,
        "mad.hi.sat.s32 %d0, %s0, %s1, %s2;",
        lambda a, b, c: clamp((a * b >> 32) + c, "s32"),
        three("s32", 8),
        "s32",
    )


def low24(value: int, name: str) -> int:
    value &= 0xFFFFFF
    return value - (1 << 24) if name == "s32" and value >> 23 else value


@pytest.mark.parametrize("name", ["u32", "s32"])
@pytest.mark.parametrize(("part", "shift"), [("lo", 0), ("hi", 16)])
def test_24_bits(engine: str, name: str, part: str, shift: int) -> None:
    def product(a: int, b: int) -> int:
        return wrap(low24(a, name) * low24(b, name) >> shift, name)

    expect(engine, f"mul24.{part}.{name} %d0, %s0, %s1;", product, two(name, 9), name)
    expect(
        engine,
        f"mad24.{part}.{name} %d0, %s0, %s1, %s2;",
        lambda a, b, c: wrap(product(a, b) + c, name),
        three(name, 10),
        name,
    )


@pytest.mark.parametrize("name", SCALARS)
def test_sad(engine: str, name: str) -> None:
    expect(
        engine,
        f"sad.{name} %d0, %s0, %s1, %s2;",
        lambda a, b, c: wrap(c + abs(a - b), name),
        three(name, 11),
        name,
    )


@pytest.mark.parametrize("name", SCALARS)
def test_div_rem(engine: str, name: str) -> None:
    a, b = two(name, 12)
    a, b = a[b != 0], b[b != 0]  # division by zero is unspecified
    expect(engine, f"div.{name} %d0, %s0, %s1;", lambda x, y: wrap(trunc_div(x, y), name), (a, b), name)
    expect(
        engine, f"rem.{name} %d0, %s0, %s1;", lambda x, y: wrap(x - y * trunc_div(x, y), name), (a, b), name
    )


@pytest.mark.parametrize("name", ["s16", "s32", "s64"])
def test_sign(engine: str, name: str) -> None:
    a = integers(dtype(name), 13)
    expect(engine, f"abs.{name} %d0, %s0;", lambda x: wrap(abs(x), name), (a,), name)
    expect(engine, f"neg.{name} %d0, %s0;", lambda x: wrap(-x, name), (a,), name)


@pytest.mark.parametrize("op", ["min", "max"])
def test_relu(engine: str, op: str) -> None:
    choose = min if op == "min" else max
    expect(engine, f"{op}.relu.s32 %d0, %s0, %s1;", lambda a, b: max(0, choose(a, b)), two("s32", 14), "s32")


def halves(value: int, signed: bool) -> tuple[int, int]:
    name = "s16" if signed else "u16"
    return wrap(value, name), wrap(value >> 16, name)


@pytest.mark.parametrize("name", ["u16x2", "s16x2"])
@pytest.mark.parametrize("op", ["add", "min", "max"])
def test_packed(engine: str, op: str, name: str) -> None:
    def both(a: int, b: int) -> int:
        low, high = (
            BINARY[op](x, y) & 0xFFFF
            for x, y in zip(halves(a, name[0] == "s"), halves(b, name[0] == "s"), strict=True)
        )
        return high << 16 | low

    expect(engine, f"{op}.{name} %d0, %s0, %s1;", both, two("u32", 15), "u32")


@pytest.mark.parametrize("width", [32, 64])
def test_counts(engine: str, width: int) -> None:
    a = integers(dtype(f"u{width}"), 16)
    expect(engine, f"popc.b{width} %d0, %s0;", lambda x: x.bit_count(), (a,), "u32")
    expect(engine, f"clz.b{width} %d0, %s0;", lambda x: width - x.bit_length(), (a,), "u32")
    expect(engine, f"brev.b{width} %d0, %s0;", lambda x: int(f"{x:0{width}b}"[::-1], 2), (a,), f"u{width}")


@pytest.mark.parametrize("name", ["u32", "s32", "u64", "s64"])
def test_bfind(engine: str, name: str) -> None:
    msb = int(name[1:]) - 1

    def find(a: int) -> int:
        return (~a if a < 0 else a).bit_length() - 1

    a = integers(dtype(name), 17)
    expect(engine, f"bfind.{name} %d0, %s0;", lambda x: find(x) & 0xFFFFFFFF, (a,), "u32")
    expect(
        engine,
        f"bfind.shiftamt.{name} %d0, %s0;",
        lambda x: 0xFFFFFFFF if find(x) < 0 else msb - find(x),
        (a,),
        "u32",
    )


def test_fns(engine: str) -> None:
    random = np.random.default_rng(18)
    mask = integers(np.uint32, 18)
    base = random.integers(0, 32, mask.size).astype(np.uint32)
    offset = random.integers(-8, 9, mask.size).astype(np.int32)

    def find(m: int, start: int, n: int) -> int:
        if n == 0:
            return start if m >> start & 1 else 0xFFFFFFFF
        position, left = start, abs(n) - 1
        while 0 <= position < 32:
            if m >> position & 1:
                if left == 0:
                    return position
                left -= 1
            position += 1 if n > 0 else -1
        return 0xFFFFFFFF

    expect(engine, "fns.b32 %d0, %s0, %s1, %s2;", find, (mask, base, offset), "u32")


def positions(like: Array, seed: int) -> Array:
    """Bit positions and lengths: small, around the width, and with bits above the low eight."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 70, like.size)
    return np.where(random.random(like.size) < 0.1, random.integers(0, 1 << 32, like.size), small).astype(
        np.uint32
    )


@pytest.mark.parametrize("name", ["u32", "s32", "u64", "s64"])
def test_bfe(engine: str, name: str) -> None:
    msb = int(name[1:]) - 1

    def extract(a: int, b: int, c: int) -> int:
        a &= (1 << (msb + 1)) - 1
        pos, length = b & 0xFF, c & 0xFF
        sbit = 0 if name[0] == "u" or length == 0 else a >> min(pos + length - 1, msb) & 1
        bits = [a >> (pos + i) & 1 if i < length and pos + i <= msb else sbit for i in range(msb + 1)]
        return wrap(sum(bit << i for i, bit in enumerate(bits)), name)

    a = np.resize(integers(dtype(name), 19), 2000)
    expect(engine, f"bfe.{name} %d0, %s0, %s1, %s2;", extract, (a, positions(a, 20), positions(a, 21)), name)


@pytest.mark.parametrize("width", [32, 64])
def test_bfi(engine: str, width: int) -> None:
    def insert(a: int, b: int, c: int, d: int) -> int:
        pos, length = c & 0xFF, d & 0xFF
        for i in range(length):
            if pos + i < width:
                b = b & ~(1 << (pos + i)) | (a >> i & 1) << (pos + i)
        return b

    a, b = (np.resize(integers(dtype(f"u{width}"), seed), 2000) for seed in (22, 23))
    sources = (a, b, positions(a, 24), positions(a, 25))
    expect(engine, f"bfi.b{width} %d0, %s0, %s1, %s2, %s3;", insert, sources, f"u{width}")


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@pytest.mark.parametrize("name", ["u32", "s32"])
def test_szext(engine: str, mode: str, name: str) -> None:
    def extend(a: int, b: int) -> int:
        if b >= 32 and mode == "clamp":
            return a
        return 0 if b & 31 == 0 else wrap(a, f"{name[0]}{b & 31}")

    a = np.resize(integers(dtype(name), 26), 1000)
    expect(engine, f"szext.{mode}.{name} %d0, %s0, %s1;", extend, (a, positions(a, 27)), name)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bmsk(engine: str, mode: str) -> None:
    def mask(a: int, b: int) -> int:
        if mode == "wrap":
            a, b = a & 31, b & 31
        return sum(1 << i for i in range(a, a + b) if i < 32) if a < 32 else 0

    a = positions(np.zeros(1000), 28)
    b = np.minimum(positions(a, 29), 32).astype(np.uint32)  # wider is outside the documented range
    expect(engine, f"bmsk.{mode}.b32 %d0, %s0, %s1;", mask, (a, b), "u32")


def small(value: int, count: int, bits: int, signed: bool) -> list[int]:
    name = f"{'s' if signed else 'u'}{bits}"
    return [wrap(value >> (i * bits), name) for i in range(count)]


@pytest.mark.parametrize("a_type", ["u32", "s32"])
@pytest.mark.parametrize("b_type", ["u32", "s32"])
def test_dot_products(engine: str, a_type: str, b_type: str) -> None:
    result = "s32" if "s32" in (a_type, b_type) else "u32"
    a, b, _ = three("u32", 30)
    c = np.resize(integers(dtype(result), 31), a.shape)
    a_signed, b_signed = a_type == "s32", b_type == "s32"

    def dp4a(x: int, y: int, z: int) -> int:
        products = zip(small(x, 4, 8, a_signed), small(y, 4, 8, b_signed), strict=True)
        return wrap(z + sum(p * q for p, q in products), result)

    def dp2a(start: int) -> Callable[[int, int, int], int]:
        def compute(x: int, y: int, z: int) -> int:
            bytes_ = small(y, 4, 8, b_signed)[start : start + 2]
            return wrap(
                z + sum(p * q for p, q in zip(small(x, 2, 16, a_signed), bytes_, strict=True)), result
            )

        return compute

    expect(engine, f"dp4a.{a_type}.{b_type} %d0, %s0, %s1, %s2;", dp4a, (a, b, c), result)
    expect(engine, f"dp2a.lo.{a_type}.{b_type} %d0, %s0, %s1, %s2;", dp2a(0), (a, b, c), result)
    expect(engine, f"dp2a.hi.{a_type}.{b_type} %d0, %s0, %s1, %s2;", dp2a(2), (a, b, c), result)


@pytest.mark.parametrize("name", ["u32", "u64"])
@pytest.mark.parametrize("op", ["add", "sub"])
def test_two_words_with_carry(engine: str, op: str, name: str) -> None:
    """(b:a) op (d:c) in twice the width."""
    a, b = two(name, 32)
    c, d = two(name, 34)
    c, d = np.resize(c[::-1], a.shape), np.resize(d[::-1], a.shape)
    low, high = apply(
        engine,
        f"{op}.cc.{name} %d0, %s0, %s2; {op}c.{name} %d1, %s1, %s3;",
        [a, b, c, d],
        [dtype(name), dtype(name)],
    )
    bits = int(name[1:])

    def whole(w: int, x: int, y: int, z: int) -> int:
        return BINARY[op](x << bits | w, z << bits | y)

    check(low, elementwise(lambda *v: wrap(whole(*v), name), dtype(name), a, b, c, d), a, b, c, d)
    check(high, elementwise(lambda *v: wrap(whole(*v) >> bits, name), dtype(name), a, b, c, d), a, b, c, d)


def test_product_of_two_words_with_carry(engine: str) -> None:
    """The low 96 bits of a 32-bit number times a 64-bit one, plus a 96-bit one."""
    a, b, c = three("u32", 36)
    text = """mad.lo.cc.u32 %d0, %s0, %s1, %s2;
    madc.hi.u32 %d1, %s0, %s1, %s2;"""
    low, high = apply(engine, text, [a, b, c], [np.uint32, np.uint32])
    total = elementwise(lambda x, y, z: x * y + (z << 32 | z), object, a, b, c)
    check(low, (total & 0xFFFFFFFF).astype(np.uint32), a, b, c)
    check(high, (total >> 32 & 0xFFFFFFFF).astype(np.uint32), a, b, c)


def test_sums_and_differences_share_the_carry(engine: str) -> None:
    """What an H100 gave: a difference that does not borrow sets the flag, so that a sum adds 1 then, and a
    difference after a sum without a carry subtracts 1."""
    a = np.array([5, 3, 0, 0, 0xFFFFFFFF, 1], np.uint32)
    b = np.array([3, 5, 0, 1, 1, 0xFFFFFFFF], np.uint32)
    for text, given in {
        "sub.cc.u32 %d0, %s0, %s1; addc.u32 %d0, 0, 0;": [1, 0, 1, 0, 1, 0],
        "sub.cc.u32 %d0, %s0, %s1; subc.u32 %d0, 0, 0;": [0, -1, 0, -1, 0, -1],
        "add.cc.u32 %d0, %s0, %s1; addc.u32 %d0, 0, 0;": [0, 0, 0, 0, 1, 1],
        "add.cc.u32 %d0, %s0, %s1; subc.u32 %d0, 0, 0;": [-1, -1, -1, -1, 0, 0],
        "sub.cc.u32 %d0, %s0, %s1; subc.cc.u32 %d0, 0, 0; addc.u32 %d0, 0, 0;": [1, 0, 1, 0, 1, 0],
        "mad.lo.cc.u32 %d0, %s0, 1, %s1; subc.u32 %d0, 0, 0;": [-1, -1, -1, -1, 0, 0],
        "sub.cc.u32 %d0, %s0, %s1; madc.lo.u32 %d0, %s0, 0, 0;": [1, 0, 1, 0, 1, 0],
    }.items():
        check(one(engine, text, [a, b], np.uint32), np.array(given, np.int32).view(np.uint32), a, b)
