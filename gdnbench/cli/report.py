# SPDX-License-Identifier: Apache-2.0
"""`gdnbench report`: one file for people, of one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.console import print_line
from gdnbench.errors import BadInputError
from gdnbench.units import counted


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Runs to show: stores of `replay --save`, or files of `replay --json` or `diff --json`."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="HTML file to write, e.g. report.html.")
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the charts as PNG files into FOLDER; needs the extra `pictures`."
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(help="Title of the HTML page. Default: the names of the kernels."),
    ] = None,
    lineage: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="Instead of runs: show the slots of this capture over time, and where chains break.",
        ),
    ] = None,
) -> None:
    """Show runs as one HTML file: verdicts, where errors are and how they grow, their history over runs,
    times, findings, provenance.

    The file needs no network and no other file. Exit status: 0 it was written, whatever the verdicts; 2 a run
    cannot be read; 3 a package that draws PNG files is missing.
    """
    if lineage is not None:
        if runs or png is not None or output is None:
            raise BadInputError(
                "--lineage shows the slots of one capture: give -o slots.html, and no runs or --png"
            )
        _write_slots(lineage, output, title or "gdnbench report")
        return
    if not runs:
        raise BadInputError("nothing to show: name runs, or a capture with --lineage")
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


def _write_slots(store: str, output: Path, title: str) -> None:
    from gdnbench.lineage.check import check_stores, tables_of
    from gdnbench.lineage.text import summary
    from gdnbench.lineage.timeline import timelines
    from gdnbench.page.slots import write_slots_page
    from gdnbench.store.recover import open_store

    with open_store(store) as opened:
        lines = summary(check_stores([opened]))
        found = [one for table in tables_of(opened) for one in timelines(table)]
    write_slots_page(found, lines, output, title)
    print_line(f"{output}: {counted(len(found), 'timeline')}; {lines[0]}")
