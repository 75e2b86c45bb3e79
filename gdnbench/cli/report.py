"""`gdnbench report`: one file for people, of one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.errors import BadInputError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Runs: stores of replay --save, or files of replay --json or diff --json."),
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the HTML file here.")] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Write the pictures as PNG files into this folder.")
    ] = None,
    title: Annotated[str, typer.Option(help="What stands above it.")] = "gdnbench report",
) -> None:
    """Show runs as one HTML file: verdicts, where errors are and how they grow, times, findings, provenance.

    The file needs no network and no other file. Exit status: 0 it was written, whatever the verdicts; 2 a run
    cannot be read; 3 --png without matplotlib.
    """
    from gdnbench.page.build import write
    from gdnbench.report.runs import read_run

    if output is None and png is None:
        raise BadInputError("give -o report.html: the file to write; or --png FOLDER, for pictures alone")
    found = [read_run(path) for path in runs]
    count = sum(len(run.records) for run in found)
    records = f"{count} record{'' if count == 1 else 's'}"
    if output is not None:
        write(found, output, title)
        print(f"{output}: {records}, {output.stat().st_size / 2**20:.1f} MiB")
    if png is not None:
        from gdnbench.pictures.draw import draw, left_out

        rest = left_out(found)
        some = f"; {rest} of them have none of their own" if rest else ""
        print(f"{png}: {len(draw(found, png))} PNG files of {records}{some}")
