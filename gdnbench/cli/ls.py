"""`gdnbench ls`: one line a record."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import typer

from gdnbench.bits import logical
from gdnbench.cli.console import print_json, table
from gdnbench.record import Status
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.record_json import Placed
from gdnbench.store.recover import open_store
from gdnbench.units import human_bytes

HEADERS = ("#", "op", "layer", "step", "sizes", "bytes", "status")


def ls(
    store: Annotated[Path, typer.Argument(help="A store: folder or .zip.")],
    op: Annotated[str | None, typer.Option(help="Only this operation.")] = None,
    layer: Annotated[str | None, typer.Option(help="Only layers of this name; globs allowed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="A list of objects instead of a table.")] = False,
) -> None:
    """List the records of a store."""
    with open_store(store) as opened:
        wanted = (record for record in opened.records if _wanted(record, op, layer))
        if json:
            print_json([summary(record) for record in wanted])
            return
        rows = [_row(record) for record in wanted]
        print(table(HEADERS, rows, right=("#", "step", "bytes")))
        print(_last_line(opened, len(rows)))


def summary(record: StoredRecord) -> dict[str, Any]:
    """A record in a few plain values: what `ls --json` lists."""
    info = record.info
    return {
        "record": record.number,
        "key": record.key,
        "op": info.op,
        "layer": info.layer,
        "layer_index": info.layer_index,
        "step": info.step,
        "call": info.call,
        "sizes": sizes(record.line.before),
        "bytes": nbytes(record),
        "status": info.status.value,
        "process": record.segment.name,
    }


def sizes(tensors: Mapping[str, Placed]) -> dict[str, int]:
    """The symbolic axes of a record's inputs with their sizes, in order of appearance."""
    return dict(_sizes(tuple((tensor.meta.axes, tensor.meta.shape) for tensor in tensors.values())))


@lru_cache  # calls of one layer look alike
def _sizes(tensors: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for axes, shape in tensors:
        for axis, extent in zip(axes, shape, strict=True):
            if axis.isidentifier():
                found.setdefault(axis, extent)
            elif axis.endswith("+1"):
                found.setdefault(axis.removesuffix("+1"), extent - 1)
    return found


def nbytes(record: StoredRecord) -> int:
    """Bytes of a record's distinct tensors."""
    line = record.line
    distinct = {tensor.digest: tensor.meta for tensor in (*line.before.values(), *line.after.values())}
    return sum(math.prod(meta.shape) * logical(meta.dtype).storage.itemsize for meta in distinct.values())


def _wanted(record: StoredRecord, op: str | None, layer: str | None) -> bool:
    return (op is None or record.info.op == op) and (
        layer is None or fnmatch.fnmatchcase(record.info.layer, layer)
    )


def _row(record: StoredRecord) -> tuple[object, ...]:
    info = record.info
    shown = " ".join(f"{axis}={extent}" for axis, extent in sizes(record.line.before).items())
    status = "" if info.status is Status.COMPLETE else info.status.value
    return record.number, info.op, info.layer, info.step, shown, human_bytes(nbytes(record)), status


def _last_line(opened: Store, listed: int) -> str:
    total = len(opened.records)
    processes = len(opened.segments)
    shown = f"{total} records" if listed == total else f"{listed} of {total} records"
    return f"{shown}, {processes} process{'' if processes == 1 else 'es'}, {opened.kind} store"
