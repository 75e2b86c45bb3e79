# SPDX-License-Identifier: Apache-2.0
"""Infers the number format of each register of a kernel. PTX declares only a register's width.

A typed opcode determines the formats of its operands. An untyped move, selection or shuffle relates two
registers: they have the same format, or one is a part of the other. Loads, stores and bitwise logic determine
nothing. A register without any information contains bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdnbench.sim.ptx.forms import Access
from gdnbench.sim.ptx.ir import Instruction, Kernel, Operand, Register, Vector

FLOATS = ("f64", "f32", "f16", "bf16", "f32x2", "f16x2", "bf16x2", "f16x4", "bf16x4")
BITS = "bits"
_HALF = {"f32x2": "f32", "f16x2": "f16", "bf16x2": "bf16", "f16x4": "f16x2", "bf16x4": "bf16x2"}
_PAIR = {half: pair for pair, half in _HALF.items()}


def register_formats(kernel: Kernel) -> dict[int, str]:
    """The format by register index: one of `FLOATS`, an integer type, "pred", or `BITS`. If uses disagree, a
    floating-point format wins."""
    known: dict[int, str] = {}
    equal: list[tuple[int, int]] = []
    packed: list[tuple[int, int]] = []  # (whole, half)
    for ins in kernel.instructions:
        for register, kind in _said(ins):
            _learn(known, register, kind)
        for first, second, parts in _linked(ins):
            (packed if parts else equal).append((first, second))
    changed = True
    while changed:
        changed = False
        for first, second in equal:
            changed |= _share(known, first, second)
        for whole, half in packed:
            changed |= _learn_index(known, whole, _PAIR.get(known.get(half, ""), BITS))
            changed |= _learn_index(known, half, _HALF.get(known.get(whole, ""), BITS))
    return {
        register.index: "pred" if register.bits == 1 else known.get(register.index, BITS)
        for register in kernel.registers
    }


def _said(ins: Instruction) -> Iterator[tuple[Register, str]]:
    """Registers with the format that the opcode gives them."""
    if not ins.types:
        return
    if ins.form.fragment:
        matrix = ins.written() if ins.dests else _registers(ins.sources[1])
        yield from (
            (register, _fragment(ins.types[0])) for register in matrix if isinstance(register, Register)
        )
        return
    if ins.form.cls == "mma.sync":
        types = ins.types if len(ins.types) > 2 else (ins.types[0], "f16", "f16", ins.types[1])  # wmma of f16
        kinds = [_fragment(kind) for kind in types]
        yield from ((register, kinds[0]) for register in ins.written() if isinstance(register, Register))
        for source, kind in zip(ins.sources, kinds[1:], strict=False):
            yield from ((register, kind) for register in _registers(source))
        return
    if (ins.form.moves or ins.form.access is not Access.NONE) and ins.types[-1] not in FLOATS:
        return  # the type is no more than a width
    dests, sources = ins.types[0], ins.types[-1]
    if ins.op in ("setp", "testp"):
        dests = "pred"
    for register in ins.written():
        if isinstance(register, Register):
            yield register, dests
    for source in ins.sources:
        yield from ((register, sources) for register in _registers(source))


def _fragment(kind: str) -> str:
    """Registers of a matrix fragment hold two elements of 16 bits."""
    return {"f16": "f16x2", "bf16": "bf16x2", "tf32": "f32", "f32": "f32", "f64": "f64"}.get(kind, BITS)


def _linked(ins: Instruction) -> Iterator[tuple[int, int, bool]]:
    """Pairs of registers that hold the same, or (whole, half) of which the second is a part."""
    if not ins.form.whole:
        return
    dests = [dest for dest in ins.dests if isinstance(dest, Register | Vector)]
    if not dests and ins.dests:
        dests = [register for register in [next(ins.written())] if isinstance(register, Register)]
    for dest in dests:
        for index in ins.form.moves:
            source = ins.sources[index]
            if isinstance(dest, Register) and isinstance(source, Register):
                yield dest.index, source.index, False
            elif isinstance(dest, Register) and isinstance(source, Vector) and len(source.elements) == 2:
                yield from ((dest.index, half.index, True) for half in _registers(source))
            elif isinstance(dest, Vector) and isinstance(source, Register) and len(dest.elements) == 2:
                yield from ((source.index, half.index, True) for half in _registers(dest))


def _registers(operand: Operand) -> Iterator[Register]:
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Vector):
        yield from (element for element in operand.elements if isinstance(element, Register))


def _learn(known: dict[int, str], register: Register, kind: str) -> None:
    if kind not in FLOATS or register.bits == _bits(kind):
        _learn_index(known, register.index, kind)


def _bits(kind: str) -> int:
    name, _, count = kind.partition("x")
    return int(name.removeprefix("b").removeprefix("f")) * int(count or 1)


def _learn_index(known: dict[int, str], index: int, kind: str) -> bool:
    before = known.get(index)
    if kind not in FLOATS and (kind[0] == "b" or before is not None):
        return False  # b32 says no more than the register's width
    if before in FLOATS:
        return False
    known[index] = kind
    return True


def _share(known: dict[int, str], first: int, second: int) -> bool:
    changed = False
    for one, other in ((first, second), (second, first)):
        if (kind := known.get(other)) is not None:
            changed |= _learn_index(known, one, kind)
    return changed
