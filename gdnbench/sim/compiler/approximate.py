# SPDX-License-Identifier: Apache-2.0
"""`.approx` functions and fast divisions, and the IEEE forms of rcp and sqrt.

ptxas adds instructions around the special-function unit (mufu.py), and so does this module. The unit flushes
subnormal numbers; without `.ftz` these instructions scale subnormal arguments first and scale the result
back.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gdnbench.sim.compiler import floating, integer
from gdnbench.sim.compiler.emit import (
    F32,
    F64,
    I32,
    I64,
    Code,
    Library,
    Value,
    const,
    f32_const,
    f64_const,
)
from gdnbench.sim.compiler.floating import flush_operation, mode_of, operate
from gdnbench.sim.compiler.formats import (
    canonical,
    decode,
    element,
    encode,
    finish_result,
    is_nan,
    narrow,
    write_elements,
)
from gdnbench.sim.compiler.mufu import mufu
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.ptx.ir import Instruction

_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_ARGUMENT = Value(F32, "%a")
_UNIT = {"rsqrt": "rsq"}  # the unit's name of a function, where it differs from PTX's
_ANGLES = ("sin", "cos")


def _unit(code: Code, op: str, value: Value) -> Value:
    return code.bits(mufu(code, _UNIT.get(op, op), code.bits(value, I32)), F32)


def _size(code: Code, value: Value) -> Value:
    return code.intrinsic("fabs", F32, value)


def _below(code: Code, value: Value, limit: float) -> Value:
    return code.compare("fcmp olt", value, f32_const(limit))


def _when(code: Code, mask: Value, opcode: str, value: Value, constant: float) -> Value:
    """A predicated FMUL or FADD."""
    return code.select(mask, code.op(opcode, value, f32_const(constant)), value)


def _ex2(code: Code) -> Value:
    """Below -126: the square of 2^(a/2)."""
    low = _below(code, _ARGUMENT, -126.0)
    result = _unit(code, "ex2", _when(code, low, "fmul", _ARGUMENT, 0.5))
    return code.select(low, code.op("fmul", result, result), result)


def _rcp(code: Code) -> Value:
    """Scales before and after if the argument or the result is subnormal."""
    size = _size(code, _ARGUMENT)
    huge = code.compare("fcmp ogt", size, f32_const(2.0**126))
    scale = code.select(huge, f32_const(0.25), f32_const(1.0))
    scale = code.select(_below(code, size, 2.0**-126), f32_const(2.0**24), scale)
    return code.op("fmul", scale, _unit(code, "rcp", code.op("fmul", _ARGUMENT, scale)))


def _scaled(op: str, opcode: str, back: float) -> Callable[[Code], Value]:
    """Multiplies a subnormal argument by 2^24 and scales the result back."""

    def define(code: Code) -> Value:
        tiny = _below(code, _size(code, _ARGUMENT), 2.0**-126)
        result = _unit(code, op, _when(code, tiny, "fmul", _ARGUMENT, 2.0**24))
        return _when(code, tiny, opcode, result, back)

    return define


def _of_angle(op: str) -> Callable[[Code], Value]:
    """Converts to turns: the angle times the f32 next to 1 / 2 pi, rounded toward zero."""

    def define(code: Code) -> Value:
        per_turn = f32_const(0.5 / math.pi)
        exact = code.op("fmul", code.cast("fpext", _ARGUMENT, F64), code.cast("fpext", per_turn, F64))
        return _unit(code, op, narrow(code, exact, "rz"))

    return define


_FUNCTIONS: dict[str, Callable[[Code], Value]] = {
    "ex2": _ex2,
    "lg2": _scaled("lg2", "fadd", -24.0),
    "rcp": _rcp,
    "rsqrt": _scaled("rsqrt", "fmul", 2.0**12),
    "sqrt": _scaled("sqrt", "fmul", 2.0**-12),
    "sin": _of_angle("sin"),
    "cos": _of_angle("cos"),
}


def _without_flushing(code: Code, op: str, value: Value) -> Value:
    def define(name: str, library: Library) -> str:
        body = Code(library)
        body.start_block("entry")
        body.line(f"ret {_FUNCTIONS[op](body)}")
        return f"define internal {F32} @{name}({F32} %a) noinline #0 {{\n{body.text()}\n}}\n"

    code.library.helper(f"approximate_{op}", define)
    return code.call(f"approximate_{op}", F32, value)


def approximate(t: Translator, ins: Instruction) -> None:
    """One argument. Halves are computed as f32. `tanh` has no `.ftz`: the unit keeps its subnormals."""
    kind = ins.types[0]
    name, ftz = element(kind), ins.has("ftz")
    code = t.code
    if name == "f32" and ins.op != "tanh" and (not ftz or ins.op in _ANGLES):
        value = _without_flushing(code, ins.op, decode(t, ins, kind, ins.sources[0])[0])
        t.write(ins.dests[0], canonical(code, value))
        return
    values = [_unit(code, ins.op, value) for value in decode(t, ins, kind, ins.sources[0])]
    write_elements(
        t, ins.dests[0], [code.bits(v, I32) if name == "f32" else _cut(code, name, v) for v in values]
    )


def _cut(code: Code, name: str, value: Value) -> Value:
    """Rounds an f32 to a half toward zero; overflow gives Inf."""
    largest = 65504.0 if name == "f16" else 2.0**128 - 2.0**120
    over = code.compare("fcmp ogt", _size(code, value), f32_const(largest))
    return code.select(over, encode(code, name, value), encode(code, name, value, "rz"))


def divide(t: Translator, ins: Instruction) -> None:
    """`div.approx` and `div.full` multiply by MUFU.RCP; `floating` has the other forms."""
    if not ins.has("approx", "full"):
        floating.divide(t, ins)
        return
    full, ftz = ins.has("full"), ins.has("ftz")
    code = t.code
    a, b = (decode(t, ins, "f32", s, ftz=ftz)[0] for s in ins.sources)

    def product(x: Value, y: Value) -> Value:
        result = code.op("fmul", x, y)
        return flush_operation(t, "mul", "rn", [x, y], result) if ftz else result

    size = _size(code, b)
    if full:  # MUFU.RCP of a large divisor is zero
        huge = code.compare("fcmp ogt", size, f32_const(2.0**126))
        quarter = f32_const(0.25)
        a, b = (code.select(huge, product(value, quarter), value) for value in (a, b))
    if not ftz:
        tiny = _below(code, size, 2.0**-126)
        a, b = (_when(code, tiny, "fmul", value, 2.0**24) for value in (a, b))
    t.write(ins.dests[0], canonical(code, product(_unit(code, "rcp", b), a)))


def exact_or_approximate(t: Translator, ins: Instruction) -> None:
    """`rcp` and `sqrt`: correctly rounded in any direction, or approximate."""
    if ins.has("approx"):
        if ins.op == "rcp" and ins.types == ("f64",):
            _gross_reciprocal(t, ins)
        else:
            approximate(t, ins)
        return
    kind = ins.types[0]
    mode, ftz = mode_of(ins), ins.has("ftz")
    value = decode(t, ins, kind, ins.sources[0], ftz=ftz)[0]
    if ins.op == "rcp":
        one = Value(value.type, "splat (double 1.0)" if kind == "f64" else "splat (float 1.0)")
        result = operate(t, "div", mode, [one, value])
        if ftz:
            result = flush_operation(t, "div", mode, [one, value], result)
    else:
        result = operate(t, "sqrt", mode, [value])
    t.write(ins.dests[0], finish_result(t, kind, result, ftz=ftz))


def _gross_reciprocal(t: Translator, ins: Instruction) -> None:
    """`rcp.approx.ftz.f64`: the lower halves of source and result are zero (PTX ISA, "rcp.approx.ftz.f64").
    This is the exact reciprocal, truncated, which an H100 gave in 32 cases of 32."""
    code = t.code

    def flushed(bits: Value) -> Value:
        tiny = code.comparei("icmp eq", code.opi("and", bits, 0x7FF0_0000_0000_0000), 0)
        return code.select(tiny, code.opi("and", bits, 1 << 63), bits)

    upper = code.opi("and", t.read(ins.sources[0], 64), 0xFFFF_FFFF_0000_0000)
    value = code.bits(flushed(upper), F64)
    result = code.bits(code.op("fdiv", f64_const(1.0), value), I64)
    high = code.opi("and", flushed(result), 0xFFFF_FFFF_0000_0000)
    t.write(ins.dests[0], code.select(is_nan(code, value), const(I64, 0x7FFF_FFFF_0000_0000), high))


def reciprocal_root(t: Translator, ins: Instruction) -> None:
    """`rsqrt`. That of f64 is correctly rounded in all that an H100 gave: the host's result and one Newton
    step with the exact residual. A NaN keeps its bits and becomes quiet."""
    if ins.types != ("f64",):
        approximate(t, ins)
        return
    code = t.code
    source = t.read(ins.sources[0], 64)
    value = code.bits(source, F64)
    tiny = code.compare("fcmp olt", value, f64_const(2.0**-1022))
    scaled = code.select(tiny, code.op("fmul", value, f64_const(2.0**108)), value)
    one = f64_const(1.0)
    first = code.op("fdiv", one, code.intrinsic("sqrt", F64, scaled))
    high = code.op("fmul", scaled, first)
    low = code.intrinsic("fma", F64, scaled, first, code.fneg(high))
    residual = code.intrinsic("fma", F64, code.fneg(high), first, one)
    residual = code.intrinsic("fma", F64, code.fneg(low), first, residual)
    half = code.op("fmul", first, f64_const(0.5))
    better = code.intrinsic("fma", F64, half, residual, first)
    # 1 / sqrt of 0 and Inf is there already; the residual would be NaN.
    usable = code.compare("fcmp ord", better, better)
    result = code.select(usable, better, first)
    result = code.select(tiny, code.op("fmul", result, f64_const(2.0**54)), result)
    bits = code.select(is_nan(code, result), const(I64, 0xFFF8_0000_0000_0000), code.bits(result, I64))
    quiet = code.opi("or", source, 1 << 51)
    t.write(ins.dests[0], code.select(is_nan(code, value), quiet, bits))


TABLE: dict[str, Translate] = {
    **dict.fromkeys(("ex2", "lg2", "sin", "cos", "tanh"), approximate),
    "div": floating.by_type(divide, integer.SHARED["div"]),
    "rsqrt": reciprocal_root,
    "rcp": exact_or_approximate,
    "sqrt": exact_or_approximate,
}
