# SPDX-License-Identifier: Apache-2.0
"""`gdnbench merge`: several stores into one."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from gdnbench.cli.console import print_json, print_line, print_note, progress
from gdnbench.cli.stores import open_store
from gdnbench.errors import Exit
from gdnbench.units import counted


def merge(
    out: Annotated[str, typer.Argument(help="Store to merge into: a folder, created if missing.")],
    stores: Annotated[list[str], typer.Argument(help="Stores to merge: folders, .zip files or URLs.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Merge several stores into one: copy the records of each process, and check every byte.

    A process that is already in OUT is not copied again, so repeating an interrupted merge continues it.

    Exit status: 0 all is there; 1 a process was refused because it is damaged, or is in OUT with other
    content.
    """
    from gdnbench.store import merge as merging

    place = merging.checked_out(out, stores)
    with contextlib.ExitStack() as opened, progress("merge") as advance:
        inputs = [opened.enter_context(open_store(store)) for store in stores]
        report = merging.merge(place, inputs, advance)
    for reason in report.refused:
        print_note(f"gdnbench: not merged: {reason}")
    if json:
        print_json(
            {
                "segments": report.segments,
                "records": report.records,
                "already": report.already,
                "refused": report.refused,
            }
        )
    else:
        there = (
            f", {report.already} {'was' if report.already == 1 else 'were'} there" if report.already else ""
        )
        refused = f", {len(report.refused)} refused" if report.refused else ""
        taken = f"{counted(report.records, 'record')} of {counted(report.segments, 'process')}"
        print_line(f"{taken} merged into {out}{there}{refused}")
    raise typer.Exit(Exit.MISMATCH if report.refused else Exit.PASS)
