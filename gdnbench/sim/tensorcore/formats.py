# SPDX-License-Identifier: Apache-2.0
"""The element formats of tensor-core operands: the exact value of each code.

A code is the format's bits in the low end of an unsigned integer of `storage` type. Formats of six and four
bits have a byte per element; the caller removes the padding of shared memory first (PTX ISA, "Packing formats
used for .kind::f8f6f4": 16 elements contiguous, then padding). tf32 is the upper 19 bits of a float; the
lower 13 bits are ignored (MMA-Sim truncates there too), so a NaN whose payload is only in those bits is read
as Inf.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.unsignedinteger]


class Specials(Enum):
    """The use of a format's largest exponent."""

    IEEE = "Inf and NaN"
    NAN_ONLY = "one NaN code of each sign, the rest finite"  # OCP OFP8 E4M3
    FINITE = "all finite"  # OCP MX FP6 and FP4


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded codes. A finite value is `(-1)^negative * significand * 2^(exponent - fraction_bits)`.

    `exponent` is nominal: a subnormal has the format's smallest exponent and a significand without the
    leading one. For `nan` and `inf` it is undefined and significand is 0.
    """

    negative: NDArray[np.bool_]
    exponent: NDArray[np.int64]
    significand: NDArray[np.int64]
    nan: NDArray[np.bool_]
    inf: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format with a sign; the `ignored` low bits of the storage have no meaning."""

    name: str
    exponent_bits: int
    fraction_bits: int
    specials: Specials
    storage: np.dtype[np.unsignedinteger]
    ignored: int = 0

    def __hash__(self) -> int:
        return hash(self.name)  # products are looked up at every MMA

    @property
    def bits(self) -> int:
        """Width of a code, ignored bits included."""
        return 1 + self.exponent_bits + self.fraction_bits + self.ignored

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number and of every subnormal."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite number."""
        field = (1 << self.exponent_bits) - 1
        return field - self.bias - (1 if self.specials is Specials.IEEE else 0)

    def decode(self, codes: Codes) -> Decoded:
        """Decode codes into sign, exponent and significand."""
        code = np.asarray(codes).astype(np.int64) >> self.ignored
        top = (1 << self.exponent_bits) - 1
        fraction = code & ((1 << self.fraction_bits) - 1)
        field = (code >> self.fraction_bits) & top
        negative = ((code >> (self.fraction_bits + self.exponent_bits)) & 1).astype(np.bool_)

        nan = np.zeros(code.shape, np.bool_)
        inf = np.zeros(code.shape, np.bool_)
        if self.specials is Specials.IEEE:
            nan, inf = (field == top) & (fraction != 0), (field == top) & (fraction == 0)
        elif self.specials is Specials.NAN_ONLY:
            nan = (field == top) & (fraction == (1 << self.fraction_bits) - 1)

        leading = np.where(field == 0, 0, 1 << self.fraction_bits)
        significand = np.where(nan | inf, 0, leading + fraction)
        exponent = np.maximum(field, 1) - self.bias
        return Decoded(negative, exponent, significand, nan, inf)

    def values(self, codes: Codes) -> NDArray[np.float64]:
        """The exact values, with NaN, Inf and signed zero; every format fits in fp64."""
        parts = self.decode(codes)
        magnitude = np.ldexp(parts.significand.astype(np.float64), parts.exponent - self.fraction_bits)
        magnitude = np.where(parts.nan, np.nan, np.where(parts.inf, np.inf, magnitude))
        return np.where(parts.negative, -magnitude, magnitude)


def _format(
    name: str,
    exponent_bits: int,
    fraction_bits: int,
    specials: Specials,
    storage: type[np.unsignedinteger],
    ignored: int = 0,
) -> Format:
    return Format(name, exponent_bits, fraction_bits, specials, np.dtype(storage), ignored)


F32 = _format("f32", 8, 23, Specials.IEEE, np.uint32)
TF32 = _format("tf32", 8, 10, Specials.IEEE, np.uint32, ignored=13)
F16 = _format("f16", 5, 10, Specials.IEEE, np.uint16)
BF16 = _format("bf16", 8, 7, Specials.IEEE, np.uint16)
E5M2 = _format("e5m2", 5, 2, Specials.IEEE, np.uint8)
E4M3 = _format("e4m3", 4, 3, Specials.NAN_ONLY, np.uint8)
E3M2 = _format("e3m2", 3, 2, Specials.FINITE, np.uint8)
E2M3 = _format("e2m3", 2, 3, Specials.FINITE, np.uint8)
E2M1 = _format("e2m1", 2, 1, Specials.FINITE, np.uint8)


@dataclass(frozen=True, slots=True)
class IntegerFormat:
    """Integers of eight bits."""

    name: str
    signed: bool
    storage: np.dtype[np.unsignedinteger] = field(default_factory=lambda: np.dtype(np.uint8))
    bits: int = 8

    def __hash__(self) -> int:
        return hash(self.name)

    def values(self, codes: Codes) -> NDArray[np.int64]:
        """The numbers."""
        return (codes.view(np.int8) if self.signed else codes).astype(np.int64)


INTEGER_FORMATS = {"u8": IntegerFormat("u8", False), "s8": IntegerFormat("s8", True)}
FORMATS = {f.name: f for f in (F32, TF32, F16, BF16, E5M2, E4M3, E3M2, E2M3, E2M1)}
