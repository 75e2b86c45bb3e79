# SPDX-License-Identifier: Apache-2.0
"""Printing: aligned tables, plain in a pipe and as wide as a terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gdnbench.cli.progress import Bar as Bar
from gdnbench.cli.progress import progress as progress
from gdnbench.cli.terminal import has_colours, painted, shown_line, stdout_width
from gdnbench.printable import printable
from gdnbench.tables import Fit, Style, Styled, text_table

VERDICT_COLUMNS = ("verdict", "works", "bits", "status")
VERDICTS = {
    **dict.fromkeys(("pass", "yes", "equal", "right", "faster"), Style.GOOD),
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
    *,
    colours: bool = True,
) -> str:
    """`gdnbench.tables.text_table` for stdout: on a terminal it fits the width, and verdicts have colours,
    unless the text is kept too."""
    paint = painted if colours and has_colours() else None
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
