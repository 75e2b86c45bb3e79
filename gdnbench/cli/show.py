# SPDX-License-Identifier: Apache-2.0
"""`gdnbench show`: everything about one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnbench.cli.console import print_json, print_line, table
from gdnbench.cli.ls import summary
from gdnbench.cli.stores import open_store
from gdnbench.record_numbers import record_numbers
from gdnbench.store.ranks import Rank
from gdnbench.store.summary import UncapturedCalls, uncaptured_calls

if TYPE_CHECKING:
    from gdnbench.store.reader import StoredRecord, TensorHandle
    from gdnbench.value_range import Range

HEADERS = ("tensor", "when", "dtype", "shape", "axes", "caller strides", "min", "max", "nonfinite", "digest")
DIGITS = 12  # of a digest: enough to tell tensors apart by eye


def show(
    store: Annotated[str, typer.Argument(help="Store to read: a folder, .zip or URL.")],
    record: Annotated[int, typer.Argument(min=0, help="Number of the record, as `ls` lists it.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show one record: where it came from, its scalars and its tensors with their ranges."""
    with open_store(store) as opened:
        shown = opened.records[record_numbers(str(record), len(opened.records))[0]]
        if json:
            print_json(_document(shown))
            return
        for title, fields in _sections(shown):
            print_line(title)
            for name, value in fields.items():
                print_line(f"  {name}: {_text(value)}")
        print(
            table(HEADERS, [_row(*tensor) for tensor in _tensors(shown)], right=("min", "max", "nonfinite"))
        )


def _tensors(record: StoredRecord) -> list[tuple[str, str, TensorHandle]]:
    return [
        (name, when, handle)
        for when, handles in (("before", record.before), ("after", record.after))
        for name, handle in handles.items()
    ]


def _sections(record: StoredRecord) -> list[tuple[str, Mapping[str, Any]]]:
    info = record.info
    call = {"target": info.target, "layer": info.layer, "step": info.step, "call": info.call}
    call |= {"status": info.status.value, "key": record.key}
    rank = Rank.from_process(record.segment.process)
    if rank.is_known:
        call["rank"] = rank
    pools = {name: f"{len(pool.rows)} of {pool.slots} slots stored" for name, pool in info.pools.items()}
    sections = [
        (f"record {record.number}: {info.op}", call),
        ("scalars", info.scalars),
        ("conventions", info.conventions),
        ("pools", pools),
        ("dispatch", info.dispatch),
        ("run", {name: value for name, value in info.run.items() if name not in ("timing", "result")}),
        ("timing", _timing(record)),
        ("process", record.segment.process),
        ("not captured", _uncaptured(record)),
        ("provenance", record.segment.provenance),
    ]
    return [(title, fields) for title, fields in sections if fields]


def _uncaptured(record: StoredRecord) -> Mapping[str, UncapturedCalls]:
    """By function: the calls that capture counted in the record's process, and did not record."""
    return uncaptured_calls((record.segment.end or {}).get("summary"))


def _timing(record: StoredRecord) -> Mapping[str, Any]:
    """The times of a run's record in a few lines; the samples are in --json."""
    if "timing" not in record.info.run:
        return {}
    from gdnbench.timing.result import RecordTiming
    from gdnbench.timing.table import record_lines

    where = f"record {record.number}"
    return record_lines(RecordTiming.from_json(record.info.run["timing"], where))


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_text(item) for item in value)
    return str(value)


def _range(handle: TensorHandle) -> Range:
    from gdnbench.value_range import value_range

    return value_range(handle.bits(), handle.meta.dtype)


def _row(name: str, when: str, handle: TensorHandle) -> tuple[object, ...]:
    meta = handle.meta
    low, high, nonfinite = _range(handle)
    return (
        name,
        when,
        meta.dtype,
        "x".join(map(str, meta.shape)) or "scalar",
        " ".join(meta.axes),
        " ".join(map(str, meta.caller_strides)),
        "" if low is None else f"{low:.4g}",
        "" if high is None else f"{high:.4g}",
        nonfinite or "",
        handle.digest[:DIGITS],
    )


def _document(record: StoredRecord) -> dict[str, Any]:
    tensors = []
    for name, when, handle in _tensors(record):
        meta = handle.meta
        low, high, nonfinite = _range(handle)
        tensors.append(
            {
                "name": name,
                "when": when,
                "dtype": meta.dtype,
                "shape": meta.shape,
                "axes": meta.axes,
                "caller_shape": meta.caller_shape,
                "caller_strides": meta.caller_strides,
                "caller_offset": meta.caller_offset,
                "device": meta.device,
                "min": low,
                "max": high,
                "nonfinite": nonfinite,
                "digest": handle.digest,
            }
        )
    info = record.info
    more = {"target": info.target, "scalars": info.scalars, "conventions": info.conventions}
    more |= {"dispatch": info.dispatch, "run": {name: v for name, v in info.run.items() if name != "result"}}
    more["pools"] = {name: {"slots": pool.slots, "rows": pool.rows} for name, pool in info.pools.items()}
    origin = {"process_info": record.segment.process, "provenance": record.segment.provenance}
    origin["uncaptured"] = {name: asdict(calls) for name, calls in _uncaptured(record).items()}
    return (
        summary(record.listed, Rank.from_process(record.segment.process))
        | more
        | {"tensors": tensors}
        | origin
    )
