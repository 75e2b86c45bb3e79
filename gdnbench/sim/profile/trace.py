"""Writes a launch's timeline in the Trace Event Format, which Perfetto and chrome://tracing open.

Each warp is a row, named by its role. Waits are slices of their own and name the line that waits. Operations
in flight (TMA, tensor core) are asynchronous events above. One microsecond of the trace is one simulated
step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdnbench.sim.errors import Place
from gdnbench.sim.profile.recorder import CtaRecord, LaunchRecord
from gdnbench.sim.profile.roles import role


def write_trace(path: Path, launches: list[tuple[str, LaunchRecord]]) -> None:
    """Write launches, each (name, record); each launch is a process of the trace."""
    events = [
        event for number, (name, record) in enumerate(launches) for event in _events(number, name, record)
    ]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


def _events(number: int, name: str, record: LaunchRecord) -> Iterator[dict[str, Any]]:
    cta = record.ctas.get(record.draw)
    if cta is None:
        return
    yield _named("process_name", number, 0, f"launch {number}: {name}, CTA {record.draw}")
    for warp in sorted(cta.executed):
        yield _named("thread_name", number, warp, f"warp {warp}: {role(cta.ops.get(warp, {}))}")
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": number,
            "tid": warp,
            "args": {"sort_index": warp},
        }
    yield from _slices(number, cta)
    for index, flight in enumerate(cta.flights):
        common = {"cat": "in flight", "name": flight.name, "id": index, "pid": number, "tid": 0}
        yield {**common, "ph": "b", "ts": flight.start}
        yield {**common, "ph": "e", "ts": flight.end}


def _slices(number: int, cta: CtaRecord) -> Iterator[dict[str, Any]]:
    for slice_ in cta.slices:
        waits = slice_.place is not None
        yield {
            "ph": "X",
            "name": f"wait: {slice_.text}" if waits else slice_.text,
            "cat": "wait" if waits else "run",
            "pid": number,
            "tid": slice_.warp,
            "ts": slice_.start,
            "dur": slice_.end - slice_.start,
            "args": _place(slice_.place),
        }


def _place(place: Place | None) -> dict[str, Any]:
    if place is None:
        return {}
    where: dict[str, Any] = {"ptx line": place.line, "ptx": place.text}
    if place.file is not None:
        where["source"] = f"{place.file}:{place.file_line}"
    return where


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
