# SPDX-License-Identifier: Apache-2.0
"""Logic, shifts, byte permutation, moves and selection."""

from __future__ import annotations

from collections.abc import Callable

from gdnbench.sim.compiler.emit import I32, I64, Value, const, lanes_of
from gdnbench.sim.compiler.integer import width
from gdnbench.sim.compiler.translator import Translate, Translator, part_width
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.ir import Immediate, Instruction, Vector
from gdnbench.sim.ptx.literals import width_of


def bitwise(t: Translator, ins: Instruction) -> None:
    bits = width_of(ins.types[0])
    values = [t.read(s, bits) for s in ins.sources]
    if ins.op == "not":
        t.write(ins.dests[0], t.code.not_(values[0]))
    else:
        t.write(ins.dests[0], t.code.op(ins.op, *values))


def cnot(t: Translator, ins: Instruction) -> None:
    a = t.read(ins.sources[0], width(ins.types[0]))
    t.write(ins.dests[0], t.code.cast("zext", t.code.comparei("icmp eq", a, 0), a.type))


def lop3(t: Translator, ins: Instruction) -> None:
    """Any function of three bits; bit (a << 2 | b << 1 | c) of the table is its value."""
    code = t.code
    a, b, c = (t.read(s, 32) for s in ins.sources[:3])
    table = ins.sources[3]
    if not isinstance(table, Immediate):
        raise UnsupportedError(f"{ins.name} with a table that is no constant")
    total: Value | None = None
    for row in range(8):
        if table.bits >> row & 1:
            term = a if row & 4 else code.not_(a)
            for bit, value in ((2, b), (1, c)):
                term = code.op("and", term, value if row & bit else code.not_(value))
            total = term if total is None else code.op("or", total, term)
    t.write(ins.dests[0], const(I32, 0) if total is None else total)


def shift(t: Translator, ins: Instruction) -> None:
    """Shifts by more than the width act like shifts by the width (PTX ISA, "shl", "shr")."""
    left = ins.op == "shl"
    kind = ins.types[0]
    bits, code = width(kind), t.code
    signed = kind[0] == "s"
    a = t.read(ins.sources[0], bits)
    opcode = "shl" if left else "ashr" if signed else "lshr"
    amount = ins.sources[1]
    if isinstance(amount, Immediate):
        count = amount.bits & 0xFFFFFFFF
        if count >= bits and not signed:
            result = const(a.type, 0)
        else:
            result = code.opi(opcode, a, min(count, bits - 1))
    else:
        count32 = t.read(amount, 32)
        inside = code.resize(code.intrinsic("umin", I32, count32, const(I32, bits - 1)), a.type)
        result = code.op(opcode, a, inside)
        if not signed:
            result = code.select(code.comparei("icmp ult", count32, bits), result, const(a.type, 0))
    t.write(ins.dests[0], result, signed=signed)


def funnel(t: Translator, ins: Instruction) -> None:
    """`shf`: shifts b:a as 64 bits and keeps the upper half (left) or the lower (right)."""
    code = t.code
    a, b, amount = (t.read(s, 32) for s in ins.sources)
    count = (
        code.intrinsic("umin", I32, amount, const(I32, 32))
        if ins.has("clamp")
        else code.opi("and", amount, 31)
    )
    both, wide = t.pack([a, b]), code.cast("zext", count, I64)
    shifted = code.op("shl" if ins.has("l") else "lshr", both, wide)
    kept = code.opi("lshr", shifted, 32) if ins.has("l") else shifted
    t.write(ins.dests[0], code.cast("trunc", kept, I32))


# Modes of prmt: the source byte of each result byte, by the selector's two low bits (PTX ISA, "prmt", table
# of modes).
_MODES: dict[str, Callable[[int, int], int]] = {
    "f4e": lambda s, i: s + i,
    "b4e": lambda s, i: (s - i) % 8,
    "rc8": lambda s, i: s,
    "ecl": lambda s, i: max(s, i),
    "ecr": lambda s, i: min(s, i),
    "rc16": lambda s, i: 2 * (s % 2) + i % 2,
}


def permute(t: Translator, ins: Instruction) -> None:
    """`prmt`: each result byte is one of the eight bytes of b:a, or its sign bit repeated eight times."""
    code = t.code
    a, b, control = (t.read(s, 32) for s in ins.sources)
    both = t.pack([a, b])
    if ins.mods:
        order = _MODES[ins.mods[0]]
        low = code.opi("and", control, 3)
        control = const(I32, 0)
        for selector in range(4):
            nibbles = sum(order(selector, i) << 4 * i for i in range(4))
            control = code.select(code.comparei("icmp eq", low, selector), const(I32, nibbles), control)
    wide = code.cast("zext", control, I64)
    total: Value | None = None
    for byte in range(4):
        nibble = code.opi("lshr", wide, 4 * byte)
        picked = code.op("lshr", both, code.opi("shl", code.opi("and", nibble, 7), 3))
        octet = code.cast("trunc", picked, lanes_of("i8"))
        sign = code.opi("ashr", octet, 7)
        replicate = code.comparei("icmp ne", code.opi("and", nibble, 8), 0)
        octet = code.cast("zext", code.select(replicate, sign, octet), I32)
        placed = code.opi("shl", octet, 8 * byte) if byte else octet
        total = placed if total is None else code.op("or", total, placed)
    assert total is not None
    t.write(ins.dests[0], total)


def move(t: Translator, ins: Instruction) -> None:
    """`mov`, also between a register and its parts, and of a vector of registers."""
    bits = width_of(ins.types[-1])
    source, dest = ins.sources[0], ins.dests[0]
    if ins.vec > 1:
        elements = source.elements if isinstance(source, Vector) else ()
        parts = dest.elements if isinstance(dest, Vector) else ()
        if not len(elements) == len(parts) == ins.vec:
            raise UnsupportedError(ins.name)
        values = [t.read(element, bits) for element in elements]
        for into, value in zip(parts, values, strict=True):
            t.write(into, value)
    elif isinstance(source, Vector):
        part = part_width(bits, source)
        t.write(dest, t.pack([t.read(e, part) for e in source.elements]))
    else:
        t.write(dest, t.read(source, bits))


def select(t: Translator, ins: Instruction) -> None:
    bits = width_of(ins.types[-1])
    a, b = (t.read(s, bits) for s in ins.sources[:2])
    t.write(ins.dests[0], t.code.select(t.read(ins.sources[2], 1), a, b))


TABLE: dict[str, Translate] = {
    "and": bitwise,
    "or": bitwise,
    "xor": bitwise,
    "not": bitwise,
    "cnot": cnot,
    "lop3": lop3,
    "shl": shift,
    "shr": shift,
    "shf": funnel,
    "prmt": permute,
    "mov": move,
    "selp": select,
}
