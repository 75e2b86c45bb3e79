# SPDX-License-Identifier: Apache-2.0
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
    write_events(path, events)


def write_events(path: Path, events: list[dict[str, Any]]) -> None:
    """Write events of the Trace Event Format."""
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


def _events(number: int, name: str, record: LaunchRecord) -> Iterator[dict[str, Any]]:
    cta = record.ctas.get(record.draw)
    if cta is None:
        return
    yield named("process_name", number, 0, f"launch {number}: {name}, CTA {record.draw}")
    for warp in sorted(cta.executed):
        yield named("thread_name", number, warp, f"warp {warp}: {role(cta.ops.get(warp, {}))}")
        yield sorted_at(number, warp)
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
            "args": place_arguments(slice_.place),
        }


def place_arguments(place: Place | None) -> dict[str, Any]:
    """What a slice tells of the line that it is for."""
    if place is None:
        return {}
    where: dict[str, Any] = {"ptx line": place.line, "ptx": place.text}
    if place.file is not None:
        where["source"] = f"{place.file}:{place.file_line}"
    return where


def sorted_at(process: int, thread: int) -> dict[str, Any]:
    """The event that sorts the rows of a process by the numbers of its threads."""
    return {
        "ph": "M",
        "name": "thread_sort_index",
        "pid": process,
        "tid": thread,
        "args": {"sort_index": thread},
    }


def named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """The event that names a process ("process_name") or one of its threads ("thread_name")."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
