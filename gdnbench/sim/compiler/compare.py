# SPDX-License-Identifier: Apache-2.0
"""setp, set, slct: comparison of integers and floating-point numbers (PTX ISA, "Comparison and
Selection")."""

from __future__ import annotations

from gdnbench.sim.compiler.emit import I16, I32, Value, const, lanes_of
from gdnbench.sim.compiler.formats import FLOATS, decode, flush32
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.ptx.ir import Instruction, Operand, Pair

_INTEGER = {
    "eq": "eq",
    "ne": "ne",
    "lt": "{}lt",
    "le": "{}le",
    "gt": "{}gt",
    "ge": "{}ge",
    "lo": "ult",
    "ls": "ule",
    "hi": "ugt",
    "hs": "uge",
}
# With NaN LLVM's `o` comparisons are false and its `u` ones true, as in PTX's plain ones and those in -u.
_FLOAT = {
    "eq": "oeq",
    "ne": "one",
    "lt": "olt",
    "le": "ole",
    "gt": "ogt",
    "ge": "oge",
    "equ": "ueq",
    "neu": "une",
    "ltu": "ult",
    "leu": "ule",
    "gtu": "ugt",
    "geu": "uge",
    "num": "ord",
    "nan": "uno",
}
_LOGICAL = ("and", "or", "xor")


def compare(t: Translator, ins: Instruction, kind: str, a: Operand, b: Operand) -> list[Value]:
    """The result of the comparison in each lane; two values for packed halves."""
    code = t.code
    if kind in FLOATS:
        name = ins.choice(*_FLOAT)
        left, right = (decode(t, ins, kind, s, ftz=ins.has("ftz")) for s in (a, b))
        return [code.compare(f"fcmp {_FLOAT[name]}", x, y) for x, y in zip(left, right, strict=True)]
    name, bits = ins.choice(*_INTEGER), int(kind[1:])
    return [code.compare(f"icmp {_INTEGER[name].format(kind[0])}", t.read(a, bits), t.read(b, bits))]


def _combine(t: Translator, ins: Instruction, values: list[Value]) -> list[Value]:
    logical = ins.choice(*_LOGICAL)
    if not logical:
        return values
    other = t.read(ins.sources[2], 1)
    return [t.code.op(logical, value, other) for value in values]


def setp(t: Translator, ins: Instruction) -> None:
    """p = compare combined with c; q = not compare, combined. For packed halves p is the lower result, q the
    upper."""
    values = compare(t, ins, ins.types[0], ins.sources[0], ins.sources[1])
    if len(values) == 1:
        values.append(t.code.not_(values[0]))
    values = _combine(t, ins, values)
    dest = ins.dests[0]
    if isinstance(dest, Pair):
        t.write(dest.first, values[0])
        t.write(dest.second, values[1])
    else:
        t.write(dest, values[0])


# The value that `set` writes for true: all ones, or 1.0.
_TRUE = {
    "u32": -1,
    "s32": -1,
    "f32": 0x3F80_0000,
    "u16": -1,
    "s16": -1,
    "f16": 0x3C00,
    "bf16": 0x3F80,
    "f16x2": 0x3C00,
    "bf16x2": 0x3F80,
}


def set_(t: Translator, ins: Instruction) -> None:
    target, source = ins.types
    code = t.code
    truth = _combine(t, ins, compare(t, ins, source, ins.sources[0], ins.sources[1]))
    halves = len(truth) == 2 or target in ("u16", "s16", "f16", "bf16", "f16x2", "bf16x2")
    kind = I16 if halves else I32
    parts = [code.select(value, const(kind, _TRUE[target]), const(kind, 0)) for value in truth]
    t.write(ins.dests[0], t.pack(parts) if len(parts) == 2 else parts[0])


def slct(t: Translator, ins: Instruction) -> None:
    """c >= 0 ? a : b. A NaN selects b; -0.0 counts as 0."""
    code = t.code
    bits = int("".join(c for c in ins.types[0] if c.isdigit()))
    a, b = (t.read(s, bits) for s in ins.sources[:2])
    c = t.read(ins.sources[2], 32)
    if ins.types[1] == "s32":
        chosen = code.comparei("icmp sge", c, 0)
    else:
        number = code.bits(c, lanes_of("float"))
        if ins.has("ftz"):
            number = flush32(code, number)
        chosen = code.compare("fcmp oge", number, Value(number.type, "zeroinitializer"))
    t.write(ins.dests[0], code.select(chosen, a, b))


TABLE: dict[str, Translate] = {"setp": setp, "set": set_, "slct": slct}
