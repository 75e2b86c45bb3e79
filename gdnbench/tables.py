# SPDX-License-Identifier: Apache-2.0
"""Tables of text, made as narrow as a terminal and coloured where the caller says so.

    print(text_table(("#", "layer", "sizes"), rows, right=("#",), fit=Fit(wrap=("sizes",)), width=80))

A table that is wider than `width` becomes narrower in this order, and in no step loses a figure unseen:

1. cells of the columns `wrap` go on in further lines;
2. the columns `drop` are left out, and a line below the table names them;
3. cells of the columns `cut` lose their beginning or end to an ellipsis;
4. columns go on in a second table below the first, which repeats the columns that say what a row is.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gdnbench.printable import printable

GAP = "  "
WRAPPED = 16
"""Columns that a wrapped cell has at least; words that are longer set a larger width."""
LONGEST_WORD = 32
CUT = 12
"""Columns that a cut cell keeps at least, with the ellipsis."""


class Style(Enum):
    """What a cell says, and the SGR parameters (ECMA-48, 8.3.117) of its colour."""

    GOOD = "32"
    BAD = "1;31"
    UNDECIDED = "33"
    ASIDE = "2"
    WORST = "1;7;31"


@dataclass(frozen=True, slots=True)
class Styled:
    """A cell with a style."""

    text: object
    style: Style

    def __str__(self) -> str:
        return str(self.text)


class End(Enum):
    """Which part of a cell that is cut stays."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Fit:
    """How a table may become narrower, by headers; see the module. `drop` in the order of leaving out."""

    wrap: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    cut: Mapping[str, End] = field(default_factory=dict)


Paint = Callable[[str, Style], str]


@dataclass(slots=True)
class _Column:
    """`cells`: the header, then one for each row; the lines of a cell are separated by line feeds."""

    header: str
    cells: list[str]
    styles: list[Style | None]
    right: bool
    width: int

    def set_cells(self, cells: list[str]) -> None:
        self.cells = cells
        self.width = max(cell_width(line) for cell in cells for line in cell.split("\n"))

    def wrap(self, width: int) -> None:
        """At most `width` columns; words that are longer are broken."""
        self.set_cells(["\n".join(_lines(cell, width)) for cell in self.cells])

    def aligned(self, paint: Paint | None) -> list[str]:
        """The cells, all of one line, as wide as the column."""
        if paint is None and all(map(str.isascii, self.cells)):
            return [cell.rjust(self.width) if self.right else cell.ljust(self.width) for cell in self.cells]
        return [self.part(row, 0, paint) for row in range(len(self.cells))]

    def part(self, row: int, number: int, paint: Paint | None) -> str:
        """Line `number` of a cell, or blanks."""
        lines, style = self.cells[row].split("\n"), self.styles[row]
        text = lines[number] if number < len(lines) else ""
        blank = " " * (self.width - cell_width(text))
        if paint is not None and style is not None and text:
            text = paint(text, style)
        return blank + text if self.right else text + blank


def text_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    right: Sequence[str] = (),
    *,
    fit: Fit | None = None,
    width: int | None = None,
    paint: Paint | None = None,
    ellipsis: str = "…",
) -> str:
    """Columns under their headers, two spaces apart; those named in `right` are aligned to the right. Cells
    become `printable`. `width` None: as wide as it is. `paint` colours a text; None: no colours."""
    columns = []
    for header, cells in zip(headers, zip(headers, *rows, strict=True), strict=True):
        styles = [cell.style if isinstance(cell, Styled) else None for cell in cells]
        texts = list(map(printable, cells))
        width_of = max(map(cell_width, texts))
        columns.append(_Column(header, texts, styles, header in right, width_of))
    left_out: list[str] = []
    if width is not None:
        left_out = _narrowed(columns, fit or Fit(), width, ellipsis)
    blocks = [columns] if width is None else _blocks(columns, width)
    text = "\n\n".join(_drawn(block, paint) for block in blocks)
    if left_out:
        text += f"\nnot shown at {width} columns: {', '.join(left_out)}"
    return text


def cell_width(text: str) -> int:
    """Columns that `text` takes on a terminal: 2 for East Asian wide characters, 0 for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """`text` in lines of at most `width` columns, broken at spaces; all but the first begin with `indent`. A
    longer word has a line to itself."""
    if cell_width(text) <= width:
        return [text]
    lead = text[: len(text) - len(text.lstrip(" "))]
    lines, line = [], lead
    for word in text.split():
        more = word if not line.strip() else f" {word}"
        if line.strip() and cell_width(line) + cell_width(more) > width:
            lines.append(line)
            line, more = indent, word
        line += more
    return [*lines, line]


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _narrowed(columns: list[_Column], fit: Fit, width: int, ellipsis: str) -> list[str]:
    """Makes `columns` narrower until they fit, as far as `fit` allows, and returns those left out."""
    left_out = []
    _wrap([column for column in columns if column.header in fit.wrap], _total(columns) - width)
    for header in fit.drop:
        if _total(columns) <= width:
            break
        for column in [one for one in columns if one.header == header]:
            columns.remove(column)
            left_out.append(header)
    by_width = sorted((one for one in columns if one.header in fit.cut), key=lambda one: -one.width)
    for column in by_width:
        excess = _total(columns) - width
        if excess > 0:
            _cut(column, max(min(CUT, column.width), column.width - excess), fit.cut[column.header], ellipsis)
    return left_out


def _wrap(columns: Sequence[_Column], excess: int) -> None:
    for column in sorted(columns, key=lambda one: -one.width):
        if excess <= 0:
            return
        longest = max((cell_width(word) for cell in column.cells for word in cell.split()), default=0)
        least = max(WRAPPED, min(longest, LONGEST_WORD), cell_width(column.header))
        before = column.width
        if max(least, before - excess) < before:
            column.wrap(max(least, before - excess))
            excess -= before - column.width


def _lines(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width`, with longer words in several."""
    found = []
    for line in wrapped(text, width):
        each = width if line.isascii() else max(1, width // 2)
        whole = cell_width(line) <= width
        found += [line] if whole else [line[start : start + each] for start in range(0, len(line), each)]
    return found


def _cut(column: _Column, width: int, keep: End, ellipsis: str) -> None:
    column.set_cells([shortened(cell, width, keep, ellipsis) for cell in column.cells])


def shortened(text: str, width: int, keep: End = End.FIRST, ellipsis: str = "…") -> str:
    """`text` in at most `width` columns; what is left out is an ellipsis."""
    if cell_width(text) <= width:
        return text
    room = width - len(ellipsis)
    if keep is End.LAST:
        while cell_width(text) > room:
            text = text[1:]
        return ellipsis + text
    while cell_width(text) > room:
        text = text[:-1]
    return text + ellipsis


def _blocks(columns: list[_Column], width: int) -> list[list[_Column]]:
    """`columns` in tables of at most `width`, each with those that say what a row is."""
    if _total(columns) <= width or len(columns) < 2:
        return [columns]
    number = next((n for n, one in enumerate(columns) if n and one.right), 1)
    keys = columns[:number]
    if _total(keys) > width // 2:
        keys = columns[:1]
    blocks, block = [], list(keys)
    for column in columns[len(keys) :]:
        if len(block) > len(keys) and _total([*block, column]) > width:
            blocks.append(block)
            block = list(keys)
        room = width - _total([*keys, column]) + column.width
        if room < column.width and not column.right and room >= CUT:
            column.wrap(room)
        block.append(column)
    return [*blocks, block]


def _drawn(columns: Sequence[_Column], paint: Paint | None) -> str:
    if not any("\n" in cell for column in columns for cell in column.cells):
        rows = zip(*(column.aligned(paint) for column in columns), strict=True)
        return "\n".join(GAP.join(row).rstrip() for row in rows)
    lines = []
    for row in range(len(columns[0].cells)):
        height = 1 + max(column.cells[row].count("\n") for column in columns)
        for number in range(height):
            lines.append(GAP.join(column.part(row, number, paint) for column in columns).rstrip())
    return "\n".join(lines)
