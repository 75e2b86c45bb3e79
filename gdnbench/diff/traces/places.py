# SPDX-License-Identifier: Apache-2.0
"""Where an execution stands: its Python line, its PTX line, as plain JSON and in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdnbench.diff.traces.alignment import Run
from gdnbench.sim import Dim3

Place = dict[str, Any]


def place_of(run: Run, event: int) -> Place:
    """Of an event: file, line, function, text; opcode, PTX line and its text."""
    ins, site = run.instruction(event), run.site(event)
    return {
        "file": ins.file,
        "line": ins.file_line,
        "function": site.function,
        "text": run.source.line_text(ins.file or "", ins.file_line or 0),
        "instruction": ins.name,
        "ptx": " ".join(ins.text.split()),
        "ptx_line": ins.line,
    }


def describe_place(place: Place) -> str:
    """`inverse.py:123 in _merge`."""
    name = Path(place["file"]).name if place["file"] else "no Python line"
    function = f" in {place['function']}" if place["function"] else ""
    return f"{name}:{place['line']}{function}" if place["file"] else name


def cta_of(index: int, grid: Dim3) -> list[int]:
    """A CTA's coordinates, x first, from its number in the grid."""
    x, y = max(grid[0], 1), max(grid[1], 1)
    return [index % x, index // x % y, index // (x * y)]


def number(value: float) -> float | str:
    """JSON has no infinities and no NaN."""
    return value if abs(value) < float("inf") else str(value)
