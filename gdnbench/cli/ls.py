"""`gdnbench ls`: one line a record."""

from __future__ import annotations

import fnmatch
from functools import lru_cache
from typing import Annotated, Any

import typer

from gdnbench.cli.console import print_json, table
from gdnbench.record import Status
from gdnbench.store.index import Listed
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store
from gdnbench.units import human_bytes

HEADERS = ("#", "op", "layer", "step", "sizes", "bytes", "status")


def ls(
    store: Annotated[str, typer.Argument(help="A store: folder, .zip or URL.")],
    op: Annotated[str | None, typer.Option(help="Only this operation.")] = None,
    layer: Annotated[str | None, typer.Option(help="Only layers of this name; globs allowed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="A list of objects instead of a table.")] = False,
) -> None:
    """List the records of a store."""
    with open_store(store) as opened:
        wanted = (record for record in opened.listed() if _wanted(record, op, layer))
        if json:
            print_json([summary(record) for record in wanted])
            return
        rows = [_row(record) for record in wanted]
        print(table(HEADERS, rows, right=("#", "step", "bytes")))
        print(_last_line(opened, len(rows)))


def summary(record: Listed) -> dict[str, Any]:
    """A record in a few plain values: what `ls --json` lists."""
    kind = record.kind
    return {
        "record": record.number,
        "key": record.key,
        "op": kind.op,
        "layer": kind.layer,
        "layer_index": kind.layer_index,
        "step": record.step,
        "call": record.call,
        "sizes": kind.sizes,
        "bytes": kind.nbytes,
        "status": kind.status,
        "process": record.segment,
    }


def _wanted(record: Listed, op: str | None, layer: str | None) -> bool:
    return (op is None or record.kind.op == op) and (
        layer is None or fnmatch.fnmatchcase(record.kind.layer, layer)
    )


def _row(record: Listed) -> tuple[object, ...]:
    kind = record.kind
    shown = _shown(tuple(kind.sizes.items()))
    status = "" if kind.status == Status.COMPLETE.value else kind.status
    return record.number, kind.op, kind.layer, record.step, shown, human_bytes(kind.nbytes), status


@lru_cache  # calls of one layer look alike
def _shown(sizes: tuple[tuple[str, int], ...]) -> str:
    return " ".join(f"{axis}={extent}" for axis, extent in sizes)


def _last_line(opened: Store, listed: int) -> str:
    total = len(opened.records)
    processes = len(opened.segments)
    shown = f"{total} records" if listed == total else f"{listed} of {total} records"
    return f"{shown}, {processes} process{'' if processes == 1 else 'es'}, {opened.kind} store"
