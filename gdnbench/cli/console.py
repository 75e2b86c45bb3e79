"""Printing: aligned tables, plain in a pipe and as wide as a terminal; a progress bar on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gdnbench.cli.terminal import has_colours, painted, shown_line, stdout_width
from gdnbench.printable import printable
from gdnbench.tables import Fit, Style, Styled, text_table

INTERRUPTED = 128 + 2  # as a shell says it of a program that SIGINT ended

VERDICT_COLUMNS = ("verdict", "works", "bits", "status")
VERDICTS = {
    **dict.fromkeys(("pass", "yes", "equal", "faster"), Style.GOOD),
    **dict.fromkeys(("FAIL", "differ", "slower"), Style.BAD),
    **dict.fromkeys(("unsupported", "not run", "interrupted", "no", "unfinished"), Style.UNDECIDED),
    "shown": Style.ASIDE,
}
"""The colours of what tables say in those columns."""


def print_line(text: object) -> None:
    """One line on stdout, whatever `text` holds: it may quote a store. On a terminal it fits the width."""
    print(shown_line(str(text)))


def print_lines(text: object) -> None:
    """Lines on stdout, which end where `text` has a line feed; each as `print_line` prints it."""
    for line in str(text).split("\n"):
        print(shown_line(line))


def print_note(text: object) -> None:
    """One line on stderr, whatever `text` holds."""
    print(printable(text), file=sys.stderr)


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    right: Sequence[str] = (),
    fit: Fit | None = None,
) -> str:
    """`gdnbench.tables.text_table` for stdout: on a terminal it fits the width, and verdicts have colours."""
    paint = painted if has_colours() else None
    if paint is not None:
        rows = [[_judged(header, cell) for header, cell in zip(headers, row, strict=True)] for row in rows]
    ellipsis = "…" if encodable("…", sys.stdout.encoding or "ascii") else "..."
    return text_table(headers, rows, right, fit=fit, width=stdout_width(), paint=paint, ellipsis=ellipsis)


def _judged(header: str, cell: object) -> object:
    """A cell with the colour of its verdict, if its column holds verdicts and it has none yet."""
    if header not in VERDICT_COLUMNS or isinstance(cell, Styled):
        return cell
    style = VERDICTS.get(str(cell))
    return cell if style is None else Styled(cell, style)


def print_wide(text: str) -> None:
    """Lines on stdout, of which those that hold characters that its encoding lacks have escapes."""
    encoding = sys.stdout.encoding or "ascii"
    if not encodable(text, encoding):
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    print_lines(text)


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
