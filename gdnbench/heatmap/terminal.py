# SPDX-License-Identifier: Apache-2.0
"""Heatmaps of errors by chunk and head as text, for a terminal or a pipe.

The scale is logarithmic from the limit up, so that wrong heads stand out from imprecise ones. A terminal gets
colours; an encoding without block characters gets ASCII.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from gdnbench.heatmap.cells import Cells, cells_of, max_pooled
from gdnbench.judge.result import Side, TensorResult
from gdnbench.printable import printable
from gdnbench.report.render import worst_by_tensor
from gdnbench.report.report import RecordResult, Report
from gdnbench.tables import Style

MOST_TENSORS = 12
"""Maximum number of tensors drawn for one report."""

MOST_ROWS = 32
NARROWEST = 40
"""The minimum width that is used, in columns."""

BLOCKS, ASCII = "·▁▂▃▄▅▆▇█!", ".-1234567!"
"""Characters for: no error; up to the limit; seven steps above it; not finite on one side only."""

STEPS = 7
WRONG = 3
"""The step from which on a head is drawn as wrong: ten times its limit where a step is half a decade."""

Paint = Callable[[str, Style], str]


@dataclass(frozen=True, slots=True)
class Scale:
    """The characters of cells, and the ascending bounds between them: the limit, and those of the steps."""

    characters: str
    bounds: tuple[float, ...]

    @classmethod
    def for_cells(cls, cells: Cells, characters: str) -> Scale:
        """Steps of half a decade; of a whole one where those would not reach the largest error."""
        finite = cells.values[np.isfinite(cells.values)]
        largest = float(finite.max(initial=0.0))
        decades = 0.5 if largest <= cells.limit * 10 ** (STEPS / 2) else 1.0
        return cls(characters, tuple(cells.limit * 10 ** (decades * step) for step in range(STEPS)))

    def level(self, value: float) -> int:
        """The position of a cell's character; 1 is up to the limit."""
        if math.isinf(value):
            return len(self.characters) - 1
        return 0 if value == 0 else 1 + sum(value > bound for bound in self.bounds)

    def style(self, value: float) -> Style:
        level = self.level(value)
        if level <= 1:
            return Style.ASIDE
        return Style.UNDECIDED if level < 1 + WRONG else Style.BAD

    @property
    def legend(self) -> str:
        zero, within, *above, wrong = list(self.characters)
        most = [f"{mark} {_short(bound)}" for mark, bound in zip(above, self.bounds[1:], strict=False)]
        parts = [f"{zero} 0", f"{within} up to {_short(self.bounds[0])}", *most, f"{above[-1]} more"]
        return "  ".join([*parts, f"{wrong} not finite"])


def _short(value: float) -> str:
    """Two digits: `0.0039`, `3.2`, `320`, `1e+05`."""
    return f"{float(f'{value:.2g}'):.0f}" if 100 <= value < 1e5 else f"{value:.2g}"


def heatmaps(report: Report, width: int, characters: str = BLOCKS, paint: Paint | None = None) -> str:
    """Heatmaps at most `width` characters wide: of the failing tensors, or else of those with the largest
    errors. `paint` colours a text; None: no colours.

    One line if no tensor has an error. The report's results must have grids.
    """
    found = list(_chosen(report))
    if not found:
        return "heatmap: no element differs of any tensor that could be compared\n"
    parts = [
        "\n".join(_heatmap(record, tensor, width, characters, paint))
        for record, tensor in found[:MOST_TENSORS]
    ]
    if len(found) > MOST_TENSORS:
        parts.append(f"heatmaps of {len(found) - MOST_TENSORS} more tensors left out")
    return "\n\n".join(parts) + "\n"


def _chosen(report: Report) -> Iterator[tuple[RecordResult, TensorResult]]:
    failing = [
        (record, tensor) for record in report.records for tensor in record.tensors if not tensor.passed
    ]
    for record, tensor in failing or worst_by_tensor(report.records):
        if tensor.grid is not None and tensor.unequal:
            yield record, tensor


def _heatmap(
    record: RecordResult, tensor: TensorResult, width: int, characters: str, paint: Paint | None
) -> Iterator[str]:
    assert tensor.grid is not None
    cells = cells_of(tensor.grid, tensor.dtype)
    scale = Scale.for_cells(cells, characters)
    heads, regions = cells.values.shape
    margin = len("head ") + len(str(max(0, heads - 1))) + 1
    values, down, across = max_pooled(cells.values, MOST_ROWS, max(width, NARROWEST) - margin)
    side = "" if tensor.side is Side.KERNEL else f", {tensor.side}"
    yield f"{printable(f'record {record.label}')}: {printable(tensor.tensor)}{side}: {cells.label}, log scale"
    yield scale.legend
    yield from _marks(cells, across, margin, values.shape[1])
    worst = cells.worst()
    at = None if worst is None else (worst[0] // down, worst[1] // across)
    for row, line in enumerate(values):
        marked = at[1] if at is not None and at[0] == row else None
        yield f"head {row * down:<{margin - 5}}" + _row(line, scale, marked, paint)
    if down > 1 or across > 1:
        yield (
            f"a character is the largest of {down} head{'s' * (down > 1)} x {across}"
            f" {cells.column}{'s' * (across > 1)}, of {heads} x {regions}"
        )
    if cells.left_out:
        yield f"{cells.left_out} {cells.column}s of smaller errors left out"
    yield _worst(tensor, cells)


def _row(values: np.ndarray, scale: Scale, worst: int | None, paint: Paint | None) -> str:
    """The characters of a line of cells; the `worst` of all is inverse where there are colours."""
    marks = [scale.characters[scale.level(value)] for value in values]
    if paint is None:
        return "".join(marks)
    styles = [scale.style(value) for value in values]
    if worst is not None and scale.level(values[worst]) > 1:
        styles[worst] = Style.WORST
    runs = groupby(zip(styles, marks, strict=True), key=lambda one: one[0])
    return "".join(paint("".join(mark for _, mark in run), style) for style, run in runs)


def _marks(cells: Cells, across: int, margin: int, columns: int) -> Iterator[str]:
    """The sequence numbers above the columns at which sequences begin, where there is room."""
    line = [" "] * columns
    after = 0
    for column in cells.sequences:
        number, at = str(cells.regions[column].sequence), column // across
        if at >= after and at + len(number) <= columns:
            line[at : at + len(number)] = number
            after = at + len(number) + 1
    yield f"{'seq.':<{margin}}" + "".join(line).rstrip()


def _worst(tensor: TensorResult, cells: Cells) -> str:
    assert tensor.grid is not None
    at = cells.worst()
    if at is None:
        return "no error anywhere"
    head, column = at
    index = ", ".join(map(str, tensor.grid.worst[column, head]))
    x, y = (float(values[column, head]) for values in (tensor.grid.x, tensor.grid.y))
    value = cells.values[at]
    largest = "not finite" if math.isinf(value) else f"{value:.3g}"
    return f"largest: {largest} in {cells.place(head, column)}; there [{index}] is {x:.6g} against {y:.6g}"
