# SPDX-License-Identifier: Apache-2.0
"""The benchmark of capturing: what its segments see of a loop whose cost is known, and its interval."""

from __future__ import annotations

import random
from types import ModuleType, SimpleNamespace

import pytest

from scripts.benchmarks import bench_capture_segments


@pytest.fixture
def segments() -> ModuleType:
    return bench_capture_segments


class Mode:
    def __init__(self) -> None:
        self.inside = False
        self.records = 0

    def enter(self) -> None:
        self.inside, self.records = True, 0

    def leave(self) -> int:
        self.inside = False
        return self.records


# Of 0.95 at the least: tables of the sign test, such as Conover, Practical Nonparametric Statistics, A3.
@pytest.mark.parametrize(("count", "k"), [(6, 1), (8, 1), (9, 2), (10, 2), (15, 4), (20, 6), (30, 10)])
def test_interval_of_a_median_is_that_of_the_sign_test(segments: ModuleType, count: int, k: int) -> None:
    values = [float(value) for value in range(1, count + 1)]
    random.Random(0).shuffle(values)
    assert segments.interval(values) == (k, count + 1 - k)


def test_segments_find_a_cost_that_is_smaller_than_the_drift(
    segments: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes 10 ms and grows to twice that over the run; a recorded one takes 4.8 ms more."""
    clock = [0.0]
    fake = SimpleNamespace(perf_counter=lambda: clock[0], process_time=lambda: clock[0] / 2)
    monkeypatch.setattr(segments, "time", fake)
    some = {name: Mode() for name in segments.STEPS}
    said: list[str] = []
    loop = segments.Segments(some, seconds=60.0, warm_seconds=5.0, say=said.append)
    noise, eligible = random.Random(1), 0
    while True:
        name, extra = loop.mode, 0.0
        assert [mode for mode, one in some.items() if one.inside] in ([name], [])
        if name == segments.EVERY_CALL or (name == segments.EVERY_16 and eligible % 16 == 0):
            some[name].records += 1
            extra = 0.0048
        eligible += name == segments.EVERY_16
        clock[0] += 0.010 * (1 + clock[0] / 70) * noise.uniform(0.9, 1.1) + extra
        if loop.step_done():
            break
    of_16 = [one for one in loop.measured if one.mode == segments.EVERY_16]
    assert len(of_16) > 60
    assert {(len(one.steps), one.records) for one in of_16} == {(16, 1)}
    low, high = segments.interval(segments.ratios(loop.measured, segments.EVERY_16))
    # 4.8 ms of 16 steps of 10 to 20 ms: 3.0 % at the beginning, 1.5 % at the end.
    assert 1.015 < low < high < 1.03
    assert "stable" in said[0]
