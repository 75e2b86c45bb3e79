"""`gdnbench report`: one file for people, of one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.console import print_line
from gdnbench.errors import BadInputError


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Runs to show: stores of `replay --save`, or files of `replay --json` or `diff --json`."
        ),
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write an HTML file.")] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the charts as PNG files into FOLDER; needs the extra `pictures`."
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the HTML page.")] = "gdnbench report",
) -> None:
    """Show runs as one HTML file: verdicts, where errors are and how they grow, times, findings, provenance.

    The file needs no network and no other file. Exit status: 0 it was written, whatever the verdicts; 2 a run
    cannot be read; 3 a package that draws PNG files is missing.
    """
    if output is None and png is None:
        raise BadInputError("nothing to write: give -o report.html, or --png FOLDER, or both")
    from gdnbench.report.runs import read_run

    found = [read_run(path) for path in runs]
    count = sum(len(run.records) for run in found)
    said = f"{count} record{'' if count == 1 else 's'}"
    if output is not None:
        from gdnbench.page.build import write_page

        write_page(found, output, title)
        print_line(f"{output}: {said}, {output.stat().st_size / 2**20:.1f} MiB")
    if png is not None:
        from gdnbench.page.png import draw_pngs, records_left_out

        pictures, rest = draw_pngs(found, png), records_left_out(found)
        some = f"; {rest} of them without any of their own" if rest else ""
        print_line(f"{png}: {said}, {len(pictures)} picture{'' if len(pictures) == 1 else 's'}{some}")
