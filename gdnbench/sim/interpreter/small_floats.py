# SPDX-License-Identifier: Apache-2.0
"""Pairs of 8-, 6- and 4-bit floats: e4m3, e5m2 (OCP OFP8), e2m3, e3m2, e2m1, ue8m0 (OCP Microscaling), as
`cvt` packs and unpacks them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gdnbench.sim.interpreter.operation import Operation
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.interpreter.rounding import BF16, F16, F32, F64, Format, from_bits, round_to, to_bits
from gdnbench.sim.ptx.ir import Instruction


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """A sign, `exponent_bits`, `fraction_bits`. `has_inf` formats spend their top exponent as IEEE does;
    `nan` is the pattern of NaN, None if there is none."""

    exponent_bits: int
    fraction_bits: int
    largest: float
    nan: int | None
    has_inf: bool = False

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    def encode(self, value: F64) -> Array:
        """Rounded to nearest even and clamped to the largest number; NaN is NaN, or the positive
        largest number where there is none (PTX ISA 9.7.9.21, `.satfinite`)."""
        target = Format("", self.fraction_bits + 1, 1 - self.bias, self.largest, 0)
        size = np.abs(np.where(np.isnan(value), self.largest, round_to(value, target, "rn")))
        size = np.minimum(size, self.largest)
        _, exponent = np.frexp(size)
        normal = size >= 2.0 ** (1 - self.bias)
        field = np.where(normal, exponent - 1 + self.bias, 0).astype(np.int64)
        unit = np.maximum(exponent - 1, 1 - self.bias) - self.fraction_bits
        significand = np.ldexp(size, -unit).astype(np.int64)
        code = (field << self.fraction_bits) | (significand & ((1 << self.fraction_bits) - 1))
        code |= np.signbit(value).astype(np.int64) << (self.bits - 1)
        # Without a NaN of its own, NaN becomes the largest number, whose code is all ones.
        nan = (1 << (self.bits - 1)) - 1 if self.nan is None else self.nan
        return np.where(np.isnan(value), nan, code).astype(np.uint8)

    def decode(self, code: Array) -> F64:
        """The exact value of each code."""
        wide = code.astype(np.int64)
        fraction = wide & ((1 << self.fraction_bits) - 1)
        field = (wide >> self.fraction_bits) & ((1 << self.exponent_bits) - 1)
        significand = fraction + np.where(field > 0, 1 << self.fraction_bits, 0)
        value = np.ldexp(
            significand.astype(np.float64), np.maximum(field, 1) - self.bias - self.fraction_bits
        )
        magnitude = wide & ((1 << (self.bits - 1)) - 1)
        if self.has_inf:
            top = field == (1 << self.exponent_bits) - 1
            value = np.where(top, np.where(fraction == 0, np.inf, np.nan), value)
        elif self.nan is not None:
            value = np.where(magnitude == self.nan, np.nan, value)
        signed: F64 = np.where(wide >> (self.bits - 1) & 1, -value, value)
        return signed


FORMATS = {
    "e4m3": SmallFloat(4, 3, 448.0, 0x7F),
    "e5m2": SmallFloat(5, 2, 57344.0, 0x7F, has_inf=True),
    "e2m3": SmallFloat(2, 3, 7.5, None),
    "e3m2": SmallFloat(3, 2, 28.0, None),
    "e2m1": SmallFloat(2, 1, 6.0, None),
}
TYPES = frozenset(f"{name}x{count}" for name in (*FORMATS, "ue8m0") for count in (2, 4))
_HALVES = {"f16x2": F16, "bf16x2": BF16}


def _join(high: Array, low: Array, bits: int) -> Array:
    """Two codes in one register: 4-bit codes share a byte, wider ones have a byte each."""
    step = 4 if bits == 4 else 8
    return (high.astype(np.uint16) << np.uint16(step)) | low


def _clamp_negative(value: F64) -> F64:
    return np.where(value <= 0, 0.0, value)


def _pack(ins: Instruction, target: str, source: str) -> Operation:
    """To a pair, from two f32 (the first is the upper one) or from a packed pair of halves."""
    relu = ins.has("relu")
    format_ = FORMATS[target]
    put = "u8" if format_.bits == 4 else "u16"

    def encode(value: F64) -> Array:
        return format_.encode(_clamp_negative(value) if relu else value)

    if source == "f32":
        return Operation(
            ("u32", "u32"),
            (put,),
            lambda a, b: _join(encode(from_bits(a, F32)), encode(from_bits(b, F32)), format_.bits),
        )
    half = _HALVES[source]
    return Operation(
        ("u16x2",),
        (put,),
        lambda a: _join(
            encode(from_bits(np.ascontiguousarray(a[..., 1]), half)),
            encode(from_bits(np.ascontiguousarray(a[..., 0]), half)),
            format_.bits,
        ),
    )


def _unpack(ins: Instruction, source: str) -> Operation:
    """From a pair to f16x2, which holds every value exactly."""
    relu = ins.has("relu")
    format_ = FORMATS[source]
    read, step = ("u8", 4) if format_.bits == 4 else ("u16", 8)
    mask = (1 << format_.bits) - 1

    def compute(a: Array) -> Array:
        wide = a.astype(np.int64)
        values = [format_.decode(wide & mask), format_.decode(wide >> step & mask)]
        return np.stack([to_bits(_clamp_negative(v) if relu else v, F16) for v in values], axis=-1)

    return Operation((read,), ("u16x2",), compute)


def _encode_scale(value: F64, mode: str, satfinite: bool) -> Array:
    """ue8m0: a power of two, its exponent biased by 127; 0xFF is NaN. The sign is dropped."""
    size = np.abs(value)
    mantissa, exponent = np.frexp(size)
    power = exponent - 1 + ((mantissa > 0.5) if mode == "rp" else 0)
    code = np.clip(np.where(size == 0, -127, power) + 127, 0, 255)
    over = np.isinf(size) | (code == 255)
    code = np.where(over, 254 if satfinite else 255, code)
    return np.where(np.isnan(value), 255, code).astype(np.uint8)


def _pack_scale(ins: Instruction, source: str) -> Operation:
    mode = ins.choice("rz", "rp")
    satfinite = ins.has("satfinite")

    def encode(bits: Array, format_: Format) -> Array:
        return _encode_scale(from_bits(np.ascontiguousarray(bits), format_), mode, satfinite)

    if source == "f32":
        return Operation(("u32", "u32"), ("u16",), lambda a, b: _join(encode(a, F32), encode(b, F32), 8))
    return Operation(
        ("u16x2",), ("u16",), lambda a: _join(encode(a[..., 1], BF16), encode(a[..., 0], BF16), 8)
    )


def _unpack_scale() -> Operation:
    def decode(code: Array) -> Array:
        power = np.ldexp(1.0, code.astype(np.int64) - 127)
        return to_bits(np.where(code == 255, np.nan, power), BF16)

    return Operation(
        ("u16",),
        ("u16x2",),
        lambda a: np.stack([decode(a & np.uint16(255)), decode(a >> np.uint16(8))], axis=-1),
    )


def convert(ins: Instruction) -> Operation:
    """`cvt` to or from a pair of small floats."""
    target, source = ins.types
    if target == "ue8m0x2":
        return _pack_scale(ins, source)
    if source == "ue8m0x2":
        return _unpack_scale()
    if target.endswith("x2") and target[:-2] in FORMATS:
        return _pack(ins, target[:-2], source)
    return _unpack(ins, source[:-2])
