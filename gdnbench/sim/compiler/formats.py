# SPDX-License-Identifier: Apache-2.0
"""Floating-point formats in LLVM: converts register bits to f32 or f64 vectors, and back with one rounding.

Halves are computed in f32. If rounding the f32 result a second time could give a wrong half, the operation
first rounds to odd: if the downward and upward results differ, it takes the odd one, which records that the
exact value is between them (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums").
"""

from __future__ import annotations

from gdnbench.sim.compiler.emit import (
    F32,
    F64,
    I1,
    I16,
    I32,
    I64,
    Code,
    Library,
    Value,
    bits_of,
    const,
    f64_const,
    lanes_of,
)
from gdnbench.sim.compiler.translator import Translator
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.ir import Instruction, Operand, Register

HALF = lanes_of("half")
FLOATS = ("f32", "f32x2", "f64", "f16", "f16x2", "bf16", "bf16x2")
NAN32, NAN16 = 0x7FFFFFFF, 0x7FFF
NAN64 = 0xFFF8_0000_0000_0000
MODES = ("rn", "rz", "rm", "rp")
# llvm.set.rounding's numbers (LLVM Language Reference).
_ROUNDING = {"rz": 0, "rn": 1, "rp": 2, "rm": 3}


def element(kind: str) -> str:
    """The element format of a type: bf16x2 -> bf16."""
    return kind.removesuffix("x2")


def decode(t: Translator, ins: Instruction, kind: str, operand: Operand, *, ftz: bool = False) -> list[Value]:
    """The elements of a source operand, lower first, as f32 (f64 for f64)."""
    code = t.code
    if kind == "f64":
        return [code.bits(t.read(operand, 64), F64)]
    name = element(kind)
    size = 32 if name == "f32" else 16
    count = 2 if kind.endswith("x2") else 1
    whole = t.read(operand, size * count)
    parts = t.split(whole, count) if count > 1 else [whole]
    values = [to_f32(code, name, part) for part in parts]
    return [flush(code, name, value) for value in values] if ftz else values


def to_f32(code: Code, name: str, bits: Value) -> Value:
    """The exact value of a bit pattern as f32."""
    if name == "f32":
        return code.bits(bits, F32)
    if name == "bf16":
        return code.bits(code.opi("shl", code.cast("zext", bits, I32), 16), F32)
    return code.cast("fpext", code.bits(bits, HALF), F32)


def flush32(code: Code, value: Value) -> Value:
    """Subnormal f32 become zeros of their sign."""
    bits = code.bits(value, I32)
    tiny = code.comparei("icmp eq", code.opi("and", bits, 0x7F80_0000), 0)
    return code.bits(code.select(tiny, code.opi("and", bits, 0x8000_0000), bits), F32)


def flush(code: Code, name: str, value: Value) -> Value:
    """`flush32` for the subnormals of another format, whose value is in f32."""
    if name != "f16":
        return flush32(code, value)
    bits = code.bits(value, I32)
    smallest = 0x3880_0000  # 2^-14
    tiny = code.comparei("icmp ult", code.opi("and", bits, 0x7FFF_FFFF), smallest)
    return code.bits(code.select(tiny, code.opi("and", bits, 0x8000_0000), bits), F32)


def is_nan(code: Code, value: Value) -> Value:
    return code.compare("fcmp uno", value, value)


def canonical(code: Code, value: Value) -> Value:
    """The bits of f32 or f64 with every NaN canonical. The selection is on integers, because LLVM may replace
    one floating-point NaN by another."""
    kind, nan = (I64, NAN64) if value.type == F64 else (I32, NAN32)
    return code.select(is_nan(code, value), const(kind, nan), code.bits(value, kind))


def saturate(code: Code, value: Value) -> Value:
    """Clamp to [0, 1]; NaN and -0 become +0."""
    double = value.type == F64
    one = Value(value.type, "splat (double 1.0)" if double else "splat (float 1.0)")
    zero = Value(value.type, "zeroinitializer")
    above = code.select(code.compare("fcmp ogt", value, one), one, value)
    return code.select(code.compare("fcmp ogt", value, zero), above, zero)


def clamp_negative(code: Code, value: Value) -> Value:
    """`.relu`: values not above zero become +0; NaN stays."""
    negative = code.compare("fcmp ole", value, Value(value.type, "zeroinitializer"))
    return code.select(negative, Value(value.type, "zeroinitializer"), value)


def encode(code: Code, name: str, value: Value, mode: str = "rn") -> Value:
    """An f32 value as bits of f32, tf32, f16 or bf16, rounded once, with canonical NaN."""
    if name == "f32":
        return canonical(code, value)
    if name == "f16":
        bits = _to_f16(code, value, mode)
        return code.select(is_nan(code, value), const(I16, NAN16), bits)
    dropped = {"bf16": 16, "tf32": 13}[name]
    bits = _drop(code, code.bits(value, I32), dropped, mode)
    bits = code.select(is_nan(code, value), const(I32, NAN32), bits)
    if name == "tf32":
        return bits
    return code.cast("trunc", code.opi("lshr", bits, 16), I16)


def _drop(code: Code, bits: Value, count: int, mode: str) -> Value:
    """Round away the `count` low bits of an f32; a carry increments the exponent, up to Inf."""
    ones = (1 << count) - 1
    if mode == "rn":
        odd = code.opi("and", code.opi("lshr", bits, count), 1)
        bits = code.op("add", code.opi("add", bits, ones >> 1), odd)
    elif mode == "rna":
        bits = code.opi("add", bits, 1 << (count - 1))
    elif mode in ("rm", "rp"):
        sign = code.opi("ashr", bits, 31)
        away = sign if mode == "rm" else code.not_(sign)
        bits = code.op("add", bits, code.opi("and", away, ones))
    return code.opi("and", bits, ~ones)


def _to_f16(code: Code, value: Value, mode: str) -> Value:
    """The CPU rounds to nearest; other directions step to the neighbour if nearest was the wrong one."""
    near = code.cast("fptrunc", value, HALF)
    bits = code.bits(near, I16)
    return directed(code, bits, code.cast("fpext", near, F32), value, mode)


def directed(code: Code, bits: Value, back: Value, value: Value, mode: str) -> Value:
    """`bits`, whose value is `back`, moved to its neighbour if it is on the wrong side of `value` for
    `mode`."""
    if mode == "rn":
        return bits
    inward, outward = code.opi("add", bits, -1), code.opi("add", bits, 1)
    negative = code.comparei("icmp slt", bits, 0)
    above, below = code.compare("fcmp ogt", back, value), code.compare("fcmp olt", back, value)
    down = code.select(negative, outward, inward)
    up = code.select(negative, inward, outward)
    if mode == "rm":
        return code.select(above, down, bits)
    if mode == "rp":
        return code.select(below, up, bits)
    too_far = code.select(negative, below, above)
    return code.select(too_far, inward, bits)


def narrow(code: Code, value: Value, mode: str) -> Value:
    """f64 -> f32 in any direction, or to odd."""
    near = code.cast("fptrunc", value, F32)
    back = code.cast("fpext", near, F64)
    bits = code.bits(near, I32)
    if mode != "odd":
        return code.bits(directed(code, bits, back, value, mode), F32)
    truncated = directed(code, bits, back, value, "rz")
    inexact = code.compare("fcmp one", back, value)
    return code.bits(code.op("or", truncated, code.cast("zext", inexact, I32)), F32)


def rounded(
    library: Library, operation: str, mode: str, kind: str, sources: int, source_kind: str = ""
) -> str:
    """The helper for one IEEE operation in a rounding direction, or to `odd`. It changes the CPU's rounding
    mode, so it is a separate function across which LLVM moves no arithmetic."""
    name = f"{operation}_{mode}_{kind}{'_' + source_kind if source_kind else ''}"
    library.helper(
        name, lambda name, library: _rounded(name, library, operation, mode, kind, sources, source_kind)
    )
    return name


def _rounded(
    name: str, library: Library, operation: str, mode: str, kind: str, sources: int, source: str
) -> str:
    vector = F64 if kind == "f64" else F32
    taken = lanes_of(source) if source else vector
    code = Code(library)
    code.start_block("entry")
    arguments = [Value(taken, f"%a{i}") for i in range(sources)]

    def once(direction: str) -> Value:
        code.declare("@llvm.set.rounding", "void", "i32")
        code.line(f"call void @llvm.set.rounding(i32 {_ROUNDING[direction]}) #1")
        suffix = f"v32{kind}" + (f".v32{source}" if source else "")
        full = f"@llvm.experimental.constrained.{operation}.{suffix}"
        code.library.declarations.setdefault(
            full, f"declare {vector} {full}({', '.join(a.type for a in arguments)}, metadata, metadata)"
        )
        listed = ", ".join(map(str, arguments))
        return code.value(
            vector,
            f'call {vector} {full}({listed}, metadata !"round.dynamic", metadata !"fpexcept.ignore") #1',
        )

    if mode == "odd":
        down, up = once("rm"), once("rp")
        result = _odd(code, down, up, once("rn"))
    else:
        result = once(mode)
        if source:
            # Without AVX-512 LLVM converts unsigned integers by subtracting equal constants, which gives -0
            # when rounding down. An integer has one zero, +0.
            zero = code.comparei("icmp eq", arguments[0], 0)
            bits = I64 if kind == "f64" else I32
            result = code.bits(code.select(zero, const(bits, 0), code.bits(result, bits)), vector)
    code.line("call void @llvm.set.rounding(i32 1) #1")
    code.line(f"ret {result}")
    head = ", ".join(map(str, arguments))
    return f"define internal {vector} @{name}({head}) noinline #1 {{\n{code.text()}\n}}\n"


def _odd(code: Code, down: Value, up: Value, near: Value) -> Value:
    """The odd one of two neighbours; an exact result, or zero of either sign, is the nearest one."""
    bits = I64 if down.type == F64 else I32
    low, high = code.bits(down, bits), code.bits(up, bits)
    odd = code.cast("trunc", low, I1)
    chosen = code.bits(code.select(odd, low, high), down.type)
    exact = code.compare("fcmp ueq", down, up)
    return code.select(exact, near, chosen)


# Tininess is detected after rounding with unbounded exponent (IEEE 754, 7.5; an H200 flushes so): a magnitude
# below the smallest normal number is normal if it rounds up to that number with the precision of normal
# numbers. By format: log2 of the smallest normal number, bits of precision.
_SMALLEST = {"f32": (-126, 24), "f16": (-14, 11)}


def flush_exact(code: Code, name: str, value: Value, mode: str = "rn") -> Value:
    """An exact result, in a wider format or rounded to odd there, with values that are tiny in `name` as
    zero."""
    exponent, precision = _SMALLEST[name]
    smallest = 2.0**exponent
    near = smallest * (1 - 2.0 ** -(precision + 1))  # halfway to the previous number with unbounded exponent
    before = smallest * (1 - 2.0**-precision)

    def limit(number: float) -> Value:
        wide = f64_const(number)
        return wide if value.type == F64 else Value(F32, wide.text.replace("double", "float"))

    size = code.intrinsic("fabs", value.type, value)
    if mode == "rn":
        tiny = code.compare("fcmp olt", size, limit(near))
    else:
        outward = code.compare("fcmp ole", size, limit(before))
        inward = code.compare("fcmp olt", size, limit(smallest))
        zero = Value(value.type, "zeroinitializer")
        negative = code.compare("fcmp olt", value, zero)
        up, down = {"rz": (inward, inward), "rp": (outward, inward), "rm": (inward, outward)}[mode]
        tiny = code.select(negative, down, up)
    zero = Value(value.type, "zeroinitializer")
    return code.select(tiny, code.intrinsic("copysign", value.type, zero, value), value)


def finish_result(
    t: Translator,
    name: str,
    value: Value,
    *,
    mode: str = "rn",
    ftz: bool = False,
    sat: bool = False,
    relu: bool = False,
) -> Value:
    """The bits of a result, flushed, rounded and clamped."""
    code = t.code
    if name == "f64":
        return canonical(code, value)
    if ftz:
        value = flush_exact(code, "f16", value) if name == "f16" else flush32(code, value)
    if name != "f32":
        if not (sat or relu):
            return encode(code, name, value, mode)
        value = to_f32(code, name, encode(code, name, value, mode))
    if sat:
        value = saturate(code, value)
    if relu:
        value = clamp_negative(code, value)
    return encode(code, name, value)


def write_elements(t: Translator, dest: Operand, parts: list[Value]) -> None:
    """Write one or two elements, lower first; a pair fills its register."""
    whole = t.pack(parts) if len(parts) > 1 else parts[0]
    if len(parts) > 1 and isinstance(dest, Register) and dest.bits > bits_of(whole.type):
        raise UnsupportedError(f"a pair of {bits_of(whole.type)} bits into {dest.name} of {dest.bits}")
    t.write(dest, whole)
