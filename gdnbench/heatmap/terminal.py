"""Heatmaps of errors by chunk and head as text, for a terminal or a pipe.

They have no colours, and use ASCII if the encoding has no block characters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gdnbench.heatmap.cells import Cells, cells_of, max_pooled
from gdnbench.judge.result import Side, TensorResult
from gdnbench.printable import printable
from gdnbench.report.render import worst_by_tensor
from gdnbench.report.report import RecordResult, Report

MOST_TENSORS = 12
"""Maximum number of tensors drawn for one report."""

MOST_ROWS = 32
NARROWEST = 40
"""The minimum width that is used, in columns."""

BLOCKS, ASCII = "·░▒▓█!", ".:+*#!"
"""Characters for: no error; up to each of three bounds; beyond; not finite on one side only."""

OF_TORCH = (1.0, 2.0, 10.0)
"""Bounds of errors relative to torch's."""

OF_LARGEST = (0.01, 0.1, 0.5)
"""Bounds of errors relative to exact values, as parts of the largest."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The characters of cells, and the ascending bounds between them."""

    characters: str
    bounds: tuple[float, ...]

    @classmethod
    def for_cells(cls, cells: Cells, characters: str) -> Scale:
        if cells.of_torch:
            return cls(characters, OF_TORCH)
        finite = cells.values[np.isfinite(cells.values)]
        largest = float(finite.max(initial=0.0))
        return cls(characters, tuple(largest * part for part in OF_LARGEST))

    def character(self, value: float) -> str:
        if math.isinf(value):
            return self.characters[-1]
        return self.characters[0 if value == 0 else 1 + sum(value > bound for bound in self.bounds)]

    @property
    def legend(self) -> str:
        zero, *within, beyond, wrong = list(self.characters)
        parts = [f"{mark} up to {bound:.2g}" for mark, bound in zip(within, self.bounds, strict=True)]
        return "  ".join([f"{zero} 0", *parts, f"{beyond} more", f"{wrong} not finite"])


def heatmaps(report: Report, width: int, characters: str = BLOCKS) -> str:
    """Heatmaps at most `width` characters wide: of the failing tensors, or else of those with the largest
    errors.

    One line if no tensor has an error. The report's results must have grids.
    """
    found = list(_chosen(report))
    if not found:
        return "heatmap: no element differs of any tensor that could be compared\n"
    parts = [
        "\n".join(_heatmap(record, tensor, width, characters)) for record, tensor in found[:MOST_TENSORS]
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


def _heatmap(record: RecordResult, tensor: TensorResult, width: int, characters: str) -> Iterator[str]:
    assert tensor.grid is not None
    cells = cells_of(tensor.grid, tensor.dtype)
    scale = Scale.for_cells(cells, characters)
    heads, regions = cells.values.shape
    margin = len("head ") + len(str(max(0, heads - 1))) + 1
    values, down, across = max_pooled(cells.values, MOST_ROWS, max(width, NARROWEST) - margin)
    side = "" if tensor.side is Side.KERNEL else f", {tensor.side}"
    yield f"{printable(f'record {record.label}')}: {printable(tensor.tensor)}{side}: {cells.label}"
    yield scale.legend
    yield from _marks(cells, across, margin, values.shape[1])
    for row, line in enumerate(values):
        yield f"head {row * down:<{margin - 5}}" + "".join(map(scale.character, line))
    if down > 1 or across > 1:
        yield (
            f"a character is the largest of {down} head{'s' * (down > 1)} x {across}"
            f" {cells.column}{'s' * (across > 1)}, of {heads} x {regions}"
        )
    if cells.left_out:
        yield f"{cells.left_out} {cells.column}s of smaller errors left out"
    yield _worst(tensor, cells)


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
