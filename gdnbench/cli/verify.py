"""`gdnbench verify`: is every byte of a store what it was when it was written?"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gdnbench.cli.console import print_json, progress
from gdnbench.errors import Exit
from gdnbench.store import verify as checks
from gdnbench.units import counted, human_bytes


def verify(
    store: Annotated[str, typer.Argument(help="Store to read: a folder, .zip or URL.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Check every digest of a store and name what is damaged: record, tensor and chunk."""
    with progress("verify") as advance:
        report = checks.verify(store, advance)
    for problem in report.problems:
        print(f"gdnbench: {problem}", file=sys.stderr)
    if json:
        damages = [
            {"what": damage.what, "record": damage.record, "tensor": damage.tensor, "chunk": damage.chunk}
            for damage in report.damages
        ]
        print_json({"records": report.records, "tensors": report.tensors, "damages": damages})
    else:
        for damage in report.damages:
            print(f"damaged: {damage}")
        verdict = "whole" if report.ok else f"{len(report.damages)} damaged"
        what = f"{counted(report.records, 'record')}, {counted(report.tensors, 'tensor')}"
        print(f"{what}, {human_bytes(report.bytes)} checked: {verdict}")
    raise typer.Exit(Exit.PASS if report.ok else Exit.MISMATCH)
