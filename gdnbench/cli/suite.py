# SPDX-License-Identifier: Apache-2.0
"""`gdnbench suite`: replay what a file asks for, and hold it against accepted errors and known failures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnbench.cli.console import print_json, print_line, print_note, progress, table
from gdnbench.cli.distribution import SCHEDULER, WORKERS, is_distributed
from gdnbench.cli.record_options import KernelEnvOptionWithoutPanel
from gdnbench.cli.statuses import INTERRUPTED
from gdnbench.errors import Exit
from gdnbench.record_numbers import record_ranges
from gdnbench.store.address import folder_to_write
from gdnbench.tables import End, Fit

if TYPE_CHECKING:
    from gdnbench.suite.plan import Entry
    from gdnbench.suite.result import SuiteResult

SUITE = "Suite to use: a TOML file or a folder of captures."


def suite(
    suite: Annotated[Path, typer.Argument(help=SUITE)],
    results: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for results. Default: SUITE's name with .results, in the current folder.",
        ),
    ] = None,
    entry: Annotated[
        str | None, typer.Option(help="Run only entries whose names match, e.g. '*.sim'.")
    ] = None,
    records: Annotated[
        str | None, typer.Option(help="Replay only these records of each entry, e.g. 0,3-5.")
    ] = None,
    kernel_env: KernelEnvOptionWithoutPanel = None,
    workers: Annotated[int | None, typer.Option(min=0, metavar="N", help=WORKERS)] = None,
    scheduler: Annotated[str | None, typer.Option(metavar="ADDRESS", help=SCHEDULER)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Replay the captures that a suite names, and judge them by rules, baselines and known failures.

    Exit status: 0 all pass; 1 a failure that is not known, or an error worse than accepted; 2 a wrong suite;
    3 something could not run here.
    """
    from gdnbench.suite.folder import suite_at
    from gdnbench.suite.read import restrict_to_entries
    from gdnbench.suite.run import run_suite

    is_distributed(workers, scheduler)
    folder = folder_to_write(Path(f"{suite.resolve().stem}.results") if results is None else results)
    asked = suite_at(suite)
    chosen = asked if entry is None else restrict_to_entries(asked, entry)
    among = None if records is None else record_ranges(records)
    with progress("suite") as advance:
        result = run_suite(
            chosen,
            folder,
            today=datetime.now(UTC).date(),
            whole=entry is None,
            records=among,
            workers=workers,
            scheduler=scheduler,
            progress=_told(advance, len(chosen.entries)),
        )
    if json:
        from gdnbench.suite.export import summary_json

        print_json(summary_json(result))
    else:
        _print(result)
    with suppress(OSError):
        print_note(f"gdnbench: results are in {folder}")
    raise typer.Exit(INTERRUPTED if result.interrupted else result.exit_code)


def _told(bar: Callable[[int, int], None], entries: int) -> Callable[[Entry, int, int], None]:
    """On a terminal a bar of the entry's records, anywhere else a line an entry."""
    begun: list[str] = []

    def advance(entry: Entry, done: int, total: int) -> None:
        if entry.name not in begun:
            begun.append(entry.name)
            if not sys.stderr.isatty():
                print_note(f"gdnbench: entry {len(begun)} of {entries}: {entry.name}")
        bar(done, total)

    return advance


def _print(result: SuiteResult) -> None:
    from gdnbench.suite.markdown import (
        baseline_text,
        failing_alike,
        headline,
        lineage_lines,
        outcomes_text,
        sections,
        which_records,
    )

    rows = [
        (one.entry.name, len(one.verdicts), outcomes_text(one), baseline_text(one), f"{one.seconds:.1f}")
        for one in result.entries
    ]
    fit = Fit(wrap=("outcomes", "baseline"), cut={"entry": End.FIRST})
    print(table(("entry", "records", "outcomes", "baseline", "s"), rows, ("records", "s"), fit))
    for line in lineage_lines(result):
        print_line(line)
    for check in result.lineage:
        if check.exit_code is not Exit.PASS:
            for line in check.breaks:
                print_line(f"  {line}")
            print_line(f"  {check.command}")
    for one in result.entries:
        if one.error:
            print()
            print_line(f"{one.entry.name}: {one.error}")
            print_line(f"  {result.command(one.entry)}")
        for group in failing_alike(one):
            verdict = group[0]
            print()
            print_line(f"{one.entry.name} {which_records(group)}: {verdict.outcome}")
            for failure in verdict.failures:
                print_line(f"  {failure.text}")
            for known in verdict.expired:
                print_line(f"  known until {known.until}, which is over: {known.reason}")
            print_line(f"  {result.command(one.entry, verdict.record.number)}")
    for title, lines in sections(result):
        print(f"\n{title}:")
        for line in lines:
            print_line(f"  {line}")
    if result.update is not None and result.exit_code is not Exit.BAD_INPUT:
        print("\nto accept what was measured:")
        print_line(f"  {result.update}")
    print()
    print_line(f"{result.suite.path} {headline(result)}")
