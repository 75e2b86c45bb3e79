# SPDX-License-Identifier: Apache-2.0
"""What `replay` and `diff` share: how close is close enough, and how the verdict is printed."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gdnbench.cli.console import encodable, print_json_text, print_lines, print_wide, table
from gdnbench.cli.terminal import has_colours, painted
from gdnbench.errors import BadInputError
from gdnbench.whole_file import replace_message

HEATMAP = "Draw errors by chunk and head on a log scale: of failing tensors, else the largest errors."

if TYPE_CHECKING:
    from gdnbench.report.report import DiffReport, ReplayReport


def tolerance(text: str | None) -> tuple[float, float] | None:
    """ "1e-3" -> (1e-3, 0), "1e-3,1e-2" -> (absolute, relative); BadInputError for anything else."""
    if text is None:
        return None
    try:
        absolute, relative = (float(part) for part in (text if "," in text else f"{text},0").split(","))
    except ValueError:
        raise BadInputError(f"--tol {text!r} is not ABS or ABS,REL, such as 1e-3 or 1e-3,1e-2") from None
    if not math.isfinite(absolute) or not math.isfinite(relative):
        raise BadInputError(f"--tol {text} is not finite; give a number such as 1e-3")
    return absolute, relative


def factors(texts: list[str] | None) -> tuple[float | None, dict[str, float]]:
    """`["2", "state=4"]` -> (2.0, {"state": 4.0}); BadInputError for anything else."""
    default = None
    by_tensor: dict[str, float] = {}
    for text in texts or ():
        name, named, value = text.rpartition("=")
        try:
            factor = float(value)
        except ValueError:
            raise BadInputError(f"--k {text!r} is not a number or TENSOR=NUMBER") from None
        if not math.isfinite(factor):
            raise BadInputError(f"--k {text} is not finite; give a number such as 2")
        if named:
            by_tensor[name] = factor
        else:
            default = factor
    return default, by_tensor


def finish(
    report: ReplayReport | DiffReport,
    json: bool,
    junit: Path | None,
    exit_code: int | None = None,
    *,
    verbose: bool = False,
    heatmap: bool = False,
    tb: str = "short",
) -> None:
    """Print a report and end the command with its exit code, or the one given; see `render_table`.
    `heatmap`: behind the table where errors are, by chunk and head; the report's results have grids."""
    from gdnbench.report.export import to_json, to_junit
    from gdnbench.report.render import render_table

    if json:
        print_json_text(to_json(report))
    else:
        print_wide(render_table(report, verbose=verbose, table=table, tb=tb))
        if heatmap:
            from gdnbench.heatmap.terminal import ASCII, BLOCKS, heatmaps

            characters = BLOCKS if encodable(BLOCKS, sys.stdout.encoding or "ascii") else ASCII
            paint = painted if has_colours() else None
            drawn = heatmaps(report, shutil.get_terminal_size().columns, characters, paint)
            print_lines("\n" + drawn.removesuffix("\n"))
    if junit is not None:
        try:
            replace_message(junit, to_junit(report))
        except OSError as error:
            raise BadInputError(f"--junit {junit} cannot be written: {error.strerror}") from None
    raise typer.Exit(report.exit_code if exit_code is None else exit_code)
