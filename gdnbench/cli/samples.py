# SPDX-License-Identifier: Apache-2.0
"""`gdnbench samples`: the captures that gdnbench brings along."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.console import print_json, print_line, table
from gdnbench.units import counted, human_bytes


def samples(
    folder: Annotated[Path, typer.Argument(help="Folder to copy them into, made if missing.")] = Path(
        "captures"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Copy the sample captures of real models, and a wrong kernel to try, into a folder.

    The command does not write a file that FOLDER already has with the same content.
    """
    from gdnbench.shipped import copy_samples

    copied = copy_samples(folder)
    sizes = [(path, path.stat().st_size, new) for path, new in copied]
    if json:
        print_json([{"file": str(path), "bytes": size, "copied": new} for path, size, new in sizes])
        return
    rows = [(path, human_bytes(size), "copied" if new else "was there") for path, size, new in sizes]
    print(table(("file", "bytes", ""), rows, right=("bytes",)))
    print_line(f"{counted(len(rows), 'file')} in {folder}; {folder / 'README.md'} says where they come from")
