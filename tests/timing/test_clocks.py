# SPDX-License-Identifier: Apache-2.0
"""Clocks: what is timed and what is not, on the CPU and, with CUDA's calls written down, on a GPU."""

from __future__ import annotations

import gc
import re
import time
import weakref
from collections.abc import Callable

import pytest
import torch

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.timing import cuda_clocks, cupti
from gdnbench.timing.clocks import LONG, PerfCounter, resolution, round_seconds
from gdnbench.timing.cuda_clocks import GraphClock, PlainClock, clock_of
from gdnbench.timing.types import Form
from tests.messages import wording
from tests.timing.fake_cuda import FakeCuda

pytestmark = pytest.mark.alone


CUDA = torch.device("cuda")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class Ticks:
    """A clock that moves when it is told to, seen in steps."""

    def __init__(self, step: float = 0.0) -> None:
        self.time = 0.0
        self._step = step

    def __call__(self) -> float:
        self.time += self._step
        return self.time


def test_resolution_is_the_smallest_step() -> None:
    count = 0

    def coarse() -> float:
        nonlocal count
        count += 1
        return count // 4 * 0.25

    assert resolution(coarse) == 0.25
    assert 0 < resolution(time.perf_counter) < 1e-3


def test_perf_counter_times_all_launches_and_nothing_else() -> None:
    now = Ticks(1e-9)
    clock = PerfCounter(now)
    assert clock.least == pytest.approx(LONG * 1e-9)

    def launch(seconds: float) -> Callable[[], None]:
        def run() -> None:
            assert not gc.isenabled()
            now.time += seconds

        return run

    timed = clock.record([launch(1.0), launch(2.0), launch(4.0)])
    now.time += 100.0
    assert timed.seconds() == pytest.approx(7.0, abs=1e-6)
    assert clock.once(launch(3.0)) == pytest.approx(3.0, abs=1e-6)
    assert gc.isenabled()


def test_what_a_launch_raises_comes_through_and_garbage_is_collected_again() -> None:
    def launch() -> None:
        raise ArithmeticError("in the kernel")

    with pytest.raises(ArithmeticError, match="in the kernel"):
        PerfCounter().record([launch]).seconds()
    assert gc.isenabled()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(cuda_clocks, "cuda", FakeCuda(found))
    return found


def test_a_graph_holds_every_launch_in_order(log: list[str]) -> None:
    launches = [lambda name=name: log.append(name) for name in "abc"]
    GraphClock(CUDA).record(launches)
    assert log[log.index("capture") : log.index("captured") + 1] == ["capture", "a", "b", "c", "captured"]
    # On the stream of the capture, once: what a library allocates there is not captured.
    assert log[: log.index("capture")] == ["wait stream", "a", "stream done"]


def test_a_round_of_a_graph_is_between_events_that_were_there_before(log: list[str]) -> None:
    timed = GraphClock(CUDA).record([lambda: log.append("launch")])
    log.clear()
    assert timed.seconds() == 0.003
    assert log == ["hold", "record event 1", "replay", "record event 2", "wait event 2"]


@pytest.mark.parametrize("clock", [GraphClock, PlainClock])
def test_a_round_keeps_what_its_launches_hold(log: list[str], clock: type[GraphClock | PlainClock]) -> None:
    """Launches may have tensors of their own, such as slots as the kernel takes them. A graph has their
    addresses alone: once freed, a replay took whatever lay there for slots and wrote to them."""

    class Launched:
        def __init__(self) -> None:
            self.slots = torch.arange(4)

        def __call__(self) -> None:
            log.append(f"{len(self.slots)} slots")

    launches = [Launched(), Launched()]
    held = [weakref.ref(launch.slots) for launch in launches]
    timed = clock(CUDA).record(launches)
    del launches
    gc.collect()
    assert all(slots() is not None for slots in held)
    timed.seconds()
    del timed
    gc.collect()
    assert all(slots() is None for slots in held)


def test_a_round_of_plain_launches_begins_on_an_idle_device(log: list[str]) -> None:
    timed = PlainClock(CUDA).record([lambda: log.append("a"), lambda: log.append("b")])
    log.clear()
    assert timed.seconds() == 0.003
    assert log == ["synchronize", "record event 1", "a", "b", "record event 2", "wait event 2"]


def test_the_host_time_of_one_launch_waits_for_the_device(log: list[str]) -> None:
    assert PlainClock(CUDA).once(lambda: log.append("a")) > 0
    assert log == ["synchronize", "a", "synchronize"]


def test_what_no_graph_can_hold_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError(
        "CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors..."
    )
    monkeypatch.setattr(cuda_clocks, "cuda", FakeCuda([], error))
    refused = wording("timing.graph-refused", error=re.compile(".*not permitted when stream is capturing"))
    with pytest.raises(CannotRunError, match=refused) as caught:
        GraphClock(CUDA).record([lambda: None])
    assert "\n" not in str(caught.value)
    assert "plain launches" in str(caught.value)


def test_the_clock_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(clock_of(torch.device("cpu"), Form.GRAPH, "auto"), PerfCounter)
    assert isinstance(clock_of(CUDA, Form.GRAPH, "events"), GraphClock)
    assert isinstance(clock_of(CUDA, Form.PLAIN, "events"), PlainClock)
    monkeypatch.setattr(cupti, "installed", lambda: False)
    assert isinstance(clock_of(CUDA, Form.GRAPH, "auto"), GraphClock)
    with pytest.raises(BadInputError, match="auto, events, cupti"):
        clock_of(CUDA, Form.GRAPH, "sundial")


class TestOnAGpu:
    pytestmark = gpu

    def test_a_graph_of_known_waits_takes_as_long(self) -> None:
        """A kernel that waits so many cycles: twice as many take twice as long, within the 5 % that clocks
        may change by between rounds, and 20 launches twenty times as long as one."""
        cycles = 400_000

        def timed(count: int, launches: int) -> float:
            wait = [lambda: torch.cuda._sleep(count)] * launches
            recorded = GraphClock(CUDA).record(wait)
            for _ in range(20):
                recorded.seconds()  # the device's clock rises first
            return min(recorded.seconds() for _ in range(5))

        one = timed(cycles, 20)
        assert timed(2 * cycles, 20) == pytest.approx(2 * one, rel=0.05)
        assert timed(cycles, 40) == pytest.approx(2 * one, rel=0.05)

    def test_plain_launches_count_the_host(self) -> None:
        x = torch.zeros(1, device="cuda")

        def slow() -> None:
            time.sleep(0.002)
            x.add_(1)

        recorded = PlainClock(CUDA).record([slow] * 5)
        assert recorded.seconds() >= 0.009  # the first sleep may begin before the first event has come

    def test_a_launch_that_waits_cannot_be_captured(self) -> None:
        x = torch.ones(1, device="cuda")
        with pytest.raises(CannotRunError, match=wording("timing.graph-refused")) as caught:
            GraphClock(CUDA).record([lambda: x.item()])
        assert "\n" not in str(caught.value)
        torch.cuda.synchronize()
        assert x.add(1).item() == 2  # the context lives


def test_a_round_is_the_mean_of_as_many_as_the_clock_can_see() -> None:
    seen: list[str] = []

    class Growing:
        taken = 0.0

        def seconds(self) -> float:
            seen.append("round")
            self.taken += 0.25
            return self.taken

    # 0.25 + 0.5 + 0.75 s are the first to reach 1 s.
    assert round_seconds(Growing(), lambda: seen.append("ready"), 1.0) == 0.5
    assert seen == ["ready", "round"] * 3


def test_a_round_that_takes_no_time_ends_in_an_error() -> None:
    class Nothing:
        def seconds(self) -> float:
            return 0.0

    with pytest.raises(CannotRunError, match=wording("timing.record-too-small")):
        round_seconds(Nothing(), lambda: None, 1e-6)
