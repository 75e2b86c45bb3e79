"""Printing: plain aligned tables, the same in a pipe and on a terminal; a progress bar on stderr."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

UNWRAPPED = 100_000  # columns; a result is never wrapped to the width of somebody's terminal


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> str:
    """Columns under their headers, two spaces apart; those named in `right` are aligned to the right."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for header in headers:
        grid.add_column(header, justify="right" if header in right else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*(str(cell) for cell in row))
    return plain(grid)


def plain(content: RenderableType) -> str:
    """Anything rich can draw, as text that is not wrapped, without colours and without trailing blanks."""
    page = io.StringIO()
    Console(file=page, width=UNWRAPPED, markup=False, highlight=False, emoji=False).print(content)
    return "\n".join(line.rstrip() for line in page.getvalue().rstrip("\n").split("\n"))


def print_wide(content: RenderableType) -> None:
    """`content` on stdout, never wrapped."""
    print(plain(content))


def print_json(value: Any) -> None:
    """One JSON document on stdout. Strict JSON has no NaN and no infinity: they are text, "nan" or "-inf"."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def size(count: int) -> str:
    """Bytes as people write them: 1.5 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr if that is a terminal; the yielded function moves it to (done, total)."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
