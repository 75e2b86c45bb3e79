# SPDX-License-Identifier: Apache-2.0
"""cvt: between integers, floating-point formats and packed small floats (PTX ISA, "cvt")."""

from __future__ import annotations

from gdnbench.sim.compiler import small_floats
from gdnbench.sim.compiler.emit import F32, F64, I32, I64, Value, bits_of, const, lanes_of
from gdnbench.sim.compiler.formats import (
    MODES,
    clamp_negative,
    decode,
    encode,
    flush32,
    flush_exact,
    narrow,
    rounded,
    saturate,
    write_elements,
)
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.ptx.ir import Instruction

INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64))
_INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def limits(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _integer_to_integer(t: Translator, ins: Instruction, target: str, source: str) -> None:
    code = t.code
    value = t.read(ins.sources[0], int(source[1:]))
    if ins.has("sat"):
        (low, high), (least, most) = limits(target), limits(source)
        sign = source[0]
        if high < most:
            value = code.intrinsic(f"{sign}min", value.type, value, const(value.type, high))
        if low > least:
            value = code.intrinsic(f"{sign}max", value.type, value, const(value.type, low))
    result = code.resize(value, lanes_of(f"i{target[1:]}"), signed=source[0] == "s")
    t.write(ins.dests[0], result, signed=target[0] == "s")


def _float_to_integer(t: Translator, ins: Instruction, target: str, source: str) -> None:
    """Rounds and clamps. NaN gives 0, or only the highest bit if either side has 64 bits."""
    code = t.code
    value = decode(t, ins, source, ins.sources[0], ftz=ins.has("ftz"))[0]
    integral = code.intrinsic(_INTEGRAL[ins.choice(*_INTEGRAL)], value.type, value)
    kind = lanes_of(f"i{target[1:]}")
    name = "fptosi.sat" if target[0] == "s" else "fptoui.sat"
    suffix = f"v32i{target[1:]}.v32{'f64' if value.type == F64 else 'f32'}"
    result = code.intrinsic(name, kind, integral, suffix=suffix)
    if source == "f64" or target in ("s64", "u64"):
        top = const(kind, 1 << (int(target[1:]) - 1))
        result = code.select(code.compare("fcmp uno", value, value), top, result)
    t.write(ins.dests[0], result, signed=target[0] == "s")


def _integer_to_float(t: Translator, ins: Instruction, target: str, source: str) -> None:
    mode = ins.choice(*MODES)
    code = t.code
    signed = source[0] == "s"
    bits = max(int(source[1:]), 32)
    whole = code.resize(t.read(ins.sources[0], int(source[1:])), lanes_of(f"i{bits}"), signed=signed)
    opcode = "sitofp" if signed else "uitofp"
    way = mode if target in ("f32", "f64") else "odd"
    kind = "f64" if target == "f64" else "f32"
    if way == "rn":
        value = code.cast(opcode, whole, F64 if kind == "f64" else F32)
    else:
        helper = rounded(code.library, opcode, way, kind, 1, f"i{bits}")
        value = code.call(helper, F64 if kind == "f64" else F32, whole)
    if ins.has("sat"):
        value = saturate(code, value)
    if target == "f64":
        t.write(ins.dests[0], code.bits(value, lanes_of("i64")))
    else:
        t.write(ins.dests[0], encode(code, target, value, mode))


def _float_to_float(t: Translator, ins: Instruction, target: str, source: str) -> None:
    """Rounds to a smaller format, extends to a larger one exactly, rounds to an integer in the same one."""
    code = t.code
    integral = ins.choice(*_INTEGRAL)
    mode = ins.choice(*MODES, default="rn")
    # An H200 keeps subnormal operands of a conversion to f16 despite `.ftz`.
    flushed = ins.has("ftz") and source == "f32" and target != "f16"
    value = decode(t, ins, source, ins.sources[0], ftz=flushed)[0]
    if integral:
        value = code.intrinsic(_INTEGRAL[integral], value.type, value)
    if ins.has("sat"):
        value = saturate(code, value)
    if ins.has("relu"):
        value = clamp_negative(code, value)
    if target == "f64":
        bits = code.bits(code.cast("fpext", value, F64), I64)
        t.write(ins.dests[0], _keep_nan(t, ins, bits, canonical=ins.has("ftz")))
        return
    if source == "f64":
        if ins.has("ftz"):
            value = flush_exact(code, "f32", value, mode)
        value = narrow(code, value, mode if target == "f32" else "odd")
        mode = mode if target != "f32" else "rn"
    elif ins.has("ftz") and target == "f32":
        value = flush32(code, value)
    bits = encode(code, target, value, mode)
    if ins.has("satfinite"):
        bits = finite(t, target, bits)
    if source == "f64":
        bits = _keep_nan(t, ins, bits, canonical=False)
    if (source, target) == ("bf16", "f32") and not ins.has("ftz", "sat"):
        # The bits move up, a NaN's too.
        bits = code.opi("shl", code.cast("zext", t.read(ins.sources[0], 16), I32), 16)
    t.write(ins.dests[0], bits)


# Exponent and fraction bits.
_LAYOUT = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def _keep_nan(t: Translator, ins: Instruction, bits: Value, *, canonical: bool) -> Value:
    """To and from f64 an H200 keeps the sign and the upper payload of a NaN and makes it quiet. With `.ftz`
    an f32 NaN becomes canonical first."""
    code = t.code
    (exponent_a, have), (exponent, want) = _LAYOUT[ins.types[1]], _LAYOUT[ins.types[0]]
    size = 1 + exponent_a + have
    wide = t.read(ins.sources[0], size)
    infinity = ((1 << exponent_a) - 1) << have
    missing = code.comparei("icmp ugt", code.opi("and", wide, (1 << (size - 1)) - 1), infinity)
    quiet = ((1 << exponent) - 1) << want | 1 << (want - 1)
    long = code.resize(wide, I64)
    if canonical:
        nan = const(I64, quiet | ((1 << have) - 1) << (want - have))
    else:
        payload = code.opi("and", long, (1 << have) - 1)
        moved = code.opi("shl" if want >= have else "lshr", payload, abs(want - have))
        sign = code.opi("shl", code.opi("lshr", long, size - 1), exponent + want)
        nan = code.opi("or", code.op("or", moved, sign), quiet)
    return code.select(missing, code.resize(nan, bits.type), bits)


def finite(t: Translator, name: str, bits: Value) -> Value:
    """`.satfinite`: Inf becomes the largest number of its sign."""
    code = t.code
    infinity = {"f16": 0x7C00, "bf16": 0x7F80, "tf32": 0x7F80_0000}[name]
    unit = 0x2000 if name == "tf32" else 1  # the weight of the last bit
    top = 1 << (bits_of(bits.type) - 1)
    over = code.comparei("icmp eq", code.opi("and", bits, top - 1), infinity)
    return code.select(over, code.opi("sub", bits, unit), bits)


def _packed(t: Translator, ins: Instruction, name: str) -> None:
    """Packs two f32 into a pair of halves; the first source is the upper one."""
    mode = ins.choice("rn", "rz")
    code = t.code
    parts = []
    for source in reversed(ins.sources):
        value = decode(t, ins, "f32", source)[0]
        if ins.has("relu"):
            value = clamp_negative(code, value)
        bits = encode(code, name, value, mode)
        parts.append(finite(t, name, bits) if ins.has("satfinite") else bits)
    write_elements(t, ins.dests[0], parts)


def _to_tf32(t: Translator, ins: Instruction) -> None:
    """The low 13 bits of the result are zero, also in a NaN."""
    mode = ins.choice("rna", "rn", "rz")
    code = t.code
    if mode == "rna":
        t.write(ins.dests[0], _away_from_zero(t, ins))
        return
    value = decode(t, ins, "f32", ins.sources[0])[0]
    if ins.has("relu"):
        value = clamp_negative(code, value)
    bits = code.opi("and", encode(code, "tf32", value, mode), 0xFFFF_E000)
    t.write(ins.dests[0], finite(t, "tf32", bits) if ins.has("satfinite") else bits)


def _away_from_zero(t: Translator, ins: Instruction) -> Value:
    """`.rna` on the bits: adds half a unit below the exponent of Inf and NaN, then clears the low bits;
    `.satfinite` steps back one unit from that exponent. An H200 does the same, also for NaN."""
    code = t.code
    bits = t.read(ins.sources[0], 32)
    size = code.opi("and", bits, 0x7FFF_FFFF)
    number = code.comparei("icmp ult", size, 0x7F80_0000)
    size = code.opi("and", code.select(number, code.opi("add", size, 0x1000), size), 0xFFFF_E000)
    if ins.has("satfinite"):
        over = code.comparei("icmp uge", size, 0x7F80_0000)
        size = code.select(over, code.opi("sub", size, 0x2000), size)
    return code.op("or", size, code.opi("and", bits, 0x8000_0000))


def convert(t: Translator, ins: Instruction) -> None:
    """`cvt` by the kinds of its two types."""
    target, source = ins.types
    if {target, source} & small_floats.TYPES:
        small_floats.convert(t, ins)
    elif target in ("f16x2", "bf16x2") and source == "f32":
        _packed(t, ins, target.removesuffix("x2"))
    elif (target, source) == ("tf32", "f32"):
        _to_tf32(t, ins)
    elif target in INTEGERS:
        (_integer_to_integer if source in INTEGERS else _float_to_integer)(t, ins, target, source)
    else:
        (_integer_to_float if source in INTEGERS else _float_to_float)(t, ins, target, source)


TABLE: dict[str, Translate] = {"cvt": convert}
