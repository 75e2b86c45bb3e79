# SPDX-License-Identifier: Apache-2.0
"""The page of timelines."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdnbench.lineage.table import AccessTable
from gdnbench.lineage.timeline import Holding, Timeline, timelines
from gdnbench.page.slots import render_slots
from tests.lineage.logs import Engine, Options


@pytest.fixture
def timeline() -> Timeline:
    (found,) = timelines(Engine(3, Options(bug="overwritten")).run(60).table())
    return found


def test_bars_are_the_accesses(timeline: Timeline) -> None:
    """Each access is in the bar of its request and slot, and bars of a slot do not overlap."""
    table = Engine(3, Options(bug="overwritten")).run(60).table()
    for row in table.rows[table.rows["request"] >= 0]:
        step, slot, request = int(row["step"]), int(row["slot"]), int(row["request"])
        assert any(
            one.slot == slot and one.request == request and one.first <= step <= one.last
            for one in timeline.holdings
        )
    assert np.unique(table.rows["slot"]).tolist() == list(timeline.slots)


def test_a_break_is_marked(timeline: Timeline) -> None:
    page = render_slots([timeline], ["checked"], "slots")
    assert page.count("\N{BALLOT X}") == 1
    assert f"<title>break at step {timeline.findings[0].damage.step}</title>" in page
    assert "<script" not in page


def test_names_are_text(hostile: str, timeline: Timeline) -> None:
    table = timeline.table
    evil = AccessTable(hostile, table.rows, (hostile,), (hostile,), tuple(hostile for _ in table.requests))
    (found,) = timelines(evil)
    page = render_slots([found], [hostile], hostile)
    assert "<img" not in page
    assert "<script" not in page
    assert "\u202e" not in page


def test_the_page_fits_a_phone(browser: Any, timeline: Timeline, tmp_path: Path) -> None:
    file = tmp_path / "slots.html"
    file.write_text(render_slots([timeline], ["checked"], "slots"), encoding="utf-8")
    browser.media()
    browser.view(320, 700, phone=True)
    browser.open(file)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 320
    assert browser.evaluate("getComputedStyle(document.querySelector('.r0')).fill") != "rgb(0, 0, 0)"
    assert browser.errors == []


def test_a_slot_that_changes_hands_has_two_bars() -> None:
    table = Engine(5, Options()).run(80).table()
    (found,) = timelines(table)
    by_slot: dict[int, list[Holding]] = {}
    for one in found.holdings:
        by_slot.setdefault(one.slot, []).append(one)
    for holdings in by_slot.values():
        assert all(one.last < other.first for one, other in pairwise(holdings))
