# SPDX-License-Identifier: Apache-2.0
"""`gdnbench prune`: take records out of a store."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from gdnbench.cli.arguments import byte_count
from gdnbench.cli.console import print_json, print_line, print_note
from gdnbench.cli.stores import open_store
from gdnbench.store.address import local_path
from gdnbench.store.retention import Retention, parse_age, segment_start_seconds
from gdnbench.units import counted, human_bytes

if TYPE_CHECKING:
    from gdnbench.store.layout import Location
    from gdnbench.store.reader import StoredRecord


def prune(
    store: Annotated[str, typer.Argument(help="Store to prune: a writable folder.")],
    op: Annotated[str | None, typer.Option(help="Drop records of this operation.")] = None,
    layer: Annotated[
        str | None, typer.Option(help="Drop records of layers of this name; globs allowed.")
    ] = None,
    step: Annotated[str | None, typer.Option(help="Drop records of these steps, e.g. 0,3-5.")] = None,
    status: Annotated[str | None, typer.Option(help="Drop records of this status, e.g. unfinished.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option(help="Drop records of processes that began longer ago than this, e.g. 36h or 7d."),
    ] = None,
    max_records: Annotated[
        int | None,
        typer.Option(
            min=0, help="Drop only the oldest of the chosen records, until the store has at most N."
        ),
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(help="Like --max-records, but counts the bytes that `ls` shows, e.g. 20GiB.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep these records, e.g. 0,3-5 or a key. Repeatable. Given alone: drop all others."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Drop the records. Without --yes the command only lists them.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Drop records, and tensors that no other record shares. Later records move up; keys do not change."""
    rules = Retention(
        op=op,
        layer=layer,
        steps=step,
        status=status,
        older_than=None if older_than is None else parse_age(older_than, "--older-than"),
        keep=tuple(keep or ()),
        max_records=max_records,
        max_bytes=None if max_bytes is None else byte_count(max_bytes, "--max-bytes"),
    )
    # With the store's writer, which takes longer to import than most commands run.
    from gdnbench.store import prune as pruning

    path = local_path(store)
    if path.exists():
        pruning.check_can_prune(path)
    with open_store(path) as opened:
        busy = pruning.busy_segments(path)
        damaged = pruning.damaged_segments(opened) - busy
        records = list(opened.records)
        dropped = rules.dropped(records, time.time(), busy | damaged)
        keys = {record.key for record in dropped}
        ageless = len(
            {record.segment.name for record in records if segment_start_seconds(record.segment.name) is None}
        )
        freed = _own_bytes(records, keys)
    if older_than is not None and ageless:
        who = counted(ageless, "process")
        print_note(f"gdnbench: when {who} began is not known, as in a copy to share: left alone")
    if not yes:
        if json:
            print_json({"dropped": sorted(keys), "kept": len(records) - len(keys), "bytes": freed})
            return
        what = f"{len(keys)} of {counted(len(records), 'record')} and {human_bytes(freed)} of tensors"
        print(f"would drop {what}; --yes does it")
        _print_left_alone(busy & {record.segment.name for record in records}, damaged)
        return
    found = pruning.prune(path, lambda record: record.key not in keys)
    if json:
        print_json(
            {
                "dropped": found.records,
                "kept": found.kept,
                "bytes": found.bytes,
                "left_alone": sorted({*found.left_alone, *found.damaged}),
            }
        )
        return
    left = f"{found.kept} {'is' if found.kept == 1 else 'are'} left"
    print(f"dropped {counted(found.records, 'record')}, {left}; freed {human_bytes(max(found.bytes, 0))}")
    _print_left_alone(found.left_alone, found.damaged)


def _print_left_alone(busy: Iterable[str], damaged: Iterable[str]) -> None:
    for segment in sorted(damaged):
        print_line(f"segment {segment} is left alone: it is damaged, gdnbench verify says how")
    for segment in sorted(busy):
        print_line(f"segment {segment} is left alone: a process writes it, or left it without an end")


def _own_bytes(records: Iterable[StoredRecord], dropped: set[str]) -> int:
    """Bytes of the tensors that the records in `dropped` have and no other: as elements, not on disk."""
    sizes: dict[Location, int] = {}
    needed: set[Location] = set()
    for record in records:
        for handle in (*record.before.values(), *record.after.values()):
            place = handle.location
            sizes[place] = handle.nbytes
            if record.key not in dropped:
                needed.add(place)
    return sum(nbytes for place, nbytes in sizes.items() if place not in needed)
