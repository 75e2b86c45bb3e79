# SPDX-License-Identifier: Apache-2.0
"""Every way to spell an arithmetic instruction: the rows of the instruction table, spelled out.

A spelling with its operands' widths is a `Case`. Engines are asked one by one whether they take a case,
without running it: neither may take what the other refuses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from gdnbench.sim.compiler import kernel as compiler
from gdnbench.sim.compiler import runtime
from gdnbench.sim.compiler.blocks import find_blocks
from gdnbench.sim.compiler.emit import Library
from gdnbench.sim.compiler.layout import plan_layout
from gdnbench.sim.compiler.translator import Program, Translator
from gdnbench.sim.errors import Place, UnsupportedError
from gdnbench.sim.interpreter.program import entry
from gdnbench.sim.ptx.forms import VECTORS, Form, Owner, Row
from gdnbench.sim.ptx.instructions import ROWS
from gdnbench.sim.ptx.ir import Immediate, Instruction, Kernel, Register
from gdnbench.sim.ptx.literals import width_of

# Memory, collectives and control flow have operands of their own kinds and tests of their own.
_ELSEWHERE = """ld ldu st atom red ldmatrix stmatrix movmatrix mma wmma.load wmma.store wmma.mma shfl vote
    match redux elect activemask bar.warp.sync bra brx.idx call ret exit trap brkpt cvta isspacep mapa
    getctarank"""
OPCODES = tuple(
    op for op, rows in ROWS.items() if rows[0].traits.owner is Owner.ENGINE and op not in _ELSEWHERE.split()
)
_TABLE = compiler._table()
LOP3 = 0x6A  # a table in which all three operands count
_TABLE_PLACE = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One instruction: its spelling, and the widths of its registers."""

    form: Form
    mods: tuple[str, ...]
    types: tuple[str, ...]
    dest: int
    sources: tuple[int, ...]

    @property
    def op(self) -> str:
        return self.form.op

    @property
    def opcode(self) -> str:
        return ".".join((self.op, *self.mods, *self.types))

    def without(self, mod: str) -> Case | None:
        """The same with a suffix less; None if no row has it."""
        mods = tuple(m for m in self.mods if m != mod)
        for row in ROWS[self.op]:
            form = row.match(mods, self.types, 1)
            if form is not None and (self.dest, self.sources) in shapes(form, mods, self.types):
                return Case(form, mods, self.types, self.dest, self.sources)
        return None

    def text(self, dest: str, sources: list[str]) -> str:
        """PTX."""
        table = [str(LOP3)] if self.op == "lop3" else []
        operands = (dest, *sources[:_TABLE_PLACE], *table, *sources[_TABLE_PLACE:])
        return f"{self.opcode} {', '.join(operands)};"


def spellings(row: Row) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(suffixes, types) of each spelling of a row, vectors apart."""
    choices: list[list[tuple[str, ...]]] = []
    for group in row.groups:
        if group.many:
            raise ValueError(f"{row.text} has no end of spellings")
        spelled = list(itertools.product(*map(sorted, group.parts)))
        choices.append([*spelled, ()] if group.optional else spelled)
    for types in itertools.product(*map(sorted, row.types)):
        for chosen in itertools.product(*choices):
            yield tuple(itertools.chain(*chosen)), types


def shapes(form: Form, mods: tuple[str, ...], types: tuple[str, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """Widths of (destination, sources) that the form has, the table of lop3 apart."""
    first = _register(width_of(types[0]))
    dest = {"setp": 1, "testp": 1, "popc": 32, "clz": 32, "bfind": 32}.get(form.op, first)
    widths = [_register(width) for width in form.widths if width is not None]
    if form.op in ("setp", "set"):
        widths[2:] = [1 for _ in widths[2:]]
    if form.op == "lop3":
        del widths[_TABLE_PLACE]
        widths[_TABLE_PLACE:] = [1 for _ in widths[_TABLE_PLACE:]]
    if max(dest, *widths) > 64:
        return []
    fewest, most = form.sources
    counts = range(fewest, most + 1) if form.op != "lop3" else [len(widths)]
    return [(2 * dest if "wide" in mods else dest, tuple(widths[:count])) for count in counts]


def _register(width: int) -> int:
    return width if width == 1 else max(width, 16)


def cases(op: str) -> Iterator[Case]:
    """All that the table has of an opcode, except vectors of registers (test_move.py)."""
    for row in ROWS[op]:
        for mods, types in spellings(row):
            if not VECTORS.keys().isdisjoint(mods):
                continue
            form = row.match(mods, types, 1)
            assert form is not None, (row.text, mods, types)
            for dest, sources in shapes(form, mods, types):
                yield Case(form, mods, types, dest, sources)


def _instruction(case: Case) -> tuple[Instruction, list[Register]]:
    registers = [
        Register(i, f"%r{i}", "pred" if bits == 1 else f"b{bits}")
        for i, bits in enumerate((case.dest, *case.sources))
    ]
    sources: list[Register | Immediate] = [*registers[1:]]
    if case.op == "lop3":
        sources.insert(_TABLE_PLACE, Immediate(LOP3, str(LOP3)))
    place = Place(1, case.opcode)
    ins = Instruction(
        0, case.op, case.mods, case.types, 1, (registers[0],), tuple(sources), None, place, case.form
    )
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
    program = Program(kernel, blocks, plan_layout(kernel, blocks), Library(dict(runtime.DECLARATIONS)))
    try:
        Translator(program, blocks.blocks[0]).translate(_TABLE)
    except UnsupportedError:
        return False
    return True
