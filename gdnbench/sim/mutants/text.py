# SPDX-License-Identifier: Apache-2.0
"""The text ranges of a kernel's instructions, and edits that keep every line's number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gdnbench.sim.ptx import isa
from gdnbench.sim.ptx.ir import Instruction, Kernel

_SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\]|\\.)*"', re.DOTALL)
_OPCODE = re.compile(r"(?<![\w.%$:@])[a-z][\w.:]*")
_GUARD = re.compile(r"@\s*!?\s*[\w%$.]+\s*\Z")


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction in the text: the range [start, stop), with its guard and without its semicolon, which
    is at `stop`. `opcode` and `operands` are ranges too."""

    start: int
    stop: int
    opcode: tuple[int, int]
    operands: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces [start, stop) by `text`, which contains no line breaks."""

    start: int
    stop: int
    text: str


def statements(text: str, kernel: Kernel) -> list[Statement]:
    """The statement of each instruction, by pc."""
    plain = _SKIPPED.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    starts = [0, *(found.end() for found in re.finditer("\n", plain))]
    found: list[Statement] = []
    position = 0
    for ins in kernel.instructions:
        statement = _statement(plain, ins, max(position, starts[ins.place.line - 1]), position)
        found.append(statement)
        position = statement.stop + 1
    return found


def _statement(plain: str, ins: Instruction, position: int, before: int) -> Statement:
    """The statement of `ins`, whose opcode is the first of its kind from `position` on."""
    for opcode in _OPCODE.finditer(plain, position):
        if isa.split(opcode.group())[0] == ins.op:
            break
    else:
        raise AssertionError(f"{ins.name} is not on its line {ins.place.line}")
    stop = plain.index(";", opcode.end())
    guard = _GUARD.search(plain[before : opcode.start()])
    start = before + guard.start() if guard is not None else opcode.start()
    return Statement(start, stop, opcode.span(), tuple(_operands(plain, opcode.end(), stop)))


def _operands(plain: str, start: int, stop: int) -> Iterable[tuple[int, int]]:
    """The operands between two positions, without surrounding blanks."""
    depth, begin = 0, start
    for at in range(start, stop + 1):
        sign = plain[at]
        depth += (sign in "[{(") - (sign in "]})")
        if at == stop or (sign == "," and not depth):
            operand = plain[begin:at]
            left = len(operand) - len(operand.lstrip())
            if operand.strip():
                yield begin + left, begin + len(operand.rstrip())
            begin = at + 1


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """`text` with all edits applied. The edits must not overlap."""
    pieces: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.stop)):
        pieces += [text[position : edit.start], edit.text]
        position = edit.stop
    return "".join([*pieces, text[position:]])
