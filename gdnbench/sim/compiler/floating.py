# SPDX-License-Identifier: Apache-2.0
"""Floating-point arithmetic: f32, f64, the halves, packed pairs, and sums of a half and f32.

NaN results are the canonical NaN of the format (PTX ISA, "Floating Point Instructions").
"""

from __future__ import annotations

from gdnbench.sim.compiler import integer
from gdnbench.sim.compiler.emit import F32, F64, I32, I64, Code, Library, Value
from gdnbench.sim.compiler.formats import (
    FLOATS,
    MODES,
    canonical,
    decode,
    element,
    encode,
    finish_result,
    flush32,
    flush_exact,
    is_nan,
    rounded,
    write_elements,
)
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.ptx.ir import Instruction

_OPCODES = {
    "add": "fadd",
    "sub": "fsub",
    "mul": "fmul",
    "fma": "fma",
    "mad": "fma",
    "div": "fdiv",
    "sqrt": "sqrt",
}
_HALVES = ("f16", "bf16")


def mode_of(ins: Instruction) -> str:
    """The rounding direction among the suffixes, by default `rn`."""
    return ins.choice(*MODES, default="rn")


def operate(t: Translator, op: str, mode: str, values: list[Value]) -> Value:
    """One IEEE operation on f32 or f64 vectors; `mode` may be `odd`."""
    code = t.code
    opcode = _OPCODES[op]
    kind = "f64" if values[0].type == F64 else "f32"
    if mode != "rn":
        return code.call(rounded(code.library, opcode, mode, kind, len(values)), values[0].type, *values)
    if opcode in ("fma", "sqrt"):
        return code.intrinsic(opcode, values[0].type, *values)
    return code.op(opcode, *values)


def flush_operation(t: Translator, op: str, mode: str, sources: list[Value], result: Value) -> Value:
    """`result` with subnormals flushed. A result equal to the smallest normal number may have been rounded up
    from a smaller one. In that rare case a helper repeats the operation in fp64, rounded to odd, and decides
    by that."""
    code = t.code
    name = f"flush_{_OPCODES[op]}_{mode}"
    code.library.helper(name, lambda name, library: _define_flush(name, library, op, mode, len(sources)))
    return code.call(name, F32, result, *sources)


def _define_flush(name: str, library: Library, op: str, mode: str, count: int) -> str:
    code = Code(library)
    code.start_block("entry")
    result = Value(F32, "%result")
    size = code.opi("and", code.bits(result, I32), 0x7FFF_FFFF)
    code.branch(code.any(code.comparei("icmp eq", size, 0x0080_0000)), "again", "plain")
    code.start_block("plain")
    code.line(f"ret {flush32(code, result)}")
    code.start_block("again")
    wide = [code.cast("fpext", Value(F32, f"%a{i}"), F64) for i in range(count)]
    exact = code.call(rounded(library, _OPCODES[op], "odd", "f64", count), F64, *wide)
    judged = flush_exact(code, "f32", exact, mode)
    lost = code.compare("fcmp oeq", judged, Value(F64, "zeroinitializer"))
    zero = code.bits(code.opi("and", code.bits(result, I32), 0x8000_0000), F32)
    code.line(f"ret {code.select(lost, zero, result)}")
    head = ", ".join([f"{F32} %result", *(f"{F32} %a{i}" for i in range(count))])
    return f"define internal {F32} @{name}({head}) noinline #0 {{\n{code.text()}\n}}\n"


def _needs_odd(op: str, name: str) -> bool:
    """Whether an f32 result rounded again to a half can be wrong. It cannot for sums and products: f32 has 24
    bits, twice 11 and two more (Figueroa, "When is double rounding innocuous?"). It can for fused products,
    and for bf16 products, which may be subnormal in f32."""
    return name in _HALVES and (op in ("fma", "mad") or (op == "mul" and name == "bf16"))


def arithmetic(t: Translator, ins: Instruction) -> None:
    """add, sub, mul, fma, mad. With two types the first operands are halves, the last and the result f32."""
    kind = ins.types[0]
    kinds = [kind] * len(ins.sources)
    if len(ins.types) == 2:
        kinds = [ins.types[1]] * (len(ins.sources) - 1) + ["f32"]
    mode = mode_of(ins)
    name, ftz = element(kind), ins.has("ftz")
    columns = [decode(t, ins, k, s, ftz=ftz) for k, s in zip(kinds, ins.sources, strict=True)]
    way = "odd" if _needs_odd(ins.op, name) else mode
    results = []
    for values in zip(*columns, strict=True):
        value = operate(t, ins.op, way, list(values))
        if ftz and name == "f32":
            value = flush_operation(t, ins.op, mode, list(values), value)
        results.append(finish_result(t, name, value, ftz=ftz, sat=ins.has("sat"), relu=ins.has("relu")))
    write_elements(t, ins.dests[0], results)


def divide(t: Translator, ins: Instruction) -> None:
    """IEEE division; approximate.py has the other forms."""
    kind = ins.types[0]
    mode, ftz = mode_of(ins), ins.has("ftz")
    a, b = (decode(t, ins, kind, s, ftz=ftz)[0] for s in ins.sources)
    value = operate(t, "div", mode, [a, b])
    if ftz:
        value = flush_operation(t, "div", mode, [a, b], value)
    t.write(ins.dests[0], finish_result(t, kind, value, ftz=ftz))


def abs_neg(t: Translator, ins: Instruction) -> None:
    """Changes only the sign bit. A NaN becomes canonical, except in f64."""
    kind = ins.types[0]
    name = element(kind)
    code = t.code
    if name == "f64":
        value = t.read(ins.sources[0], 64)
        sign = 1 << 63
        flipped = code.opi("xor", value, sign) if ins.op == "neg" else code.opi("and", value, sign - 1)
        t.write(ins.dests[0], flipped)
        return
    results = []
    for value in decode(t, ins, kind, ins.sources[0], ftz=ins.has("ftz")):
        changed = code.fneg(value) if ins.op == "neg" else code.intrinsic("fabs", F32, value)
        results.append(encode(code, name, changed))
    write_elements(t, ins.dests[0], results)


def extremum(code: Code, a: Value, b: Value, largest: bool, nan: bool) -> Value:
    """The maximum or minimum. -0 orders below +0. With one NaN operand the result is the number, or NaN if
    `nan`."""
    bits = I64 if a.type == F64 else I32
    less = code.compare("fcmp olt", a, b)
    # Equal numbers differ at most in the sign of zero. As an integer the negative zero is smaller.
    tie = code.op(
        "and",
        code.compare("fcmp oeq", a, b),
        code.compare("icmp slt", code.bits(a, bits), code.bits(b, bits)),
    )
    before = code.op("or", less, tie)
    chosen = code.select(before, b, a) if largest else code.select(before, a, b)
    no_a, no_b = is_nan(code, a), is_nan(code, b)
    if nan:
        either = code.op("or", no_a, no_b)
        return code.select(either, code.select(no_a, a, b), chosen)
    return code.select(no_a, b, code.select(no_b, a, chosen))


def _absolute(t: Translator, value: Value) -> Value:
    return t.code.intrinsic("fabs", value.type, value)


def min_max(t: Translator, ins: Instruction) -> None:
    """min and max of two numbers, or of three f32."""
    kind = ins.types[0]
    name = element(kind)
    columns = [decode(t, ins, kind, s, ftz=ins.has("ftz")) for s in ins.sources]
    results = [_extremum(t, ins, list(values)) for values in zip(*columns, strict=True)]
    if name == "f64":
        t.write(ins.dests[0], canonical(t.code, results[0]))
    else:
        write_elements(t, ins.dests[0], [encode(t.code, name, value) for value in results])


def _extremum(t: Translator, ins: Instruction, values: list[Value]) -> Value:
    code = t.code
    largest, nan = ins.op == "max", ins.has("NaN")
    sources = [_absolute(t, v) for v in values] if ins.has("abs") else values
    result = extremum(code, sources[0], sources[1], largest, nan)
    if len(sources) == 3:
        result = extremum(code, result, sources[2], largest, nan)
    if ins.has("xorsign"):
        sign = code.opi(
            "and", code.op("xor", code.bits(values[0], I32), code.bits(values[1], I32)), 0x8000_0000
        )
        size = code.opi("and", code.bits(result, I32), 0x7FFF_FFFF)
        result = code.bits(code.op("or", size, sign), result.type)
    return result


def copysign(t: Translator, ins: Instruction) -> None:
    """b with the sign of a."""
    size = int(ins.types[0][1:])
    a, b = (t.read(s, size) for s in ins.sources)
    sign = 1 << (size - 1)
    t.write(ins.dests[0], t.code.op("or", t.code.opi("and", a, sign), t.code.opi("and", b, sign - 1)))


def testp(t: Translator, ins: Instruction) -> None:
    """Tests the class of a number by its bits."""
    code = t.code
    size = int(ins.types[0][1:])
    fraction = 23 if size == 32 else 52
    infinity = ((1 << (size - 1 - fraction)) - 1) << fraction
    smallest = 1 << fraction
    value = code.opi("and", t.read(ins.sources[0], size), (1 << (size - 1)) - 1)
    below, at_most = code.comparei("icmp ult", value, infinity), code.comparei("icmp ule", value, infinity)
    # Zero counts as normal (PTX ISA, "testp").
    sized = code.op("or", code.comparei("icmp uge", value, smallest), code.comparei("icmp eq", value, 0))
    normal = code.op("and", below, sized)
    tests = {
        "finite": below,
        "infinite": code.comparei("icmp eq", value, infinity),
        "number": at_most,
        "notanumber": code.not_(at_most),
        "normal": normal,
        "subnormal": code.op(
            "and", code.comparei("icmp ult", value, smallest), code.comparei("icmp ne", value, 0)
        ),
    }
    t.write(ins.dests[0], tests[ins.mods[0]])


def by_type(real: Translate, whole: Translate) -> Translate:
    """Combines the translations of an opcode for floating-point and for integer types."""

    def translate(t: Translator, ins: Instruction) -> None:
        (real if ins.types and ins.types[0] in FLOATS else whole)(t, ins)

    return translate


_REAL: dict[str, Translate] = {
    "add": arithmetic,
    "sub": arithmetic,
    "mul": arithmetic,
    "mad": arithmetic,
    "div": divide,
    "abs": abs_neg,
    "neg": abs_neg,
    "min": min_max,
    "max": min_max,
}

TABLE: dict[str, Translate] = {
    **{op: by_type(real, integer.SHARED[op]) for op, real in _REAL.items()},
    "fma": arithmetic,
    "copysign": copysign,
    "testp": testp,
}
