# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions" and "Extended-Precision")."""

from __future__ import annotations

from collections.abc import Callable

from gdnbench.sim.compiler import division
from gdnbench.sim.compiler.emit import I1, I32, I64, Value, bits_of, const, lanes_of
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.ptx.ir import Instruction

PACKED = ("u16x2", "s16x2")
PACKED_TYPE = "<64 x i16>"


def width(kind: str) -> int:
    return int(kind[1:])


def _packed(t: Translator, ins: Instruction, combine: Callable[[Value, Value], Value]) -> None:
    a, b = (t.code.bits(t.read(s, 32), PACKED_TYPE) for s in ins.sources)
    t.write(ins.dests[0], t.code.bits(combine(a, b), I32))


def _saturating(t: Translator, name: str, a: Value, b: Value) -> Value:
    return t.code.intrinsic(f"s{name}.sat", a.type, a, b)


def _carry_sum(t: Translator, ins: Instruction, a: Value, b: Value) -> Value:
    """a + b + carry, or a - b - 1 + carry; `.cc` also sets the carry. A subtraction sets it if it does not
    borrow, as an H100 does and not as the PTX ISA says ("sub.cc"): code that mixes both relies on that."""
    code = t.code
    minus = ins.op in ("sub", "subc")
    pointer = t.header("carry")
    kept = code.load("i32", pointer, 4)
    total = code.op("sub" if minus else "add", a, b)
    out = code.compare("icmp ult", *((a, b) if minus else (total, a)))
    if ins.op.endswith("c"):
        incoming = code.not_(kept) if minus else kept
        carry = code.cast("zext", code.bits(incoming, I1), a.type)
        partial = total
        total = code.op("sub" if minus else "add", partial, carry)
        extra = code.compare("icmp ult", *((partial, carry) if minus else (total, partial)))
        out = code.op("or", out, extra)
    if ins.has("cc"):
        lanes = code.mask_bits(t.active)
        outgoing = code.mask_bits(out)
        fresh = code.op("and", code.not_(outgoing) if minus else outgoing, lanes)
        code.store(code.op("or", fresh, code.op("and", kept, code.not_(lanes))), pointer, 4)
    return total


def add_sub(t: Translator, ins: Instruction) -> None:
    op, kind = ins.op[:3], ins.types[0]
    if ins.has("cc") or ins.op.endswith("c"):
        a, b = (t.read(s, width(kind)) for s in ins.sources)
        t.write(ins.dests[0], _carry_sum(t, ins, a, b))
        return
    if ins.has("sat"):
        a, b = (t.read(s, 32) for s in ins.sources)
        t.write(ins.dests[0], _saturating(t, op, a, b), signed=True)
        return
    if kind in PACKED:
        _packed(t, ins, lambda a, b: t.code.op(op, a, b))
        return
    a, b = (t.read(s, width(kind)) for s in ins.sources)
    t.write(ins.dests[0], t.code.op(op, a, b), signed=kind[0] == "s")


def extend(t: Translator, value: Value, bits: int, signed: bool) -> Value:
    return t.code.resize(value, lanes_of(f"i{bits}"), signed=signed)


def multiply(t: Translator, part: str, a: Value, b: Value, signed: bool) -> Value:
    """`lo`, `hi` or `wide` of the product."""
    code = t.code
    bits = bits_of(a.type)
    if part == "lo":
        return code.op("mul", a, b)
    if bits == 64:
        return _high64(t, a, b, signed)
    product = code.op("mul", extend(t, a, 2 * bits, signed), extend(t, b, 2 * bits, signed))
    if part == "wide":
        return product
    return code.cast("trunc", code.opi("lshr", product, bits), a.type)


def _high64(t: Translator, a: Value, b: Value, signed: bool) -> Value:
    """Schoolbook multiplication on 32-bit halves, then the correction for negative factors, each 2^64 less
    than its bits."""
    code = t.code

    def halves(x: Value) -> tuple[Value, Value]:
        return code.opi("and", x, 0xFFFFFFFF), code.opi("lshr", x, 32)

    (a0, a1), (b0, b1) = halves(a), halves(b)
    low = code.opi("lshr", code.op("mul", a0, b0), 32)
    middle0, middle1 = halves(code.op("add", code.op("mul", a1, b0), low))
    cross = code.opi("lshr", code.op("add", code.op("mul", a0, b1), middle0), 32)
    high = code.op("add", code.op("add", code.op("mul", a1, b1), middle1), cross)
    if not signed:
        return high
    for x, y in ((a, b), (b, a)):
        high = code.op("sub", high, code.op("and", code.opi("ashr", x, 63), y))
    return high


def _part(ins: Instruction) -> str:
    return ins.choice("lo", "hi", "wide")


def mul_mad(t: Translator, ins: Instruction) -> None:
    kind = ins.types[0]
    part, bits, signed = _part(ins), width(kind), kind[0] == "s"
    carrying = ins.has("cc") or ins.op == "madc"
    a, b = (t.read(s, bits) for s in ins.sources[:2])
    result = multiply(t, part, a, b, signed)
    if ins.op != "mul":
        c = t.read(ins.sources[2], bits_of(result.type))
        if ins.has("sat"):
            result = _saturating(t, "add", result, c)
        elif carrying:
            result = _carry_sum(t, ins, result, c)
        else:
            result = t.code.op("add", result, c)
    t.write(ins.dests[0], result, signed=signed and not carrying)


def mul24_mad24(t: Translator, ins: Instruction) -> None:
    """Products of the low 24 bits: bits 31..0 or 47..16."""
    kind = ins.types[0]
    part, code = _part(ins), t.code
    shift = "ashr" if kind == "s32" else "lshr"
    factors = []
    for source in ins.sources[:2]:
        wide = t.read(source, 64)
        factors.append(code.opi(shift, code.opi("shl", wide, 40), 40))
    product = code.op("mul", *factors)
    if part == "hi":
        product = code.opi("lshr", product, 16)
    result = code.cast("trunc", product, I32)
    if ins.op == "mad24":
        c = t.read(ins.sources[2], 32)
        result = _saturating(t, "add", result, c) if ins.has("sat") else code.op("add", result, c)
    t.write(ins.dests[0], result, signed=kind == "s32")


def sad(t: Translator, ins: Instruction) -> None:
    kind = ins.types[0]
    code = t.code
    a, b, c = (t.read(s, width(kind)) for s in ins.sources)
    less = code.compare(f"icmp {kind[0]}lt", a, b)
    apart = code.select(less, code.op("sub", b, a), code.op("sub", a, b))
    t.write(ins.dests[0], code.op("add", c, apart), signed=kind[0] == "s")


def div_rem(t: Translator, ins: Instruction) -> None:
    kind = ins.types[0]
    a, b = (t.read(s, width(kind)) for s in ins.sources)
    helper = division.define_division(t.code.library, ins.op, kind)
    t.write(ins.dests[0], t.code.call(helper, a.type, a, b), signed=kind[0] == "s")


def abs_neg(t: Translator, ins: Instruction) -> None:
    kind = ins.types[0]
    a = t.read(ins.sources[0], width(kind))
    if ins.op == "neg":
        result = t.code.op("sub", const(a.type, 0), a)
    else:
        result = t.code.intrinsic("abs", a.type, a, const("i1", 0))
    t.write(ins.dests[0], result, signed=True)


def min_max(t: Translator, ins: Instruction) -> None:
    kind = ins.types[0]
    name = f"{kind[0]}{ins.op}"

    def combine(a: Value, b: Value) -> Value:
        result = t.code.intrinsic(name, a.type, a, b)
        if ins.has("relu"):
            zero = Value(a.type, "zeroinitializer")
            result = t.code.intrinsic("smax", a.type, result, zero)
        return result

    if kind in PACKED:
        _packed(t, ins, combine)
        return
    a, b = (t.read(s, width(kind)) for s in ins.sources)
    t.write(ins.dests[0], combine(a, b), signed=kind[0] == "s")


def popc_clz(t: Translator, ins: Instruction) -> None:
    kind = ins.types[0]
    a = t.read(ins.sources[0], width(kind))
    arguments = (a,) if ins.op == "popc" else (a, const("i1", 0))
    result = t.code.intrinsic("ctpop" if ins.op == "popc" else "ctlz", a.type, *arguments)
    t.write(ins.dests[0], t.code.resize(result, I32))


def bfind(t: Translator, ins: Instruction) -> None:
    """The position of the highest bit that differs from the sign; all ones if there is none."""
    kind = ins.types[0]
    code = t.code
    a = t.read(ins.sources[0], width(kind))
    if kind[0] == "s":
        a = code.op("xor", a, code.opi("ashr", a, width(kind) - 1))
    zeros = code.intrinsic("ctlz", a.type, a, const("i1", 0))
    found = zeros if ins.has("shiftamt") else code.op("sub", const(a.type, width(kind) - 1), zeros)
    found = code.select(code.comparei("icmp eq", a, 0), const(a.type, -1), found)
    t.write(ins.dests[0], code.resize(found, I32))


def brev(t: Translator, ins: Instruction) -> None:
    a = t.read(ins.sources[0], width(ins.types[0]))
    t.write(ins.dests[0], t.code.intrinsic("bitreverse", a.type, a))


def _low_bits(t: Translator, count: Value) -> Value:
    """`count` ones, as 64 bits; `count` is at most 64."""
    code = t.code
    ones = code.op(
        "lshr",
        const(I64, -1),
        code.op("sub", const(I64, 64), code.intrinsic("umax", I64, count, const(I64, 1))),
    )
    return code.select(code.comparei("icmp eq", count, 0), const(I64, 0), ones)


def _field(t: Translator, start: Value, length: Value, bits: int) -> tuple[Value, Value, Value]:
    """(position, length, how many bits of the field lie below `bits`), as 64 bits."""
    code = t.code
    position = code.opi("and", start, 0xFF)
    count = code.opi("and", length, 0xFF)
    room = code.intrinsic("usub.sat", I64, const(I64, bits), position)
    return position, count, code.intrinsic("umin", I64, count, room)


def bfe(t: Translator, ins: Instruction) -> None:
    """A bit field. Beyond the register a signed field is filled with its highest bit (PTX ISA, "bfe")."""
    kind = ins.types[0]
    bits, code = width(kind), t.code
    a = extend(t, t.read(ins.sources[0], bits), 64, kind[0] == "s")
    position, count, kept = _field(t, t.read(ins.sources[1], 64), t.read(ins.sources[2], 64), bits)
    mask = _low_bits(t, kept)
    safe = code.intrinsic("umin", I64, position, const(I64, 63))
    shifted = code.select(code.comparei("icmp ult", position, bits), code.op("lshr", a, safe), const(I64, 0))
    field = code.op("and", shifted, mask)
    if kind[0] == "s":
        last = code.opi("add", code.op("add", position, count), -1)
        top = code.intrinsic("umin", I64, last, const(I64, bits - 1))
        bit = code.cast("trunc", code.op("lshr", a, top), I1)
        negative = code.op("and", bit, code.comparei("icmp ne", count, 0))
        field = code.select(negative, code.op("or", field, code.not_(mask)), field)
    t.write(ins.dests[0], code.resize(field, lanes_of(f"i{bits}")), signed=kind[0] == "s")


def bfi(t: Translator, ins: Instruction) -> None:
    bits, code = width(ins.types[0]), t.code
    a, b, start, length = (t.read(s, 64) for s in ins.sources)
    position, _, kept = _field(t, start, length, bits)
    safe = code.intrinsic("umin", I64, position, const(I64, 63))
    ones = code.op("shl", _low_bits(t, kept), safe)
    mask = code.select(code.comparei("icmp ult", position, bits), ones, const(I64, 0))
    inserted = code.op("and", code.op("shl", a, safe), mask)
    result = code.op("or", code.op("and", b, code.not_(mask)), inserted)
    t.write(ins.dests[0], code.resize(result, lanes_of(f"i{bits}")))


def szext(t: Translator, ins: Instruction) -> None:
    """Sign- or zero-extend from a number of bits."""
    kind = ins.types[0]
    clamp, code = ins.has("clamp"), t.code
    a, count = (t.read(s, 32) for s in ins.sources)
    low = code.opi("and", count, 31)
    unused = code.opi("and", code.op("sub", const(I32, 32), low), 31)
    shift = "ashr" if kind == "s32" else "lshr"
    field = code.op(shift, code.op("shl", a, unused), unused)
    field = code.select(code.comparei("icmp eq", low, 0), const(I32, 0), field)
    if clamp:
        field = code.select(code.comparei("icmp uge", count, 32), a, field)
    t.write(ins.dests[0], field, signed=kind == "s32")


def bmsk(t: Translator, ins: Instruction) -> None:
    """`count` ones from bit `start` up."""
    clamp, code = ins.has("clamp"), t.code
    start, count = (t.read(s, 32) for s in ins.sources)
    length = code.opi("and", count, 31)
    if clamp:
        length = code.select(code.comparei("icmp uge", count, 32), const(I32, 32), length)
    ones = _low_bits(t, code.cast("zext", length, I64))
    mask = code.cast("trunc", code.op("shl", ones, code.cast("zext", code.opi("and", start, 31), I64)), I32)
    if clamp:
        mask = code.select(code.comparei("icmp uge", start, 32), const(I32, 0), mask)
    t.write(ins.dests[0], mask)


def fns(t: Translator, ins: Instruction) -> None:
    """The position of the n-th set bit from a base, upward or downward; all ones if there is none."""
    mask, base, offset = (t.read(s, 32) for s in ins.sources)
    helper = division.find_nth_set(t.code.library)
    t.write(ins.dests[0], t.code.call(helper, I32, mask, t.code.opi("and", base, 31), offset))


def dot(t: Translator, ins: Instruction) -> None:
    """`dp4a`, `dp2a`: a dot product of small integers, added to a 32-bit integer."""
    code = t.code
    a, b, total = (t.read(s, 32) for s in ins.sources)
    step = 16 if ins.op == "dp2a" else 8
    first = 2 if ins.has("hi") else 0

    def element(value: Value, index: int, bits: int, kind: str) -> Value:
        up = code.opi("shl", value, 32 - bits * (index + 1))
        return code.opi("ashr" if kind == "s32" else "lshr", up, 32 - bits)

    for index in range(32 // step):
        left = element(a, index, step, ins.types[0])
        right = element(b, first + index, 8, ins.types[1])
        total = code.op("add", total, code.op("mul", left, right))
    t.write(ins.dests[0], total, signed="s32" in ins.types)


def absolute_differences(t: Translator, ins: Instruction) -> None:
    """`vabsdiff2`, `vabsdiff4`: |a - b| of each half or byte; `.add` adds them all to c."""
    code = t.code
    a, b, total = (t.read(s, 32) for s in ins.sources)
    bits = 16 if ins.op == "vabsdiff2" else 8
    packed = const(I32, 0)
    for index in range(32 // bits):
        parts = [code.opi("and", code.opi("lshr", value, bits * index), (1 << bits) - 1) for value in (a, b)]
        apart = code.op("sub", code.intrinsic("umax", I32, *parts), code.intrinsic("umin", I32, *parts))
        total = code.op("add", total, apart)
        packed = code.op("or", packed, code.opi("shl", apart, bits * index))
    t.write(ins.dests[0], total if ins.has("add") else packed)


TABLE: dict[str, Translate] = {
    "vabsdiff2": absolute_differences,
    "vabsdiff4": absolute_differences,
    "addc": add_sub,
    "subc": add_sub,
    "madc": mul_mad,
    "mul24": mul24_mad24,
    "mad24": mul24_mad24,
    "sad": sad,
    "rem": div_rem,
    "popc": popc_clz,
    "clz": popc_clz,
    "bfind": bfind,
    "brev": brev,
    "bfe": bfe,
    "bfi": bfi,
    "szext": szext,
    "bmsk": bmsk,
    "fns": fns,
    "dp4a": dot,
    "dp2a": dot,
}

# Opcodes that floating point shares; float.py decides by the type.
SHARED: dict[str, Translate] = {
    "add": add_sub,
    "sub": add_sub,
    "mul": mul_mad,
    "mad": mul_mad,
    "div": div_rem,
    "abs": abs_neg,
    "neg": abs_neg,
    "min": min_max,
    "max": min_max,
}
