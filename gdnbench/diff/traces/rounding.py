# SPDX-License-Identifier: Apache-2.0
"""How far two values may be apart by rounding alone.

The standard model has fl(x op y) = (x op y)(1 + d), |d| <= u, half an ULP of the format. Two versions that
compute the same in other ways are thus apart by half an ULP for every operation in either, of the format
that it rounds to, at the largest value of those operations in that lane, for a sum may cancel. What the bad
version rounds to a less precise format more often than the good one does is the difference that is looked
for: it counts as an operation in the good one's most precise format.

What is read from memory, or is a product of the tensor core, has up to K = 128 terms in a row. If each factor
differs by D of the largest, so do K terms by 2 D each, which add up to sqrt(K) times as much where they are
independent: 2 sqrt(128) = 22.6, rounded up to a power of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gdnbench.sim.ptx import FLOATS

Floats = npt.NDArray[np.float64]

SUM_GROWTH = 32
"""By how much a sum of products may differ more than its factors do, and than its format rounds."""

TINY = float(np.finfo(np.float64).tiny)
"""In place of a bound of 0, to divide by."""

# Bits of the significand, exponent of the smallest normal number.
_PRECISION = {"f64": (53, -1022), "f32": (24, -126), "f16": (11, -14), "bf16": (8, -126)}


def is_float(kind: str) -> bool:
    """Whether a register of this format holds floating-point numbers."""
    return kind in FLOATS


def element(kind: str) -> str:
    """The format of one number in a register: f16 of f16x2."""
    return kind.partition("x")[0]


def decoded(row: npt.NDArray[np.uint64], kind: str) -> Floats:
    """A register's 32 lanes as float64[32, numbers in the register], low one first; `kind` is a float's."""
    name, _, count = kind.partition("x")
    numbers = int(count or 1)
    dtype = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16}[name]
    found: npt.NDArray[Any] = np.ascontiguousarray(row).view(dtype).reshape(len(row), -1)[:, :numbers]
    if name == "bf16":
        found = (found.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray(found).astype(np.float64)


def precision(kind: str) -> int:
    """Bits of the significand."""
    return _PRECISION[element(kind)][0]


def ulp(values: Floats, kind: str) -> Floats:
    """One unit in the last place at each of these values."""
    bits, least = _PRECISION[element(kind)]
    finite = np.where(np.isfinite(values), np.abs(values), 0.0)
    exponent = np.maximum(np.frexp(finite)[1] - 1, least)
    exponent = np.where(finite == 0, least, exponent)
    found: Floats = np.ldexp(1.0, exponent - bits + 1)
    return found


def rounded_apart(scale: Floats, good: Sequence[str], bad: Sequence[str]) -> Floats:
    """The bound for a value that operations which round to these formats made, `scale` being the largest of
    the good version's."""
    allowed = Counter(map(element, good))
    finest = max(allowed, key=precision)
    roundings = Counter(allowed)
    for kind, count in Counter(map(element, bad)).items():
        within = min(count, allowed[kind])
        roundings[kind] += within
        roundings[finest] += count - within
    bound = np.zeros_like(scale)
    for kind, count in roundings.items():
        bound = bound + count / 2 * ulp(scale, kind)
    return bound


@dataclass(frozen=True, slots=True)
class Excess:
    """Where two rows differ most of what is explained: lane, number in the register, both values, the
    difference and its bound."""

    lane: int
    part: int
    good: float
    bad: float
    bound: float

    @property
    def difference(self) -> float:
        return abs(self.good - self.bad)


def excess(good: Floats, bad: Floats, bound: Floats, lanes: npt.NDArray[np.bool_]) -> Excess | None:
    """The worst lane whose values are further apart than `bound`; None if there is none. Equal infinities and
    two NaNs are no difference, one of them alone is an infinite one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(good - bad)
        same = (good == bad) | (np.isnan(good) & np.isnan(bad))
        apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
        over = np.where(lanes[:, None] & (apart > bound), apart / np.maximum(bound, TINY), 0.0)
    if not over.any():
        return None
    lane, part = np.unravel_index(int(over.argmax()), over.shape)
    where = (int(lane), int(part))
    return Excess(*where, float(good[where]), float(bad[where]), float(bound[where]))
