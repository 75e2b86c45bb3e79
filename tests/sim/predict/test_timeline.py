# SPDX-License-Identifier: Apache-2.0
"""The trace of a predicted launch for Perfetto."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gdnbench.sim.predict import timeline as under_test
from gdnbench.sim.predict.critical_path import CriticalPath
from gdnbench.sim.predict.sm import Interval
from gdnbench.sim.predict.timeline import Timeline, write_timelines
from gdnbench.sim.predict.trace import Issued, Kind, Operation, Waited
from gdnbench.sim.ptx.parser import parse
from tests.sim.predict.made_up import PLAIN, run

KERNEL = parse(
    """.version 8.8
.target sm_90a
.address_size 64
.file 1 "/source/kernel.py"
.visible .entry k()
{
.reg .b32 %r<2>;
.loc 1 12 0
mov.u32 %r0, 1;
ret;
}
"""
).kernels["k"]
MACHINE = PLAIN.with_values(copy_cycles=30, l2_rate=56, l2_latency=200, copy_latency=100, clock=2.0)


def timeline() -> Timeline:
    """A warp at pc 0 issues a copy of 5,600 bytes in one cycle, and waits for it."""
    path, warps = CriticalPath(), list[Interval]()
    copy = Operation(Kind.COPY_IN, 0, 5600, (), phases=[0])
    steps = [[Issued(0, (0,)), Waited(0, (0,))]]
    run({}, steps, MACHINE, operations=[copy], arrivals=[1], path=path, timeline=warps)
    return Timeline.of("h200", MACHINE.clock.value, 3e-6, KERNEL, warps, path)


def events(folder: Path, *given: Timeline) -> list[dict[str, Any]]:
    write_timelines(folder / "t.json", [(f"launch {n}: ", one) for n, one in enumerate(given)])
    found: list[dict[str, Any]] = json.loads((folder / "t.json").read_text())["traceEvents"]
    return found


def named(found: list[dict[str, Any]], kind: str) -> list[str]:
    return [event["args"]["name"] for event in found if event["name"] == kind]


def test_rows_and_times(tmp_path: Path) -> None:
    """At 2 GHz a cycle is half a nanosecond. The copy engine begins after the cycle of the issue."""
    found = events(tmp_path, timeline())
    assert named(found, "process_name") == ["predicted: launch 0: k, one SM of h200"]
    rows = named(found, "thread_name")
    assert all(row.startswith("predicted") for row in rows)
    assert "predicted: copy engine" in rows
    assert "predicted: CTA 0 of the SM, warp 0: compute" in rows
    (copier,) = [event for event in found if event.get("cat") == "unit" and event["dur"] == 0.015]
    assert (copier["ts"], copier["name"]) == (0.0005, "mov kernel.py:12")
    path = [event for event in found if event.get("cat") == "critical path"]
    assert sum(event["dur"] for event in path) == pytest.approx((1 + 30 + 100 + 200 + 100 + 40) * 0.5e-3)
    assert all(one["ts"] + one["dur"] == pytest.approx(two["ts"]) for one, two in pairwise(path))
    waits = [event for event in found if event.get("cat") == "wait"]
    assert [event["name"] for event in waits] == ["wait: mov kernel.py:12"]


def test_launches_follow_one_another(tmp_path: Path) -> None:
    """The first takes 3 microseconds, although its SM has ended before."""
    found = events(tmp_path, timeline(), timeline())
    starts = [min(e["ts"] for e in found if e["pid"] == pid and "ts" in e) for pid in (0, 1)]
    assert starts == [0, 3]


def test_a_long_trace_ends_where_a_browser_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = timeline()
    count = len(whole.warps) + len(whole.units) + len(whole.path)
    monkeypatch.setattr(under_test, "MAX_SLICES", 3)
    part = timeline()
    assert len(part.warps) + len(part.units) + len(part.path) + part.dropped == count
    assert part.dropped > 0
    (title,) = named(events(tmp_path, part), "process_name")
    assert title.endswith(f", {part.dropped} later slices left out")
