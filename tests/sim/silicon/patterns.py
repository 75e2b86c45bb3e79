# SPDX-License-Identifier: Apache-2.0
"""Inputs that reach every class of a format, made by integer arithmetic alone: the same bits everywhere.

Names: `specials` are hand-picked bit patterns, `spread` draws over all exponents, `near` draws second
operands whose exponents are close to the first's (where rounding and cancellation happen), `ties` sit at and
beside the half-way points of narrower formats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]


def random_words(seed: int, count: int) -> U64:
    """SplitMix64 (Steele, Lea, Flood 2014) of `seed` and a counter."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed * 0x1000003)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_u32(seed: int, count: int) -> U32:
    return (random_words(seed, count) >> np.uint64(32)).astype(np.uint32)


def random_u16(seed: int, count: int) -> U16:
    return (random_words(seed, count) >> np.uint64(48)).astype(np.uint16)


def below(seed: int, count: int, limit: int) -> npt.NDArray[np.int64]:
    """Numbers in [0, limit)."""
    return ((random_words(seed, count) >> np.uint64(33)) % np.uint64(limit)).astype(np.int64)


ALL_16 = np.arange(1 << 16, dtype=np.uint16)

# Zeros, subnormals, the normal edge, one and its neighbours, integers' limits, infinities, NaN payloads.
_F32_SPECIALS = """
    00000000 80000000 00000001 80000001 00400000 007fffff 807fffff 00800000
    80800000 00800001 00ffffff 01000000 3f800000 bf800000 3f7fffff 3f800001
    bf800001 3f000000 bf000000 3f000001 3effffff 3fc00000 40000000 40200000
    c0200000 40490fdb 4b000000 4b7fffff 4b800000 cb000001 4effffff 4f000000
    cf000000 4f7fffff 4f800000 5f000000 7f7fffff ff7fffff 7f000000 7e800000
    7f800000 ff800000 7fc00000 ffc00000 7fc12345 7f800001 ff812345 7fffffff
    477fe000 477ff000 33000000 33000001 387fc000 38800000 7f7f8000 7f7f7fff
    42c80000 0d800000 43dc0000 43e80000 43e7ffff 47600000 47700000 3a800000
    00fffffe 3f000002
"""
F32_SPECIALS = np.array([int(word, 16) for word in _F32_SPECIALS.split()], dtype=np.uint32)


def f32_spread(seed: int, count: int) -> U32:
    """Every sign and exponent alike often; mantissas random, or with few ones, or with few zeros."""
    words = random_words(seed, count)
    exponent = (np.arange(count, dtype=np.uint64) % np.uint64(512)) << np.uint64(23)
    mantissa = words & np.uint64(0x7FFFFF)
    shift = (words >> np.uint64(40)) % np.uint64(23)
    few_ones = mantissa >> shift << shift
    few_zeros = mantissa | ((np.uint64(1) << shift) - np.uint64(1))
    kind = (words >> np.uint64(60)) % np.uint64(4)
    picked = np.where(kind == 0, few_ones, np.where(kind == 1, few_zeros, mantissa))
    return (exponent | picked).astype(np.uint32)


def f32_near(base: U32, seed: int, reach: int) -> U32:
    """Operands whose exponents differ from `base`'s by at most `reach`, random sign and mantissa."""
    words = random_words(seed, base.size)
    exponent = ((base >> 23) & 0xFF).astype(np.int64) + below(seed + 1, base.size, 2 * reach + 1) - reach
    exponent = np.clip(exponent, 0, 254).astype(np.uint32) << np.uint32(23)
    return (words & np.uint64(0x807FFFFF)).astype(np.uint32) | exponent


def f32_ties() -> U32:
    """Exactly half-way, and one bit to either side, for every number of mantissa bits that one may keep."""
    cuts = np.arange(1, 24, dtype=np.uint32)[:, None, None]  # low bits dropped
    exponents = np.array(
        [100, 110, 113, 116, 118, 120, 124, 126, 127, 128, 131, 134, 135, 138, 142, 150, 158]
    )
    half = np.uint32(1) << (cuts - 1)
    odd = np.where(cuts < 23, np.uint32(1) << (cuts % 32), 0).astype(np.uint32)
    body = np.stack([half, half - 1, half + 1, half | odd, (half | odd) - 1, (half | odd) + 1], axis=0)
    values = (body & np.uint32(0x7FFFFF)) | (exponents.astype(np.uint32) << np.uint32(23))[
        None, None, :, None
    ]
    return np.concatenate([values.ravel(), values.ravel() | np.uint32(0x80000000)])


def fill_up(count: int, *parts: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """The parts one after another, cut or repeated to `count` elements."""
    return np.resize(np.concatenate(parts), count)


def f32_one(seed: int, count: int) -> U32:
    ties = f32_ties()
    rest = max(count - F32_SPECIALS.size - ties.size, count // 2)
    room = count - F32_SPECIALS.size - rest
    picked = ties[:: -(-ties.size // room)] if room < ties.size else ties
    return fill_up(count, F32_SPECIALS, picked, f32_spread(seed, rest + room)).astype(np.uint32)


def f32_two(seed: int, count: int) -> tuple[U32, U32]:
    """Special x special, then spread with near, far, and product-near-the-subnormals partners."""
    a, b = (grid.ravel() for grid in np.meshgrid(F32_SPECIALS, F32_SPECIALS))
    keep = below(seed + 9, a.size, 100) < 50 if count < 2 * a.size else np.ones(a.size, bool)
    a, b = a[keep], b[keep]
    rest = count - a.size
    x = f32_spread(seed, rest)
    kind = np.arange(rest) % 4
    y_near, y_close = f32_near(x, seed + 2, 26), f32_near(x, seed + 3, 1)
    # Exponents that add to about the bottom, or to about the top, of the range.
    target = np.where(below(seed + 4, rest, 2) == 0, 127 - 140, 127 + 128)
    exponent = target - (((x >> 23) & 0xFF).astype(np.int64) - 127) + below(seed + 5, rest, 25) - 12
    y_edge = (random_u32(seed + 6, rest) & 0x807FFFFF) | (
        np.clip(exponent, 0, 254).astype(np.uint32) << np.uint32(23)
    )
    y = np.select([kind == 0, kind == 1, kind == 2], [y_near, y_close, y_edge], f32_spread(seed + 7, rest))
    return np.concatenate([a, x]).astype(np.uint32), np.concatenate([b, y]).astype(np.uint32)


def f32_three(seed: int, count: int) -> tuple[U32, U32, U32]:
    """`f32_two` with an addend near the product's exponent, special, or anything."""
    a, b = f32_two(seed, count)
    words = random_words(seed + 20, count)
    product = (
        ((a >> 23) & 0xFF).astype(np.int64) + ((b >> 23) & 0xFF) - 127 + below(seed + 21, count, 61) - 30
    )
    near = (words & np.uint64(0x807FFFFF)).astype(np.uint32) | (
        np.clip(product, 0, 254).astype(np.uint32) << np.uint32(23)
    )
    special = F32_SPECIALS[below(seed + 22, count, F32_SPECIALS.size)]
    # The negated rounded product: what is left is the rounding error, the hard case of a fused operation.
    with np.errstate(all="ignore"):
        cancel = (-(a.view(np.float32) * b.view(np.float32))).view(np.uint32)
    kind = np.arange(count) % 4
    order = random_words(seed + 23, count).argsort()
    c = np.select([kind == 0, kind == 1, kind == 2], [near, special, cancel], random_u32(seed + 24, count))
    return a[order], b[order], c[order]


_F16_SPECIALS = """
    0000 8000 0001 8001 0200 03ff 83ff 0400 8400 0401 3bff 3c00 3c01 bc00 3800 3e00
    4000 4248 6400 7800 7bff fbff 7c00 fc00 7e00 fe00 7e01 7c01 fd55 7fff ffff 1400
"""
F16_SPECIALS = np.array([int(word, 16) for word in _F16_SPECIALS.split()], dtype=np.uint16)
_BF16_SPECIALS = """
    0000 8000 0001 8001 0040 007f 807f 0080 8080 0081 3f7f 3f80 3f81 bf80 3f00 3fc0
    4000 4049 4300 7f00 7f7f ff7f 7f80 ff80 7fc0 ffc0 7fc1 7f81 ff95 7fff ffff 1f80
"""
BF16_SPECIALS = np.array([int(word, 16) for word in _BF16_SPECIALS.split()], dtype=np.uint16)


def half_two(seed: int, count: int, fraction: int) -> tuple[U16, U16]:
    """Pairs of a 16-bit format with `fraction` mantissa bits: special x special, near exponents, random."""
    specials = F16_SPECIALS if fraction == 10 else BF16_SPECIALS
    top = (0x7FFF >> fraction) - 1
    a, b = (grid.ravel() for grid in np.meshgrid(specials, specials))
    rest = count - a.size
    x = random_u16(seed, rest)
    exponent = ((x & 0x7FFF) >> fraction).astype(np.int64)
    near = exponent + below(seed + 1, rest, 2 * fraction + 5) - fraction - 2
    edge = (
        np.where(below(seed + 2, rest, 2) == 0, 1, top) + (top // 2) - exponent + below(seed + 3, rest, 9) - 4
    )
    picked = np.where(np.arange(rest) % 2 == 0, near, edge)
    y = random_u16(seed + 4, rest)
    close = (y & np.uint16(0x8000 | ((1 << fraction) - 1))) | (
        np.clip(picked, 0, top).astype(np.uint16) << np.uint16(fraction)
    )
    y = np.where(np.arange(rest) % 3 == 0, y, close)
    return np.concatenate([a, x]), np.concatenate([b, y]).astype(np.uint16)


def half_three(seed: int, count: int, fraction: int) -> tuple[U16, U16, U16]:
    specials = F16_SPECIALS if fraction == 10 else BF16_SPECIALS
    a, b = half_two(seed, count, fraction)
    top, bias = (0x7FFF >> fraction) - 1, (0x7FFF >> fraction) // 2
    exponent = ((a & 0x7FFF) >> fraction).astype(np.int64) + ((b & 0x7FFF) >> fraction) - bias
    exponent += below(seed + 11, count, 4 * fraction + 5) - 2 * fraction - 2
    c = random_u16(seed + 12, count)
    near = (c & np.uint16(0x8000 | ((1 << fraction) - 1))) | (
        np.clip(exponent, 0, top).astype(np.uint16) << np.uint16(fraction)
    )
    special = specials[below(seed + 13, count, specials.size)]
    kind = np.arange(count) % 4
    order = random_words(seed + 14, count).argsort()
    return a[order], b[order], np.select([kind == 0, kind == 1], [special, c], near)[order].astype(np.uint16)


def pack_halves(low: U16, high: U16) -> U32:
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


_INT_EDGES = """
    00000000 00000001 00000002 00000003 00000005 00000007 0000001f 00000020
    00000021 0000003f 00000040 0000007f 00000080 000000ff 00000100 00007fff
    00008000 0000ffff 00010000 00ffffff 01000000 01000001 7fffffff 80000000
    80000001 ffff8000 ffffff80 fffffffe ffffffff 55555555 aaaaaaaa 12345678
"""
INT_EDGES = np.array([int(word, 16) for word in _INT_EDGES.split()], dtype=np.uint64)


def u32_spread(seed: int, count: int) -> U32:
    """Edges, then numbers of every bit length, half of them negated."""
    words = random_words(seed, count)
    length = (words & np.uint64(31)).astype(np.uint32)
    value = (words >> np.uint64(32)).astype(np.uint32) >> length
    value = np.where(words & np.uint64(32), (~value) + np.uint32(1), value).astype(np.uint32)
    edges = INT_EDGES.astype(np.uint32)
    value[: edges.size] = edges
    return value


def u64_spread(seed: int, count: int) -> U64:
    words, lengths = random_words(seed, count), random_words(seed + 1, count)
    value = words >> (lengths & np.uint64(63))
    with np.errstate(over="ignore"):
        value = np.where(lengths & np.uint64(64), (~value) + np.uint64(1), value)
    value[: INT_EDGES.size] = INT_EDGES
    value[INT_EDGES.size : 2 * INT_EDGES.size] = INT_EDGES << np.uint64(32)
    return value


def shuffled(values: npt.NDArray[np.generic], seed: int) -> npt.NDArray[np.generic]:
    return values[random_words(seed, values.size).argsort(kind="stable")]


def f64_spread(seed: int, count: int) -> U64:
    """fp64 values: near fp32's range and its half-way points, integers' limits, anything at all."""
    words = random_words(seed, count)
    single = f32_one(seed + 1, count).view(np.float32)
    with np.errstate(invalid="ignore"):
        near = single.astype(np.float64).view(np.uint64) ^ (
            words & np.uint64(0x3FFFFFFF) & -(words >> np.uint64(63))
        )
    return np.where(np.arange(count) % 4 == 3, words, near)
