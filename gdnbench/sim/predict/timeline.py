# SPDX-License-Identifier: Apache-2.0
"""The replay of an SM as a trace for Perfetto, in predicted microseconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.sim.errors import Place
from gdnbench.sim.predict.critical_path import ROOT, SHARED_UNITS, CriticalPath, Segment
from gdnbench.sim.predict.sm import Interval
from gdnbench.sim.profile.recorder import MAX_SLICES
from gdnbench.sim.profile.trace import named, place_arguments, sorted_at, write_events
from gdnbench.sim.ptx.ir import Kernel

PATH_ROW, FIRST_WARP_ROW = 0, 100
"""Rows of a launch: the critical path, the units, the warps."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What one SM does in a launch that takes `seconds`, at `clock` GHz: its warps, its units and its
    critical path, and the instructions by pc. A timeline keeps the first `MAX_SLICES`;
    `dropped` counts the others."""

    machine: str
    entry: str
    clock: float
    seconds: float
    warps: Sequence[Interval]
    units: Sequence[Segment]
    path: Sequence[Segment]
    instructions: dict[int, tuple[str, Place]]
    dropped: int

    @classmethod
    def of(
        cls,
        machine: str,
        clock: float,
        seconds: float,
        kernel: Kernel,
        warps: list[Interval],
        path: CriticalPath,
    ) -> Timeline:
        """The timeline of a replay that has ended."""
        units, segments = [*path.services()], path.segments()
        starts = sorted([*(one.start for one in warps), *(one.start for one in (*units, *segments))])
        last = starts[:MAX_SLICES][-1] if starts else 0.0
        warps = [one for one in warps if one.start <= last and one.end > one.start]
        units, segments = ([one for one in given if one.start <= last] for given in (units, segments))
        pcs = ({one.pc for one in warps} | {one.pc for one in (*units, *segments)}) - {ROOT}
        instructions = {pc: (kernel.instructions[pc].op, kernel.instructions[pc].place) for pc in pcs}
        dropped = sum(start > last for start in starts)
        return cls(machine, kernel.name, clock, seconds, warps, units, segments, instructions, dropped)


def write_timelines(path: Path, timelines: Sequence[tuple[str, Timeline]]) -> None:
    """Write launches with their names; each is a process of the trace, and begins where the one before it
    ends."""
    events, begin = list[dict[str, Any]](), 0.0
    for number, (name, timeline) in enumerate(timelines):
        events += _events(number, name, timeline, begin * 1e6)
        begin += timeline.seconds
    write_events(path, events)


def _events(number: int, name: str, timeline: Timeline, begin: float) -> Iterator[dict[str, Any]]:
    left_out = f", {timeline.dropped:,} later slices left out" if timeline.dropped else ""
    title = f"predicted: {name}{timeline.entry}, one SM of {timeline.machine}{left_out}"
    yield named("process_name", number, 0, title)
    units = {activity: row for row, activity in enumerate(SHARED_UNITS, PATH_ROW + 1)}
    rows = {PATH_ROW: "predicted critical path"}
    rows |= {row: f"predicted: {activity.text}" for activity, row in units.items()}
    width = max((one.warp for one in timeline.warps), default=0) + 1
    for one in timeline.warps:
        row = FIRST_WARP_ROW + one.slot * width + one.warp
        rows.setdefault(row, f"predicted: CTA {one.slot} of the SM, warp {one.warp}: {one.role}")
    for row, text in rows.items():
        yield named("thread_name", number, row, text)
        yield sorted_at(number, row)

    def event(row: int, text: str, kind: str, one: Interval | Segment, **more: Any) -> dict[str, Any]:
        place = None
        if one.pc != ROOT:
            op, place = timeline.instructions[one.pc]
            source = f" {Path(place.file).name}:{place.file_line}" if place.file is not None else ""
            text = f"{text}: {op}{source}" if text else f"{op}{source}"
        return {
            "ph": "X",
            "name": text,
            "cat": kind,
            "pid": number,
            "tid": row,
            "ts": begin + one.start / timeline.clock / 1e3,
            "dur": (one.end - one.start) / timeline.clock / 1e3,
            "args": place_arguments(place) | more,
        }

    for one in timeline.warps:
        text = "wait" if one.state == "wait" else ""
        yield event(FIRST_WARP_ROW + one.slot * width + one.warp, text, one.state, one, CTA=one.cta)
    for segment in timeline.units:
        yield event(units[segment.activity], "", "unit", segment, role=segment.role)
    for segment in timeline.path:
        yield event(PATH_ROW, segment.text, "critical path", segment)
