# SPDX-License-Identifier: Apache-2.0
"""Operand values: every corner of a format crossed with itself, then random bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def integers(dtype: Any, seed: int, count: int = 256) -> Array:
    """Corner values and random ones, short and long."""
    kind = np.dtype(dtype)
    bits = 8 * kind.itemsize
    info = np.iinfo(kind)
    corners = [
        0,
        1,
        2,
        3,
        info.max,
        info.max - 1,
        info.min,
        info.min + 1,
        1 << (bits // 2),
        (1 << (bits // 2)) - 1,
    ]
    if info.min < 0:
        corners += [-1, -2]
    random = np.random.default_rng(seed)
    whole = random.integers(info.min, info.max, count, dtype=kind, endpoint=True)
    short = whole >> random.integers(0, bits, count).astype(kind)
    return np.concatenate([np.array(corners, kind), whole, short])


def pairs(a: Array, b: Array, corners: int = 12) -> tuple[Array, Array]:
    """The first `corners` of each crossed, then both side by side."""
    crossed = np.array(list(itertools.product(a[:corners].tolist(), b[:corners].tolist())), dtype=object)
    left = np.concatenate([crossed[:, 0].astype(a.dtype), a])
    right = np.concatenate([crossed[:, 1].astype(b.dtype), b])
    return left, right


def triples(a: Array, b: Array, c: Array, corners: int = 8) -> tuple[Array, Array, Array]:
    """As `pairs`, for three."""
    rows = list(itertools.product(*(x[:corners].tolist() for x in (a, b, c))))
    crossed = np.array(rows, dtype=object)
    out = [np.concatenate([crossed[:, i].astype(x.dtype), x]) for i, x in enumerate((a, b, c))]
    return out[0], out[1], out[2]


# Zero, one, Inf, the largest number, subnormals, NaN with and without the quiet bit: both signs of each.
_CORNERS = {
    "f32": [0, 0x3F800000, 0x7F800000, 0x7F7FFFFF, 1, 0x007FFFFF, 0x00800000, 0x7FC00001, 0x7F800001,
    0x3F800001], "f64": [
        0, 0x3FF0000000000000, 0x7FF0000000000000, 0x7FEFFFFFFFFFFFFF, 1, 0x000FFFFFFFFFFFFF,
        0x0010000000000000, 0x7FF8000000000001, 0x7FF0000000000001, 0x3FF0000000000001,
    ],
    "f16": [0, 0x3C00, 0x7C00, 0x7BFF, 1, 0x03FF, 0x0400, 0x7E01, 0x7C01, 0x3C01],
    "bf16": [0, 0x3F80, 0x7F80, 0x7F7F, 1, 0x007F, 0x0080, 0x7FC1, 0x7F81, 0x3F81],
}  # fmt: skip
_STORAGE = {"f32": np.uint32, "f64": np.uint64, "f16": np.uint16, "bf16": np.uint16}
CORNERS = 20


def float_bits(name: str, seed: int, count: int = 512) -> Array:
    """Bit patterns: `CORNERS` corners, random patterns, and numbers near one so that sums cancel and
    round."""
    dtype = np.dtype(_STORAGE[name])
    bits = 8 * dtype.itemsize
    corners = [value | sign << (bits - 1) for sign in (0, 1) for value in _CORNERS[name]]
    random = np.random.default_rng(seed)
    patterns = random.integers(0, np.iinfo(dtype).max, count, dtype=dtype, endpoint=True)
    exponent_bits = {"f32": 23, "f64": 52, "f16": 10, "bf16": 7}[name]
    one = _CORNERS[name][1] >> exponent_bits
    exponents = (one + random.integers(-4, 5, count)).astype(dtype)
    near = (
        random.integers(0, 2, count).astype(dtype) << dtype.type(bits - 1)
        | exponents << dtype.type(exponent_bits)
        | random.integers(0, 1 << exponent_bits, count).astype(dtype)
    )
    return np.concatenate([np.array(corners, dtype), patterns, near])
