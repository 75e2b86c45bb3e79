# SPDX-License-Identifier: Apache-2.0
"""`gdnbench ls`: one line a record."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnbench.cli.console import print_json, print_line, table
from gdnbench.cli.stores import open_store
from gdnbench.record import ACCESS_LOG, Status
from gdnbench.store.ranks import Rank
from gdnbench.tables import End, Fit
from gdnbench.units import counted, human_bytes

if TYPE_CHECKING:
    from gdnbench.store.index import Kind, Listed
    from gdnbench.store.reader import Store

HEADERS = ("#", "op", "layer", "step", "sizes", "bytes", "status")
RANK = "rank"  # a column where a process of the store says one
FIT = Fit(wrap=("sizes",), cut={"layer": End.LAST})
TRIGGER = "kept for"  # a column where a trigger kept one of the records


class Order(StrEnum):
    STORED = "stored"
    STEP = "step"


def ls(
    store: Annotated[str, typer.Argument(help="Store to read: a folder, .zip or URL.")],
    op: Annotated[
        str | None, typer.Option(help="List only records of this operation, e.g. gdn_decode.")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="List only layers of this name; globs allowed.")] = None,
    rank: Annotated[
        str | None,
        typer.Option(help="List only processes of this rank, as the table shows it: 3, tp1 or dp0,tp1."),
    ] = None,
    order: Annotated[
        Order,
        typer.Option(help="Sort by process (stored), or by step with the ranks of a step together (step)."),
    ] = Order.STORED,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """List the records of a store.

    Status: `complete`, or `unfinished` for a call that never returned, of which only the inputs are there.
    """
    with open_store(store) as opened:
        ranks = {segment.name: Rank.from_process(segment.process) for segment in opened.segments}
        chosen = None if rank is None else Rank.parse(rank)
        listed: Iterable[Listed] = (
            record
            for record in opened.listed()
            if _wanted(record.kind, op, layer) and (chosen is None or ranks[record.segment].matches(chosen))
        )
        if order is Order.STEP:
            listed = by_step(listed, ranks)
        if json:
            print_json([summary(record, ranks[record.segment]) for record in listed])
            return
        shown = [(_row(record), ranks[record.segment], record.kind.trigger) for record in listed]
        headers: tuple[str, ...] = HEADERS
        rows = [row for row, _, _ in shown]
        if any(found.is_known for found in ranks.values()):
            headers = (HEADERS[0], RANK, *HEADERS[1:])
            rows = [(number, found, *rest) for (number, *rest), found, _ in shown]
        if any(trigger is not None for _, _, trigger in shown):
            headers = (*headers, TRIGGER)
            rows = [(*row, trigger or "") for row, (_, _, trigger) in zip(rows, shown, strict=True)]
        print(table(headers, rows, ("#", "step", "bytes"), FIT))
        print_line(_last_line(opened, len(rows)))


def summary(record: Listed, rank: Rank) -> dict[str, Any]:
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
        "trigger": kind.trigger,
        "process": record.segment,
        "rank": rank.rank,
        "parallel": dict(rank.groups),
    }


def by_step(records: Iterable[Listed], ranks: Mapping[str, Rank]) -> list[Listed]:
    """Step by step, in a step layer by layer, and of a layer the ranks beside each other. Layers are in the
    order of their numbers; those that have none come behind, in the order in which the store has them.
    """
    listed = list(records)
    layers: dict[tuple[str, str, int | None], tuple[bool, int, int]] = {}
    for record in listed:
        index = record.kind.layer_index
        layers.setdefault(_place(record.kind), (index is None, index or 0, len(layers)))
    return sorted(
        listed, key=lambda record: (record.step, *layers[_place(record.kind)], ranks[record.segment].order)
    )


def _place(kind: Kind) -> tuple[str, str, int | None]:
    return kind.op, kind.layer, kind.layer_index


def _wanted(kind: Kind, op: str | None, layer: str | None) -> bool:
    return (op is None or kind.op == op) and (layer is None or fnmatch.fnmatchcase(kind.layer, layer))


def _row(record: Listed) -> tuple[object, ...]:
    kind = record.kind
    shown = _shown(tuple(kind.sizes.items()))
    return record.number, kind.op, kind.layer, record.step, shown, human_bytes(kind.nbytes), kind.status


@lru_cache  # calls of one layer look alike
def _shown(sizes: tuple[tuple[str, int], ...]) -> str:
    return " ".join(f"{axis}={extent}" for axis, extent in sizes)


def _last_line(opened: Store, listed: int) -> str:
    total = len(opened.records)
    shown = counted(total, "record")
    if listed != total:
        shown = f"{listed} of {shown}"
    log = [record.kind for record in opened.listed() if record.kind.op == ACCESS_LOG]
    if log:
        rows = counted(sum(kind.sizes.get("rows", 0) for kind in log), "access")
        shown += f" ({rows} in an access log without tensors, which gdnbench lineage reads)"
    unfinished = sum(record.kind.status == Status.UNFINISHED for record in opened.listed())
    if unfinished:
        shown += f" ({unfinished} unfinished: the call never returned, and only its inputs are there)"
    gone = f"; {opened.removed_records} more were recorded and are gone" if opened.removed_records else ""
    return f"{shown}, {counted(len(opened.segments), 'process')}, {opened.kind} store{gone}"
