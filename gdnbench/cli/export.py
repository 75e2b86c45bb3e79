# SPDX-License-Identifier: Apache-2.0
"""`gdnbench export`: one record as a file of safetensors, NumPy or torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.console import print_line
from gdnbench.cli.stores import open_store
from gdnbench.export_format import Format
from gdnbench.record_numbers import record_numbers
from gdnbench.units import counted, human_bytes


def export(
    store: Annotated[str, typer.Argument(help="Store to read: a folder, .zip or URL.")],
    record: Annotated[int, typer.Argument(min=0, help="Number of the record, as `ls` lists it.")],
    to: Annotated[Format, typer.Option(help="Format of the file.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write. Default: record-3.npz for record 3 in npz."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write the tensors of one record to a file that other programs read.

    The file has the tensors before the call as before.NAME and those after it as after.NAME, bit for bit, and
    the record's description as `gdnbench`. safetensors and pt have bfloat16 and fp8 as such; npz has their
    bits as uint16 and uint8, and their dtypes in the description.

    Exit status: 0 written; 2 there is such a file, no such record, or a damaged tensor; 3 pt without torch.
    """
    from gdnbench.export import export_record

    path = Path(f"record-{record}.{to}") if output is None else output
    with open_store(store) as opened:
        chosen = opened.records[record_numbers(str(record), len(opened.records))[0]]
        export_record(chosen, path, to, force=force)
        handles = [*chosen.before.values(), *chosen.after.values()]
    size = human_bytes(sum(handle.nbytes for handle in handles))
    print_line(f"{path}: {counted(len(handles), 'tensor')}, {size}")
