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
    title: Annotated[str, typer.Option(help="What stands above it.")] = "gdnbench report",
) -> None:
    """Show runs as one HTML file: verdicts, where errors are and how they grow, times, findings, provenance.

    The file needs no network and no other file. Exit status: 0 it was written, whatever the verdicts; 2 a run
    cannot be read.
    """
    from gdnbench.page.build import write
    from gdnbench.report.runs import read_run

    if output is None:
        raise BadInputError("give -o report.html: the file to write")
    found = [read_run(path) for path in runs]
    write(found, output, title)
    count = sum(len(run.records) for run in found)
    print(f"{output}: {count} record{'' if count == 1 else 's'}, {output.stat().st_size / 2**20:.1f} MiB")
