# SPDX-License-Identifier: Apache-2.0
"""`gdnbench verify`: are the records and tensors of a store what they were when they were written?"""

from __future__ import annotations

from typing import Annotated

import typer

from gdnbench.cli.console import print_json, print_line, print_note, progress
from gdnbench.errors import Exit
from gdnbench.units import counted, human_bytes


def verify(
    store: Annotated[str, typer.Argument(help="Store to read: a folder, .zip or URL.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Check a store against its digests and name what is damaged: record, tensor and chunk.

    Covers the elements of all tensors, the text of all records, and the zarr.json of their arrays. Not what
    the store holds only once: which process recorded where and with what, how it ended, and the number of a
    batch's first record.

    Exit status: 0 nothing is damaged; 1 something is.
    """
    from gdnbench.store import verify as checks

    with progress("verify") as advance:
        report = checks.verify(store, advance)
    for problem in report.problems:
        print_note(f"gdnbench: {problem}")
    if json:
        damages = [
            {"what": damage.what, "record": damage.record, "tensor": damage.tensor, "chunk": damage.chunk}
            for damage in report.damages
        ]
        print_json({"records": report.records, "tensors": report.tensors, "damages": damages})
    else:
        for damage in report.damages:
            print_line(f"damaged: {damage}")
        verdict = "whole" if report.ok else f"{len(report.damages)} damaged"
        what = f"{counted(report.records, 'record')}, {counted(report.tensors, 'tensor')}"
        print(f"{what}, {human_bytes(report.bytes)} checked: {verdict}")
    raise typer.Exit(Exit.PASS if report.ok else Exit.MISMATCH)
