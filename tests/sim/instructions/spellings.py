"""Every way to spell an arithmetic instruction that the parser lets through: opcode, suffixes, types.

A spelling with its operands' widths is a `Case`. Engines are asked one by one whether they take a case,
without running it: neither may take what the other refuses.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from gdnbench.sim.compiler import kernel as compiler
from gdnbench.sim.compiler import runtime
from gdnbench.sim.compiler.blocks import find_blocks
from gdnbench.sim.compiler.emit import Library
from gdnbench.sim.compiler.layout import plan
from gdnbench.sim.compiler.translator import Program, Translator
from gdnbench.sim.errors import Place, UnsupportedError
from gdnbench.sim.interpreter.program import entry
from gdnbench.sim.ptx import isa
from gdnbench.sim.ptx.ir import Immediate, Instruction, Kernel, Register
from gdnbench.sim.ptx.literals import width_of

# Memory, collectives and control flow have operands of their own kinds and tests of their own.
_ELSEWHERE = isa._set(
    """ld ldu st atom red ldmatrix stmatrix movmatrix mma shfl vote match redux elect activemask bar.warp.sync
    bra ret exit trap brkpt cvta isspacep"""
)
OPCODES = tuple(
    op for op, form in isa.FORMS.items() if form.owner is isa.Owner.ENGINE and op not in _ELSEWHERE
)
TWO_TYPES = ("add", "sub", "fma", "set", "setp", "slct", "cvt", "dp4a", "dp2a")
_TABLE = compiler._table()
PAIRS = 100
LOP3 = 0x6A  # a table in which all three operands count


@dataclass(frozen=True, slots=True)
class Case:
    """One instruction: its spelling, and the widths of its registers."""

    op: str
    mods: tuple[str, ...]
    types: tuple[str, ...]
    dest: int
    sources: tuple[int, ...]

    @property
    def opcode(self) -> str:
        return ".".join((self.op, *self.mods, *self.types))

    def without(self, mod: str) -> Case:
        """The same with a suffix less."""
        mods = tuple(m for m in self.mods if m != mod)
        return Case(self.op, mods, self.types, self.dest, self.sources)

    def text(self, dest: str, sources: list[str]) -> str:
        """PTX."""
        table = [str(LOP3)] if self.op == "lop3" else []
        return f"{self.opcode} {', '.join((dest, *sources, *table))};"


def spellings(
    op: str, most: int, chosen: random.Random | None
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(suffixes, types) of `op` that the parser takes, with up to `most` suffixes; of some pairs of types
    only if there is somebody to choose them."""
    types: list[tuple[str, ...]] = [(name,) for name in sorted(isa.TYPES)]
    if op in TWO_TYPES:
        pairs = list(itertools.product(sorted(isa.TYPES), repeat=2))
        types += pairs if chosen is None else chosen.sample(pairs, PAIRS)
    choices = [
        mods for n in range(most + 1) for mods in itertools.combinations(sorted(isa.FORMS[op].mods), n)
    ]
    for names in types:
        for mods in choices:
            if isa.contradiction(op, names, mods, ()) is None:
                yield mods, names


def shapes(op: str, types: tuple[str, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """Widths of (destination, sources) that the opcode could have, right and wrong counts among them."""
    first, last = (max(width_of(name), 16) for name in (types[0], types[-1]))
    if max(first, last) > 64:
        return []
    if op == "setp":
        return [(1, (last, last)), (1, (last, last, 1)), (1, (last,))]
    if op == "testp":
        return [(1, (last,)), (1, (last, last))]
    if op == "set":
        return [(first, (last, last)), (first, (last, last, 1)), (first, (last,))]
    if types[0] == "pred":
        return [(1, (1,)), (1, (1, 1))]
    fixed: dict[str, tuple[int, tuple[int, ...]]] = {
        "selp": (first, (first, first, 1)),
        "slct": (first, (first, first, last)),
        "shl": (first, (first, 32)),
        "shr": (first, (first, 32)),
        "szext": (first, (first, 32)),
        "bfe": (first, (first, 32, 32)),
        "bfi": (first, (first, first, 32, 32)),
        "popc": (32, (first,)),
        "clz": (32, (first,)),
        "bfind": (32, (first,)),
        "lop3": (first, (first, first, first)),
    }
    if op in fixed:
        return [fixed[op]]
    if op == "cvt":
        return [(first, (last,) * n) for n in (1, 2, 3)]
    found = [(first, (first,) * n) for n in (1, 2, 3)]
    if op in ("mul", "mad") and first < 64:
        found.append((2 * first, (first, first, *((2 * first,) if op == "mad" else ()))))
    if op in ("add", "sub", "fma") and len(types) == 2:
        found.append((first, (*(last,) * (2 if op == "fma" else 1), first)))
    return found


def cases(op: str, most: int, chosen: random.Random | None = None) -> Iterator[Case]:
    """All that there is to ask about an opcode, or some of it."""
    for mods, types in spellings(op, most, chosen):
        for dest, sources in shapes(op, types):
            yield Case(op, mods, types, dest, sources)


def _instruction(case: Case) -> tuple[Instruction, list[Register]]:
    registers = [
        Register(i, f"%r{i}", "pred" if bits == 1 else f"b{bits}")
        for i, bits in enumerate((case.dest, *case.sources))
    ]
    sources = (*registers[1:], *([Immediate(LOP3, str(LOP3))] if case.op == "lop3" else []))
    place = Place(1, case.opcode)
    ins = Instruction(0, case.op, case.mods, case.types, 1, (registers[0],), sources, None, place)
    return ins, registers


def interpreted(case: Case) -> bool:
    """True if the interpreter takes it."""
    try:
        entry(_instruction(case)[0])
    except UnsupportedError:
        return False
    return True


def compiled(case: Case) -> bool:
    """True if the compiler takes it; nothing is made of its text."""
    ins, registers = _instruction(case)
    kernel = Kernel("k", (), tuple(registers), (), (ins,), 0, 0, None, None, None, None, None)
    blocks = find_blocks(kernel)
    program = Program(kernel, blocks, plan(kernel, blocks), Library(dict(runtime.DECLARATIONS)))
    try:
        Translator(program, blocks.blocks[0]).translate(_TABLE)
    except UnsupportedError:
        return False
    return True
