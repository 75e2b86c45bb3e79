"""The serving loop proves `gdnbench lineage`: no right schedule is accused, and every planted bug is found.

`scripts/prove_lineage.py` runs the same on more schedules.
"""

from __future__ import annotations

import random

import pytest
from tests.lineage.serving.bugs import BUGS, Bug
from tests.lineage.serving.check import Run, events_of, findings_of, left_out, serve
from tests.lineage.serving.toy_model import ToyModel

MODEL = ToyModel()
LEFT_OUT = ("some", "span", "before", "after")


def found_in(run: Run) -> list[list]:
    return [events_of(findings) for findings in findings_of(run.table).values()]


@pytest.mark.parametrize("seed", range(10))
def test_a_right_schedule_is_not_accused(seed: int) -> None:
    run = serve(MODEL, seed)
    assert run.wrong_outputs == []
    assert found_in(run) == [[], []]
    for how in LEFT_OUT:
        table = left_out(run.table, how, random.Random(seed))
        assert [found for found in findings_of(table).values() if found] == [], how


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[Bug]) -> None:
    happened = 0
    for seed in range(100):
        run = serve(MODEL, seed, bug)
        happened += any(run.events)
        for want, found in zip(run.events, found_in(run), strict=True):
            assert found[:1] == want[:1]
            assert {event[1:3] for event in found} <= {event[1:3] for event in want}
        if happened == 2:
            return
    raise AssertionError(f"the bug happened in {happened} of 100 schedules")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_calls_left_out_accuse_no_right_read(bug: type[Bug]) -> None:
    for seed in range(2):
        run = serve(MODEL, seed, bug)
        wrong = [{event[1:3] for event in events} for events in run.events]
        for how in LEFT_OUT:
            table = left_out(run.table, how, random.Random(seed))
            for layer, findings in findings_of(table).items():
                found = {event[1:3] for event in events_of(findings)}
                assert found <= wrong[int(layer[-1])], (seed, how)
