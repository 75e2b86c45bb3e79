# SPDX-License-Identifier: Apache-2.0
"""`gdnbench lineage`: is every state that a request reads the one that it last wrote?"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnbench.cli.console import print_json, print_line, print_note, progress, table
from gdnbench.cli.stores import open_store
from gdnbench.errors import BadInputError, Exit
from gdnbench.tables import End, Fit
from gdnbench.whole_file import replace_message

if TYPE_CHECKING:
    from gdnbench.lineage.check import LineageReport
    from gdnbench.lineage.explain import ExplainedChain
    from gdnbench.store.reader import Store

FIT = Fit(wrap=("damaged by", "shown by", "last written by", "break"), cut={"layer": End.LAST})
MOST_LINES = 100
"""Breaks that are printed; --json has all that were classified."""

MOST_NAMES = 5
"""Of requests in the message about an unknown one."""


def lineage(
    stores: Annotated[list[str], typer.Argument(help="Stores to check: folders, .zip files or URLs.")],
    explain: Annotated[
        str | None, typer.Option(help="Print the chain of this request, access by access, e.g. req-7.")
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="With --explain: only layers of this name; globs allowed.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Also write a JUnit XML file, e.g. results.xml.")] = None,
) -> None:
    """Check that every state, conv state, window row and compressed row that a request reads is what it last
    wrote.

    Follows each request of each process through the recorded calls, by request, position and content; runs
    no kernel. A read is wrong only if no missing call can explain it.

    Exit status: 0 no chain is broken; 1 one is; 2 nothing could be checked. With --explain: 0, or 2 if no
    call names the request.
    """
    from gdnbench.lineage.check import check_stores
    from gdnbench.lineage.text import nothing_checked

    if layer is not None and explain is None:
        raise BadInputError("--layer chooses what --explain prints; name a request with --explain")
    if explain is not None and junit is not None:
        raise BadInputError(
            "--explain prints one request and --junit writes the whole check; give one of them"
        )
    with contextlib.ExitStack() as opened:
        found = [opened.enter_context(open_store(store)) for store in stores]
        for store in found:
            for problem in store.problems:
                print_note(f"gdnbench: {problem}")
        if explain is not None:
            _explain(found, explain, layer, json)
            return
        with progress("lineage") as advance:
            report = check_stores(found, advance)
    _print(report, json)
    if junit is not None:
        _write_junit(report, junit)
    if report.breaks:
        raise typer.Exit(Exit.MISMATCH)
    if (reason := nothing_checked(report)) is not None:
        raise BadInputError(reason)


def _print(report: LineageReport, json: bool) -> None:
    from gdnbench.lineage import text
    from gdnbench.lineage.export import to_json

    if json:
        print_json(to_json(report))
        return
    lines = list(text.lines(report))
    if lines:
        headers, rows = text.table_of_lines(report, lines[:MOST_LINES])
        print(table(headers, rows, text.RIGHT, FIT))
    if len(lines) > MOST_LINES:
        print(f"... and {len(lines) - MOST_LINES} more; --json has all")
    for line in text.summary(report):
        print_line(line)


def _write_junit(report: LineageReport, path: Path) -> None:
    from gdnbench.report.lineage import to_junit

    try:
        replace_message(path, to_junit(report))
    except OSError as error:
        raise BadInputError(f"--junit {path} cannot be written: {error.strerror}") from None


def _named(requests: list[str]) -> str:
    """Which requests --explain takes, in words."""
    if not requests:
        return "capture with an adapter that names requests, see docs/lineage.md"
    some = ", ".join(map(repr, requests[:MOST_NAMES]))
    more = f" and {len(requests) - MOST_NAMES} more" if len(requests) > MOST_NAMES else ""
    return f"calls name {some}{more}"


def _explain(stores: list[Store], request: str, layer: str | None, json: bool) -> None:
    from gdnbench.lineage.check import tables_of
    from gdnbench.lineage.explain import HEADERS, RIGHT, explain
    from gdnbench.lineage.export import access_json

    chains: list[ExplainedChain] = []
    names: dict[str, None] = {}  # those of all requests, each once
    for store in stores:
        for accesses in tables_of(store):
            names |= dict.fromkeys(accesses.requests)
            chains += explain(accesses, request, layer)
    if not chains:
        where = "" if layer is None else f" in a layer {layer!r}"
        raise BadInputError(f"no call names a request {request!r}{where}; {_named(list(names))}")
    if json:
        print_json(
            [
                {
                    "process": one.table.process,
                    "layer": one.layer,
                    "chain": one.chain,
                    "accesses": [
                        {**(access_json(one.table, access) or {}), "verdict": verdict}
                        for access, verdict in one.accesses
                    ],
                }
                for one in chains
            ]
        )
        return
    for one in chains:
        print_line(f"{request} in {one.layer}, {one.chain}, process {one.table.process}")
        print(table(HEADERS, one.rows(), RIGHT, Fit(wrap=("verdict",))))
