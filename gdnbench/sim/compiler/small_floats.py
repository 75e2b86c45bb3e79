# SPDX-License-Identifier: Apache-2.0
"""cvt of pairs of 8-, 6- and 4-bit floats (OCP OFP8 and Microscaling formats)."""

from __future__ import annotations

from dataclasses import dataclass

from gdnbench.sim.compiler.emit import F32, I8, I16, I32, Value, const
from gdnbench.sim.compiler.formats import clamp_negative, decode, encode, is_nan, write_elements
from gdnbench.sim.compiler.translator import Translator
from gdnbench.sim.ptx.ir import Instruction, Operand


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """`exponent` and `fraction` are bits; `largest` is the code of the largest number, `nan` of NaN or None;
    `infinite` formats have Inf below their NaNs."""

    exponent: int
    fraction: int
    largest: int
    nan: int | None
    infinite: bool = False

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.fraction

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1


FORMATS = {
    "e4m3": SmallFloat(4, 3, 0x7E, 0x7F),
    "e5m2": SmallFloat(5, 2, 0x7B, 0x7F, infinite=True),
    "e2m3": SmallFloat(2, 3, 0x1F, None),
    "e3m2": SmallFloat(3, 2, 0x1F, None),
    "e2m1": SmallFloat(2, 1, 0x7, None),
}
TYPES = frozenset(f"{name}x{count}" for name in (*FORMATS, "ue8m0") for count in (2, 4))


def _encode(t: Translator, form: SmallFloat, value: Value) -> Value:
    """f32 -> code in an i32: rounds to nearest even, clamps to the largest number.

    Normal codes are the rounded upper bits of the f32 with the exponent's bias changed. Below the smallest
    normal number the CPU rounds: the value is added to a number whose last bit equals the smallest code.
    """
    code = t.code
    bits = code.bits(value, I32)
    size = code.opi("and", bits, 0x7FFF_FFFF)
    dropped = 23 - form.fraction
    odd = code.opi("and", code.opi("lshr", size, dropped), 1)
    rounded = code.op("add", code.opi("add", size, (1 << (dropped - 1)) - 1), odd)
    normal = code.opi("sub", code.opi("lshr", rounded, dropped), (127 - form.bias) << form.fraction)
    weight = 1 - form.bias - form.fraction  # log2 of the smallest number
    magic = (weight + 23 + 127) << 23
    shifted = code.op("fadd", code.bits(size, F32), code.bits(const(I32, magic), F32))
    small = code.opi("sub", code.bits(shifted, I32), magic)
    below = code.comparei("icmp ult", size, (1 - form.bias + 127) << 23)
    result = code.select(below, small, normal)
    result = code.intrinsic("umin", I32, result, const(I32, form.largest))
    # Numbers too large for `normal` to be a small integer, and Inf, are clamped first.
    ceiling = (form.largest + ((127 - form.bias) << form.fraction)) << dropped
    result = code.select(code.comparei("icmp uge", size, ceiling), const(I32, form.largest), result)
    sign = code.opi("shl", code.opi("lshr", bits, 31), form.bits - 1)
    signed = code.op("or", result, sign)
    nan = const(I32, form.largest if form.nan is None else form.nan)
    return code.select(is_nan(code, value), nan, signed)


def _decode(t: Translator, form: SmallFloat, code_bits: Value) -> Value:
    """Code in an i32 -> f32, exactly: moves the fields into place, then multiplies by the difference of the
    biases."""
    code = t.code
    magnitude = code.opi("and", code_bits, (1 << (form.bits - 1)) - 1)
    placed = code.bits(code.opi("shl", magnitude, 23 - form.fraction), F32)
    scale = code.bits(const(I32, (127 - form.bias + 127) << 23), F32)
    value = code.bits(code.op("fmul", placed, scale), I32)
    if form.infinite:
        top = ((1 << form.exponent) - 1) << form.fraction
        special = code.comparei("icmp uge", magnitude, top)
        wide = code.opi(
            "or", code.opi("shl", code.opi("sub", magnitude, top), 23 - form.fraction), 0x7F80_0000
        )
        value = code.select(special, wide, value)
    elif form.nan is not None:
        value = code.select(code.comparei("icmp eq", magnitude, form.nan), const(I32, 0x7FFF_FFFF), value)
    sign = code.opi("shl", code.opi("and", code.opi("lshr", code_bits, form.bits - 1), 1), 31)
    return code.bits(code.op("or", value, sign), F32)


def _sources(t: Translator, ins: Instruction, kind: str) -> list[Value]:
    """(lower, upper) as f32, from two f32 sources, the first being the upper one, or from a packed pair."""
    if kind == "f32":
        return [decode(t, ins, "f32", source)[0] for source in reversed(ins.sources)]
    return decode(t, ins, kind, ins.sources[0])


def _write_pair(t: Translator, dest: Operand, low: Value, high: Value, bits: int) -> None:
    """Write a pair: 4-bit codes share a byte, wider ones have a byte each."""
    code = t.code
    step = 4 if bits == 4 else 8
    both = code.op("or", low, code.opi("shl", high, step))
    t.write(dest, code.cast("trunc", both, I8 if bits == 4 else I16))


def _pack(t: Translator, ins: Instruction, form: SmallFloat, source: str) -> None:
    codes = []
    for value in _sources(t, ins, source):
        codes.append(_encode(t, form, clamp_negative(t.code, value) if ins.has("relu") else value))
    _write_pair(t, ins.dests[0], codes[0], codes[1], form.bits)


def _unpack(t: Translator, ins: Instruction, form: SmallFloat) -> None:
    """Unpacks to f16x2, which represents every value."""
    code = t.code
    step = 4 if form.bits == 4 else 8
    whole = code.resize(t.read(ins.sources[0], 2 * step), I32)
    parts = []
    for index in range(2):
        bits = code.opi("and", code.opi("lshr", whole, index * step), (1 << form.bits) - 1)
        value = _decode(t, form, bits)
        parts.append(encode(code, "f16", clamp_negative(code, value) if ins.has("relu") else value))
    write_elements(t, ins.dests[0], parts)


def _pack_scale(t: Translator, ins: Instruction, source: str) -> None:
    """ue8m0: the exponent of the magnitude, rounded toward zero or up; 255 is NaN."""
    code = t.code
    codes = []
    for value in _sources(t, ins, source):
        size = code.opi("and", code.bits(value, I32), 0x7FFF_FFFF)
        field = code.opi("lshr", size, 23)
        if ins.has("rp"):
            # Numbers above 2^-127 that are no power of two round up to the next one.
            fraction = code.opi("and", size, 0x7F_FFFF)
            least = code.select(code.comparei("icmp eq", field, 0), const(I32, 0x40_0000), const(I32, 0))
            field = code.op("add", field, code.cast("zext", code.compare("icmp ugt", fraction, least), I32))
        over = code.comparei("icmp uge", field, 255)
        field = code.select(over, const(I32, 254 if ins.has("satfinite") else 255), field)
        codes.append(code.select(is_nan(code, value), const(I32, 255), field))
    _write_pair(t, ins.dests[0], codes[0], codes[1], 8)


def _unpack_scale(t: Translator, ins: Instruction) -> None:
    code = t.code
    whole = t.read(ins.sources[0], 16)
    parts = []
    for index in range(2):
        field = code.opi("and", code.opi("lshr", whole, 8 * index), 255)
        bits = code.opi("shl", field, 7)
        bits = code.select(code.comparei("icmp eq", field, 0), const(I16, 0x40), bits)  # 2^-127 is subnormal
        parts.append(code.select(code.comparei("icmp eq", field, 255), const(I16, 0x7FFF), bits))
    write_elements(t, ins.dests[0], parts)


def convert(t: Translator, ins: Instruction) -> None:
    """`cvt` to or from a pair of small floats."""
    target, source = ins.types
    target_name = target.removesuffix("x2")
    if target == "ue8m0x2":
        _pack_scale(t, ins, source)
    elif source == "ue8m0x2":
        _unpack_scale(t, ins)
    elif target_name in FORMATS:
        _pack(t, ins, FORMATS[target_name], source)
    else:
        _unpack(t, ins, FORMATS[source.removesuffix("x2")])
