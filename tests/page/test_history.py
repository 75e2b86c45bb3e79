# SPDX-License-Identifier: Apache-2.0
"""Runs of one kernel over time: their order, what is known of each, and the lines that the page draws."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from gdnbench.page import png as drawing
from gdnbench.report.history import changes, closest_limits, run_commit, run_time, tracks
from gdnbench.report.runs import Run


@pytest.fixture(scope="module")
def days(made: Any, right: dict[str, Any], wrong: Any) -> list[Run]:
    """Four runs in disorder: the first passes, the second crashes, the third and fourth mismatch."""
    crashed = {**right, "outcome": "crash", "reason": "signal 11", "tensors": []}
    failing = {
        **wrong[0],
        **{name: right[name] for name in ("number", "key", "layer", "layer_index", "step")},
    }
    found = []
    for day, record in enumerate((right, crashed, failing, failing)):
        provenance = {
            "git": {"sha": "a" * 40, "dirty": False},
            "kernel": {"git": {"sha": f"{day + 1}" * 40, "dirty": day == 3}},
            "packages": {"torch": "2.12.0" if day < 2 else "2.13.0", "triton": "3.7.1"},
        }
        process = {"time": f"2026-11-1{day}T06:00:00Z", "host": "ci"}
        run = made.run([record], f"day{day}.zarr", provenance=provenance, process=process)
        found.append(run)
    return [found[place] for place in (2, 0, 3, 1)]


def test_runs_of_one_kernel_stand_in_the_order_of_time(made: Any, days: Sequence[Run]) -> None:
    other = made.run(
        [], "x", header={**made.HEADER, "kernel": "sm100"}, process={"time": "2026-11-11T00:00:00Z"}
    )
    timeless = made.run([], "y.json", process={})
    broken = made.run([], "z", process={"time": "yesterday\u202e"})
    assert tracks([*days, other, timeless, broken]) == [[1, 3, 0, 2]]
    assert [run_time(run) for run in (days[1], timeless, broken)] == ["2026-11-10T06:00:00Z", None, None]
    assert tracks([days[0], other]) == []  # a single run is no history


def test_a_run_is_of_the_kernels_commit_and_says_what_changed(made: Any, days: Sequence[Run]) -> None:
    assert [run_commit(run) for run in days] == [
        "333333333333",
        "111111111111",
        "444444444444 and changes",
        "222222222222",
    ]
    assert run_commit(made.run([])) == "aaaaaaaaaaaa"  # the script's, without the kernel's own
    assert changes(days[3], days[0]) == ["torch 2.12.0 -> 2.13.0"]
    assert changes(days[0], days[2]) == []
    gone = made.run([], provenance={"packages": "none of them"})
    assert changes(gone, made.run([], provenance={"packages": {"torch": 3}})) == ["torch none -> 3"]


def test_the_limit_that_is_closest_is_the_one_of_a_point() -> None:
    def tensor(name: str, held: Sequence[tuple[Any, Any]], **more: Any) -> dict[str, Any]:
        limits = [{"error": error, "limit": limit} for error, limit in held]
        shown = {"tensor": name, "judged": True, "when": "after", "side": "kernel", "passed": True}
        return {**shown, "held": limits, **more}

    tensors = [
        tensor("o", [(1.0, 4.0), (3.0, 4.0), (9.0, 90.0)]),
        tensor("state", [("nan", 1.0), (5.0, 1.0)], passed=False, side="against"),
        tensor("bits", []),
        tensor("exact", [(0.0, 0.0)]),
        tensor("A", [(1.0, 1.0)], stage=True),
        tensor("q", [(1.0, 1.0)], when="before"),
    ]
    assert closest_limits({"tensors": tensors}) == [
        ["o", 0.75, 3.0, 4.0, False],
        ["state, against", "nan", "nan", 1.0, True],
        ["bits", None, None, None, False],
        ["exact", 0.0, 0.0, 0.0, False],
    ]


def test_the_line_has_a_point_for_each_run_and_a_cross_for_each_failure(days: Sequence[Run]) -> None:
    quickjs = pytest.importorskip("quickjs", reason="drawn by quickjs-ng (extra `pictures`)")
    drawn = dict(drawing.svg_files(days, quickjs.Context()))["history-00"]
    root = ElementTree.fromstring(drawn)
    (line,) = (one for one in root.iter() if one.get("class") == "line" and "L" in one.get("d", ""))
    points = [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", line.get("d", ""))]
    assert len(points) == 3  # the run that crashed has none
    ratios = [
        held["error"] / held["limit"]
        for run in (days[1], days[0], days[2])
        for held in run.records[0]["tensors"][0]["held"]
    ]
    # Decades are equally high: ratios to y in CSS pixels is one straight line.
    height, _ = np.polyfit(np.log10(ratios[:2]), [y for _, y in points[:2]], 1)
    assert height < 0
    assert points[2][1] == pytest.approx(points[1][1], abs=0.11)
    gaps = np.diff([x for x, _ in points])
    assert gaps[0] == pytest.approx(2 * gaps[1], abs=0.2)  # its place in the order is kept
    links = [one for one in root.iter() if one.tag.endswith("a")]
    crosses = [sum(one.get("class") == "over" for one in link.iter()) for link in links]
    assert crosses == [0, 1, 1, 1]
    named = [link.get("aria-label", "").split("\\u000a") for link in links]
    assert any("2026-11-11 06:00" in " ".join(words) and "crash" in " ".join(words) for words in named)
    assert "2026-11-12 06:00" in " ".join(named[1])
    assert {"limit", "run, in the order of time (UTC)", "2026-11-10"} <= {one.text for one in root.iter()}


def test_the_page_shows_since_when_a_tensor_fails(
    opened: Callable[[Sequence[Run]], Any], days: Sequence[Run]
) -> None:
    browser = opened(days)
    shown = browser.evaluate("document.querySelector('#page > section.part').textContent")
    said = "o fails since 2026-11-12 06:00 (day2.zarr); it passed at 2026-11-10 06:00 (day0.zarr). "
    changed = "Between them: commit 111111111111 -> 333333333333; torch 2.12.0 -> 2.13.0."
    assert said + changed in shown
    # A point leads to its record, in its run.
    browser.evaluate(
        "document.querySelectorAll('#page > section.part a.point')[2].dispatchEvent(new MouseEvent('click'))"
    )
    browser.until("document.querySelector('.detail .what').textContent.includes('day3.zarr')")
    assert browser.evaluate("document.querySelectorAll('.detail a.point').length") == 4
    below = "document.querySelector('.detail a.point').closest('figure')"
    browser.evaluate(f"{below}.querySelector('details').open = true")
    browser.until(f"{below}.querySelector('table') !== null")
    rows = browser.evaluate(f"Array.from({below}.querySelectorAll('tbody tr'), (row) => row.textContent)")
    assert [row[:9] for row in rows] == ["day0.zarr", "day1.zarr", "day2.zarr", "day3.zarr"]
    assert rows[0].startswith("day0.zarr2026-11-10 06:00111111111111torch 2.12.0, triton 3.7.1")
    assert rows[1].endswith("--crash")
    assert "torch 2.12.0 -> 2.13.0" in rows[2]
    assert browser.errors == []
