"""`.approx` functions: ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh, and the IEEE forms of rcp and sqrt.

Each is the correctly rounded value of the function, computed in fp64 with an error of a few 2^-53 and rounded
once; the interpreter's approx.py says how far the hardware may be from that. Polynomials are the Taylor
series, cut where a term falls below 2^-56 of the result over the reduced argument.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from gdnbench.sim.compiler.emit import F32, F64, I64, Code, Library, Value, const, f64_const
from gdnbench.sim.compiler.floating import flush_operation, mode_of, operate
from gdnbench.sim.compiler.formats import (
    decode,
    element,
    encode,
    finish,
    flush,
    flush_exact,
    is_nan,
    narrow,
    to_f32,
    write_elements,
)
from gdnbench.sim.compiler.translator import Translate, Translator, only
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.ir import Instruction

_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_ARGUMENT = Value(F64, "%x")
LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # ln 2 with 32 bits: its product with a small integer is exact
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
LOG2E = 1 / math.log(2)


def _polynomial(code: Code, x: Value, coefficients: list[float]) -> Value:
    """Horner's rule; the constant comes first."""
    total = f64_const(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = code.intrinsic("fma", F64, total, x, f64_const(coefficient))
    return total


def _scale(code: Code, value: Value, power: Value) -> Value:
    """value * 2^power for an integral power that stays in the range of fp64."""
    exponent = code.opi("shl", code.opi("add", code.cast("fptosi", power, I64), 1023), 52)
    return code.op("fmul", value, code.bits(exponent, F64))


def _clamp(code: Code, x: Value, low: float, high: float) -> Value:
    """NaN stays: comparisons with it are false."""
    x = code.select(code.compare("fcmp olt", x, f64_const(low)), f64_const(low), x)
    return code.select(code.compare("fcmp ogt", x, f64_const(high)), f64_const(high), x)


def _ex2(code: Code) -> Value:
    """2^x = 2^n * e^(f ln 2), |f| <= 1/2. Beyond +-200 f32 has overflowed or underflowed long since."""
    nan = is_nan(code, _ARGUMENT)
    x = code.select(nan, Value(F64, "zeroinitializer"), _clamp(code, _ARGUMENT, -200.0, 200.0))
    whole = code.intrinsic("roundeven", F64, x)
    rest = code.op("fsub", x, whole)
    terms = [math.log(2) ** n / math.factorial(n) for n in range(15)]
    result = _scale(code, _polynomial(code, rest, terms), whole)
    return code.select(nan, _ARGUMENT, result)


def _lg2(code: Code) -> Value:
    """log2 m + e with m in [sqrt 1/2, sqrt 2): the series of atanh in (m - 1) / (m + 1)."""
    x = _ARGUMENT
    bits = code.bits(x, I64)
    root = 0x3FE6_A09E_667F_3BCD  # sqrt(1/2)
    offset = code.opi("sub", bits, root)
    exponent = code.opi("ashr", offset, 52)
    mantissa = code.bits(code.op("sub", bits, code.opi("shl", exponent, 52)), F64)
    one = f64_const(1.0)
    s = code.op("fdiv", code.op("fsub", mantissa, one), code.op("fadd", mantissa, one))
    square = code.op("fmul", s, s)
    series = _polynomial(code, square, [2 * LOG2E / (2 * n + 1) for n in range(12)])
    result = code.intrinsic("fma", F64, s, series, code.cast("sitofp", exponent, F64))
    zero = Value(F64, "zeroinitializer")
    infinity = f64_const(math.inf)
    result = code.select(code.compare("fcmp oeq", x, infinity), infinity, result)
    result = code.select(code.compare("fcmp oeq", x, zero), f64_const(-math.inf), result)
    return code.select(code.compare("fcmp ult", x, zero), f64_const(math.nan), result)


def _tanh(code: Code) -> Value:
    """(e^2|x| - 1) / (e^2|x| + 1), from e^y - 1 without cancellation. Beyond 20 it is 1 in fp64."""
    x = _ARGUMENT
    nan = is_nan(code, x)
    safe = code.select(nan, Value(F64, "zeroinitializer"), x)
    size = _clamp(code, code.intrinsic("fabs", F64, safe), 0.0, 20.0)
    y = code.op("fadd", size, size)
    whole = code.intrinsic("roundeven", F64, code.op("fmul", y, f64_const(LOG2E)))
    negative = code.fneg(whole)
    rest = code.intrinsic("fma", F64, negative, f64_const(LN2_HIGH), y)
    rest = code.intrinsic("fma", F64, negative, f64_const(LN2_LOW), rest)
    terms = [1 / math.factorial(n + 1) for n in range(15)]
    small = code.op("fmul", rest, _polynomial(code, rest, terms))  # e^rest - 1
    power = _scale(code, f64_const(1.0), whole)
    less_one = code.intrinsic("fma", F64, small, power, code.op("fsub", power, f64_const(1.0)))
    result = code.op("fdiv", less_one, code.op("fadd", less_one, f64_const(2.0)))
    return code.select(nan, x, code.intrinsic("copysign", F64, result, safe))


def _rsqrt(code: Code) -> Value:
    return code.op("fdiv", f64_const(1.0), code.intrinsic("sqrt", F64, _ARGUMENT))


def _of_turns(name: str) -> Callable[[Code], Value]:
    """sin and cos by the C library, of the angle as the unit takes it: in turns, multiplied by the f32 next
    to 1 / 2 pi and rounded toward zero to f32, its fraction cut to 25 bits."""

    def define(code: Code) -> Value:
        per_turn = struct.unpack("<f", struct.pack("<f", 0.5 / math.pi))[0]
        product = narrow(code, code.op("fmul", _ARGUMENT, f64_const(per_turn)), "rz")
        turns = code.cast("fpext", product, F64)
        fraction = code.op("fsub", turns, code.intrinsic("trunc", F64, turns))
        fraction = code.intrinsic("copysign", F64, fraction, turns)  # of whole turns it is zero of their sign
        steps = code.intrinsic("trunc", F64, code.op("fmul", fraction, f64_const(2.0**25)))
        angle = code.op("fmul", f64_const(2 * math.pi), code.op("fdiv", steps, f64_const(2.0**25)))
        return code.intrinsic(name, F64, angle)

    return define


_FUNCTIONS: dict[str, Callable[[Code], Value]] = {
    "ex2": _ex2,
    "lg2": _lg2,
    "tanh": _tanh,
    "rsqrt": _rsqrt,
    "rcp": lambda code: code.op("fdiv", f64_const(1.0), _ARGUMENT),
    "sqrt": lambda code: code.intrinsic("sqrt", F64, _ARGUMENT),
    "sin": _of_turns("sin"),
    "cos": _of_turns("cos"),
}


def _helper(library: Library, op: str) -> str:
    def define(name: str, library: Library) -> str:
        code = Code(library)
        code.at("entry")
        result = _FUNCTIONS[op](code)
        code.line(f"ret {result}")
        return f"define internal {F64} @{name}({F64} %x) noinline #0 {{\n{code.text()}\n}}\n"

    library.helper(f"approximate_{op}", define)
    return f"approximate_{op}"


def approximate(t: Translator, ins: Instruction) -> None:
    """One argument, rounded to the instruction's type."""
    only(ins, "approx", "ftz")
    kind = ins.types[0] if len(ins.types) == 1 else ""
    halves = ins.op in ("ex2", "tanh")
    if not ins.has("approx") or kind not in ("f32", *(_HALVES if halves else ())):
        raise UnsupportedError(ins.name)
    name, ftz = element(kind), ins.has("ftz")
    if ins.op == "ex2" and name != "f32" and (name == "bf16") != ftz:
        raise UnsupportedError(ins.name)
    if ins.op == "tanh" and ftz:
        raise UnsupportedError(ins.name)
    code = t.code
    results = []
    for value in decode(t, ins, kind, ins.sources[0], ftz=ftz):
        wide = code.call(_helper(code.library, ins.op), F64, code.cast("fpext", value, F64))
        if name == "f32":
            exact = flush_exact(code, "f32", wide) if ftz else wide
            results.append(encode(code, "f32", code.cast("fptrunc", exact, F32)))
        else:
            results.append(_cut(t, name, code.cast("fptrunc", wide, F32), ftz))
    write_elements(t, ins.dests[0], results)


def _cut(t: Translator, name: str, value: Value, ftz: bool) -> Value:
    """An f32 as a half, toward zero, but overflow to Inf: so an H200 makes halves of what it computed as
    f32."""
    code = t.code
    largest = 65504.0 if name == "f16" else 2.0**128 - 2.0**120
    limit = Value(F32, f64_const(largest).text.replace("double", "float"))
    over = code.compare("fcmp ogt", code.intrinsic("fabs", F32, value), limit)
    bits = code.select(over, encode(code, name, value), encode(code, name, value, "rz"))
    return encode(code, name, flush(code, name, to_f32(code, name, bits))) if ftz else bits


def exact_or_approximate(t: Translator, ins: Instruction) -> None:
    """`rcp` and `sqrt`: correctly rounded in any direction, or approximate."""
    if ins.has("approx"):
        if ins.op == "rcp" and ins.types == ("f64",):
            _gross_reciprocal(t, ins)
        else:
            approximate(t, ins)
        return
    kind = ins.types[0] if len(ins.types) == 1 else ""
    only(ins, "rn", "rz", "rm", "rp", *(("ftz",) if kind == "f32" else ()))
    if kind not in ("f32", "f64"):
        raise UnsupportedError(ins.name)
    mode, ftz = mode_of(ins, kind, needed=True), ins.has("ftz")
    value = decode(t, ins, kind, ins.sources[0], ftz=ftz)[0]
    if ins.op == "rcp":
        one = Value(value.type, "splat (double 1.0)" if kind == "f64" else "splat (float 1.0)")
        result = operate(t, "div", mode, [one, value])
        if ftz:
            result = flush_operation(t, "div", mode, [one, value], result)
    else:
        result = operate(t, "sqrt", mode, [value])
    t.write(ins.dests[0], finish(t, kind, result, ftz=ftz))


def _gross_reciprocal(t: Translator, ins: Instruction) -> None:
    """`rcp.approx.ftz.f64`: the lower half of the result is zero (PTX ISA, "rcp.approx.ftz.f64")."""
    only(ins, "approx", "ftz")
    if not ins.has("ftz"):
        raise UnsupportedError(ins.name)
    code = t.code

    def flushed(bits: Value) -> Value:
        tiny = code.comparei("icmp eq", code.opi("and", bits, 0x7FF0_0000_0000_0000), 0)
        return code.select(tiny, code.opi("and", bits, 1 << 63), bits)

    value = code.bits(flushed(t.read(ins.sources[0], 64)), F64)
    result = code.bits(code.op("fdiv", f64_const(1.0), value), I64)
    high = code.opi("and", flushed(result), 0xFFFF_FFFF_0000_0000)
    t.write(ins.dests[0], code.select(is_nan(code, value), const(I64, 0x7FFF_FFFF_0000_0000), high))


TABLE: dict[str, Translate] = {
    **dict.fromkeys(("ex2", "lg2", "rsqrt", "sin", "cos", "tanh"), approximate),
    "rcp": exact_or_approximate,
    "sqrt": exact_or_approximate,
}
