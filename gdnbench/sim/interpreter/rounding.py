# SPDX-License-Identifier: Apache-2.0
"""Binary floating point done exactly: sums and products in fp64 with a sticky bit, then one rounding.

A sum of two doubles is rounded to odd: if it is inexact its last bit is set. Rounding that to a format of
at most 51 bits, in any direction, gives what rounding the exact sum would have given (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd"). Products of two
f32, f16 or bf16 are exact in fp64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gdnbench.sim.interpreter.registers import Array

F64 = npt.NDArray[np.float64]
_NO_MINIMUM = -1000


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format: `precision` counts the leading one, `minimum` is the smallest exponent of a normal
    number. `nan` is the pattern of a result that is no number (PTX ISA: 0x7FFFFFFF for f32, 0x7FFF for the
    halves)."""

    name: str
    precision: int
    minimum: int
    largest: float
    nan: int

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0**self.minimum


F32 = Format("f32", 24, -126, float(np.finfo(np.float32).max), 0x7FFF_FFFF)
F16 = Format("f16", 11, -14, 65504.0, 0x7FFF)
BF16 = Format("bf16", 8, -126, 2.0**128 - 2.0**120, 0x7FFF)
TF32 = Format("tf32", 11, -126, 2.0**128 - 2.0**117, 0x7FFF_FFFF)


def add_to_odd(a: F64, b: F64) -> F64:
    """a + b rounded to odd. Neither the sum nor its error may leave the range of fp64, as for terms from
    f32."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)
    inexact = (error != 0) & np.isfinite(total)
    if not inexact.any():
        return total
    bits = total.view(np.int64)
    toward = np.where(np.signbit(error) == np.signbit(total), 1, -1)
    odd: F64 = np.where(inexact & (bits & 1 == 0), bits + toward, bits).view(np.float64)
    return odd


def _integral(value: F64, mode: str) -> F64:
    """Round to integers."""
    if mode == "rn":
        return np.rint(value)
    if mode == "rz":
        return np.trunc(value)
    if mode == "rm":
        return np.floor(value)
    if mode == "rp":
        return np.ceil(value)
    assert mode == "rna"
    return np.copysign(np.floor(np.abs(value) + 0.5), value)


def round_to(value: F64, target: Format, mode: str) -> F64:
    """`value` rounded to a number of `target`, still as fp64. Overflow goes to Inf, or to the largest
    number where the direction forbids Inf; Inf and NaN stay."""
    _, exponent = np.frexp(value)
    quantum = np.maximum(exponent - 1, target.minimum) - (target.precision - 1)
    rounded = np.ldexp(_integral(np.ldexp(value, -quantum), mode), quantum)
    over = np.abs(rounded) > target.largest
    if over.any():
        inward = {"rz": over, "rm": over & (rounded > 0), "rp": over & (rounded < 0)}.get(mode, over & False)
        rounded = np.where(over, np.copysign(np.inf, rounded), rounded)
        rounded = np.where(inward & np.isfinite(value), np.copysign(target.largest, rounded), rounded)
    return np.where(np.isfinite(value), np.copysign(rounded, value), value)


def to_bits(value: F64, target: Format, mode: str = "rn") -> Array:
    """`value` rounded to `target` as bits: uint32 for f32 and tf32, uint16 for f16 and bf16."""
    if mode != "rn" or target in (BF16, TF32):
        value = round_to(value, target, mode)
    bits: Array
    if target is F16:
        bits = value.astype(np.float16).view(np.uint16)
    else:
        bits = value.astype(np.float32).view(np.uint32)
        if target is BF16:
            bits = (bits >> np.uint32(16)).astype(np.uint16)
    nan = np.isnan(value)
    if nan.any():
        bits = np.where(nan, bits.dtype.type(target.nan), bits)
    return bits


def from_bits(bits: Array, source: Format) -> F64:
    """The exact values of bit patterns."""
    if source is F16:
        return bits.view(np.float16).astype(np.float64)
    if source is BF16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return bits.view(np.float32).astype(np.float64)


def flush(value: F64, target: Format) -> F64:
    """Subnormal numbers of `target` become zeros of their sign."""
    return np.where(np.abs(value) < target.tiny, np.copysign(0.0, value), value)


def flush_result(value: F64, target: Format, mode: str) -> F64:
    """The exact result of an operation with `.ftz`: zero if it is still subnormal when it is rounded as
    though exponents had no lower end. (Tininess after rounding, as IEEE 754 7.5 calls it; measured on an
    H200.)"""
    tiny = np.abs(value) < target.tiny
    if not tiny.any():
        return value
    unbounded = round_to(value, replace(target, minimum=_NO_MINIMUM), mode)
    return np.where(np.abs(unbounded) < target.tiny, np.copysign(0.0, value), value)


def saturate(value: F64) -> F64:
    """Clamp to [0, 1]; NaN and -0 become +0."""
    return np.where(value > 0, np.minimum(value, 1.0), 0.0)
