# SPDX-License-Identifier: Apache-2.0
"""Conversions (`cvt`, PTX ISA 9.7.9.21) between integers, floating-point formats and packed small floats."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from gdnbench.sim.interpreter import double, small_floats
from gdnbench.sim.interpreter.operation import Operation
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.interpreter.rounding import (
    BF16,
    F16,
    F32,
    F64,
    TF32,
    Format,
    flush,
    flush_result,
    from_bits,
    saturate,
    to_bits,
)
from gdnbench.sim.ptx.ir import Instruction

INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64))
FORMATS: dict[str, Format] = {"f32": F32, "f16": F16, "bf16": BF16}
FLOAT_MODES = ("rn", "rz", "rm", "rp")
INTEGER_MODES = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


_TF32_BITS = np.uint32(0xFFFF_E000)


def _range(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _dtype(kind: str) -> np.dtype[np.generic]:
    return np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")


def _integer_to_integer(ins: Instruction, target: str, source: str) -> Operation:
    """Chopped or extended; `.sat` clamps."""
    clamp = ins.has("sat")
    low, high = _range(target)
    lowest, highest = _range(source)
    dtype, wide = _dtype(target), _dtype(source)

    def compute(a: Array) -> Array:
        if clamp:
            a = np.clip(a, np.array(max(low, lowest), wide), np.array(min(high, highest), wide))
        return a.astype(dtype)

    return Operation((source,), (target,), compute)


def _float_to_integer(ins: Instruction, target: str, source: str) -> Operation:
    """Rounded, then clamped to the range of the target. NaN gives 0, or for 64 bits on either side the
    pattern with only the highest bit set."""
    rounding = INTEGER_MODES[ins.choice(*INTEGER_MODES)]
    ftz = ins.has("ftz")
    low, high = _range(target)
    dtype = _dtype(target)
    nan = 1 << (int(target[1:]) - 1) if source == "f64" or target in ("s64", "u64") else 0
    kind = "f64" if source == "f64" else f"u{16 if source in ('f16', 'bf16') else 32}"

    def compute(a: Array) -> Array:
        value = a if source == "f64" else from_bits(a, FORMATS[source])
        if ftz:
            value = flush(value, F32)
        value = rounding(value)
        inside = (value > low) & (value < high)  # as fp64: the bounds of 64 bits round outward
        result = np.where(inside, value, 0.0).astype(dtype)
        ends = np.where(value >= high, np.array(high, dtype), np.array(low, dtype))
        result = np.where(inside, result, ends)
        return np.where(np.isnan(value), np.array(nan, f"u{dtype.itemsize}").view(dtype), result)

    return Operation((kind,), (target,), compute)


def _to_odd(a: Array) -> F64:
    """64-bit integers as fp64 rounded to odd, so that one more rounding is right."""
    value = a.astype(np.float64)
    if a.dtype.itemsize < 8:
        return value
    size = np.where(a < 0, ~a.view(np.uint64) + np.uint64(1), a.view(np.uint64)) if a.dtype.kind == "i" else a
    # The top 53 bits and a sticky bit: drop 11 bits where the number is that long.
    drop = size >= np.uint64(1 << 53)
    kept = size >> np.uint64(11)
    sticky = (size & np.uint64(0x7FF) != 0).astype(np.uint64)
    odd = np.ldexp((kept | sticky).astype(np.float64), 11)
    return np.copysign(np.where(drop, odd, size.astype(np.float64)), value)


def _integer_to_float(ins: Instruction, target: str, source: str) -> Operation:
    mode = ins.choice(*FLOAT_MODES)
    clamp = ins.has("sat")
    if target == "f64":
        if source in ("u64", "s64"):
            return Operation((source,), ("f64",), lambda a: _long_to_double(a, mode, clamp))
        return Operation((source,), ("f64",), lambda a: _clamped(a.astype(np.float64), clamp))
    kind = "u32" if target == "f32" else "u16"
    return Operation(
        (source,),
        (kind,),
        lambda a: to_bits(_clamped(_to_odd(np.ascontiguousarray(a)), clamp), FORMATS[target], mode),
    )


def _clamped(value: F64, clamp: bool) -> F64:
    return saturate(value) if clamp else value


def _long_to_double(a: Array, mode: str, clamp: bool) -> Array:
    if mode == "rn":
        return _clamped(a.astype(np.float64), clamp)
    exact = np.array([double.nearest(Fraction(int(value)), mode, False) for value in a])
    return _clamped(exact, clamp)


# Exponent and fraction bits.
_LAYOUT = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def _with_nan(bits: Array, a: Array, source: str, target: str, *, canonical: bool) -> Array:
    """To and from f64 an H200 keeps the sign and the upper payload of a NaN, and makes it quiet. With
    `.ftz` an f32 operand becomes the canonical NaN first."""
    (_, have), (exponent, want) = _LAYOUT[source], _LAYOUT[target]
    wide = a.view(f"u{a.dtype.itemsize}").astype(np.uint64)
    sign = wide >> np.uint64(8 * a.dtype.itemsize - 1)
    payload = wide & np.uint64((1 << have) - 1)
    missing = payload.astype(np.bool_) & (
        wide >> np.uint64(have) & np.uint64((1 << _LAYOUT[source][0]) - 1)
        == np.uint64((1 << _LAYOUT[source][0]) - 1)
    )
    if canonical:
        sign, payload = np.zeros_like(sign), np.full_like(payload, (1 << have) - 1)
    moved = payload << np.uint64(want - have) if want >= have else payload >> np.uint64(have - want)
    quiet = np.uint64(((1 << exponent) - 1) << want | 1 << (want - 1))
    nan = sign << np.uint64(exponent + want) | quiet | moved
    return np.where(missing, nan.astype(bits.dtype), bits)


def _float_to_float(ins: Instruction, target: str, source: str) -> Operation:
    """To a smaller format with rounding, to a larger one exactly, to the same one with rounding to an
    integer."""
    integral = ins.choice(*INTEGER_MODES)
    mode = ins.choice(*FLOAT_MODES, default="rn")
    ftz, clamp = ins.has("ftz"), ins.has("sat")
    relu, satfinite = ins.has("relu"), ins.has("satfinite")
    read = "f64" if source == "f64" else "u32" if source == "f32" else "u16"
    put = "f64" if target == "f64" else "u32" if target == "f32" else "u16"

    def compute(a: Array) -> Array:
        value = a if source == "f64" else from_bits(a, FORMATS[source])
        if ftz and source == "f32" and target != "f16":
            # Into f16 an H200 keeps subnormal operands in spite of `.ftz`.
            value = flush(value, F32)
        if integral:
            value = np.copysign(INTEGER_MODES[integral](value), value)
        if clamp:
            value = saturate(value)
        if relu:
            value = np.where(value <= 0, 0.0, value)
        if target == "f64":
            result = value.view(np.uint64)
            return _with_nan(result, a, source, target, canonical=ftz).view(np.float64)
        format_ = FORMATS[target]
        if ftz and target == "f32":
            value = flush_result(value, F32, mode)
        bits = to_bits(value, format_, mode)
        if satfinite:
            bits = finite(bits, format_)
        if source == "f64":
            return _with_nan(bits, a, source, target, canonical=False)
        if (source, target) == ("bf16", "f32") and not (ftz or clamp):
            return a.astype(np.uint32) << np.uint32(16)  # the bits move up, those of NaN too
        return bits

    return Operation((read,), (put,), compute)


def finite(bits: Array, target: Format) -> Array:
    """`.satfinite`: Inf becomes the largest number of its sign; NaN is the canonical NaN already."""
    value = from_bits(bits, target)
    clipped = np.clip(value, -target.largest, target.largest)
    return to_bits(clipped, target)


def _packed_halves(ins: Instruction) -> Operation:
    """Two f32 into one f16x2 or bf16x2: the first source goes to the upper half."""
    target = FORMATS[ins.types[0][:-2]]
    mode = ins.choice("rn", "rz")
    relu, satfinite = ins.has("relu"), ins.has("satfinite")

    def one(a: Array) -> Array:
        value = from_bits(a, F32)
        if relu:
            value = np.where(value <= 0, 0.0, value)
        bits = to_bits(value, target, mode)
        return finite(bits, target) if satfinite else bits

    return Operation(("u32", "u32"), ("u16x2",), lambda a, b: np.stack([one(b), one(a)], axis=-1))


def _to_tf32(ins: Instruction) -> Operation:
    """The low 13 bits of the result are zero."""
    mode = ins.choice("rna", "rn", "rz")
    relu, satfinite = ins.has("relu"), ins.has("satfinite")
    if mode == "rna":
        return _away_from_zero(satfinite)

    def compute(a: Array) -> Array:
        value = from_bits(a, F32)
        if relu:
            value = np.where(value <= 0, 0.0, value)
        bits = to_bits(value, TF32, mode) & _TF32_BITS
        return finite(bits, TF32) & _TF32_BITS if satfinite else bits

    return Operation(("u32",), ("u32",), compute)


def _away_from_zero(satfinite: bool) -> Operation:
    """`.rna` on the bits: half a unit is added unless the exponent is that of Inf and NaN, and the low bits
    are cut. `.satfinite` steps back by one unit from that exponent. So an H200 does, NaN included."""
    infinity = np.uint32(0x7F80_0000)
    unit = np.uint32(1 << 13)

    def compute(a: Array) -> Array:
        magnitude = a & np.uint32(0x7FFF_FFFF)
        half = np.where(magnitude < infinity, unit // np.uint32(2), np.uint32(0))
        rounded = (magnitude + half) & _TF32_BITS
        if satfinite:
            rounded = np.where(rounded >= infinity, rounded - unit, rounded)
        return rounded | a & np.uint32(0x8000_0000)

    return Operation(("u32",), ("u32",), compute)


def convert(ins: Instruction) -> Operation:
    """`cvt` by the kinds of its two types."""
    target, source = ins.types
    if {target, source} & small_floats.TYPES:
        return small_floats.convert(ins)
    if target in ("f16x2", "bf16x2") and source == "f32":
        return _packed_halves(ins)
    if (target, source) == ("tf32", "f32"):
        return _to_tf32(ins)
    floats = (*FORMATS, "f64")
    builders: dict[tuple[bool, bool], Callable[[Instruction, str, str], Operation]] = {
        (False, False): _integer_to_integer,
        (False, True): _float_to_integer,
        (True, False): _integer_to_float,
        (True, True): _float_to_float,
    }
    return builders[target in floats, source in floats](ins, target, source)


OPERATIONS: dict[str, Callable[[Instruction], Operation]] = {"cvt": convert}
