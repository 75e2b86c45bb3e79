"""Printing: plain aligned tables, the same in a pipe and on a terminal; a progress bar on stderr."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from gdnbench.printable import printable, printable_lines

INTERRUPTED = 128 + 2  # as a shell says it of a program that SIGINT ended
UNWRAPPED = 100_000  # columns; a result is never wrapped to the width of somebody's terminal


def print_line(text: object) -> None:
    """One line on stdout, whatever `text` holds: it may quote a store."""
    print(printable(text))


def print_lines(text: object) -> None:
    """Lines on stdout, which end where `text` has a line feed; each as `print_line` prints it."""
    print(printable_lines(text))


def print_note(text: object) -> None:
    """One line on stderr, whatever `text` holds."""
    print(printable(text), file=sys.stderr)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> str:
    """Columns under their headers, two spaces apart; those named in `right` are aligned to the right."""
    # Not rich's own table, which takes half a millisecond a row; by column, as stores have many records.
    columns = [list(map(printable, column)) for column in zip(headers, *rows, strict=True)]
    aligned = [_aligned(cells, header in right) for header, cells in zip(headers, columns, strict=True)]
    return "\n".join("  ".join(row).rstrip() for row in zip(*aligned, strict=True))


def _aligned(cells: Sequence[str], to_right: bool) -> list[str]:
    """The cells of a column, made as wide as the widest of them is on a terminal."""
    widths = [len(cell) if cell.isascii() else cell_len(cell) for cell in cells]
    widest = max(widths)
    if to_right:
        return [" " * (widest - width) + cell for cell, width in zip(cells, widths, strict=True)]
    return [cell + " " * (widest - width) for cell, width in zip(cells, widths, strict=True)]


def plain(content: RenderableType) -> str:
    """Anything rich can draw, as text that is not wrapped, without colours and without trailing blanks. It
    does nothing to a terminal."""
    page = io.StringIO()
    console = Console(file=page, width=UNWRAPPED, markup=False, highlight=False, emoji=False)
    console.print(_without_line_ends(content))
    return "\n".join(printable(line.rstrip()) for line in page.getvalue().rstrip("\n").split("\n"))


def _without_line_ends(content: RenderableType) -> RenderableType:
    """`content`, each `Text` of which is one line: a line feed in the name of a layer begins no other."""
    if isinstance(content, Group):
        return Group(*map(_without_line_ends, content.renderables))
    if isinstance(content, Text):
        return Text(printable(content.plain), no_wrap=content.no_wrap, overflow=content.overflow)
    return content


def print_wide(content: RenderableType) -> None:
    """`content` on stdout, never wrapped; rules as hyphens where its encoding has no others."""
    text, encoding = plain(content), sys.stdout.encoding or "ascii"
    if not encodable(text, encoding):
        text = text.replace("─", "-").encode(encoding, "backslashreplace").decode(encoding)
    print(text)


def encodable(text: str, encoding: str) -> bool:
    """Whether `encoding` has every character of `text`."""
    try:
        text.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def print_json(value: Any) -> None:
    """One JSON document on stdout. Strict JSON has no NaN and no infinity: they are text, "nan" or "-inf"."""
    print_json_text(json.dumps(_finite(value), indent=2, allow_nan=False, default=str))


def print_json_text(text: str) -> None:
    """JSON on stdout. What `json` leaves as it is does nothing to a terminal, but for the control DEL."""
    print(text.replace("\x7f", "\\u007f"))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


class Bar:
    """A bar on stderr; called, it moves to (done, total)."""

    def __init__(self, bar: Progress, what: str) -> None:
        self._bar = bar
        self._what = what
        self._task = bar.add_task(what, total=None)

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def say(self, text: str) -> None:
        """Something else that goes on, beside what the bar is of."""
        self._bar.update(self._task, description=f"{self._what}, {printable(text)}")


@contextmanager
def progress(what: str) -> Iterator[Bar]:
    """A bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Bar(bar, what)
