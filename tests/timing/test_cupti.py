# SPDX-License-Identifier: Apache-2.0
"""Times from CUPTI's records, handed over by a module that stands in for cupti-python."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gdnbench.errors import CannotRunError
from gdnbench.timing import cupti
from gdnbench.timing.clocks import PerfCounter
from gdnbench.timing.cupti import CuptiClock
from tests.messages import wording


class Kind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    RUNTIME = 5
    CONCURRENT_KERNEL = 10


class FakeCupti(ModuleType):
    """Hands records over when it is told to flush, as CUPTI does with a buffer that is not full."""

    ActivityKind = Kind

    class cuptiError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.now = 1000
        self.enabled: list[Kind] = []
        self.waiting: list[Any] = []
        self.deaf = False
        self.refuses = False
        self._completed: Callable[[list[Any]], None] = lambda activities: None

    def activity_register_callbacks(
        self, requested: Callable[[], tuple[int, int]], completed: Callable[[list[Any]], None]
    ) -> None:
        size, records = requested()
        assert size > 0
        assert records == 0  # as many as fit
        self._completed = completed

    def activity_enable(self, kind: Kind) -> None:
        if self.refuses:
            raise self.cuptiError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
        self.enabled.append(kind)

    def get_timestamp(self) -> int:
        self.now += 1
        return self.now

    def activity_flush_all(self, flag: int) -> None:
        assert flag == 1  # forced: the buffer is never full
        waiting, self.waiting = self.waiting, []
        self._completed(waiting)

    def run(self, name: str, nanoseconds: int, gap: int = 10, kind: Kind = Kind.CONCURRENT_KERNEL) -> None:
        self.now += gap
        begin = self.now
        self.now += nanoseconds
        if not self.deaf:
            self.waiting.append(SimpleNamespace(kind=kind, name=name, start=begin, end=self.now))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    made = FakeCupti()
    package = ModuleType("cupti")
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", made)
    monkeypatch.setattr(cupti, "_tracer", None)
    monkeypatch.setattr(cupti, "cuda", SimpleNamespace(synchronize=lambda: None))
    return made


def test_a_launch_is_from_its_first_kernel_to_the_end_of_its_last(fake: FakeCupti) -> None:
    def launch() -> None:
        fake.run("scan", 300, gap=5000)  # the gap before a launch is no part of it
        fake.run("state", 700, gap=100)  # that between its kernels is

    clock = CuptiClock(PerfCounter())
    assert fake.enabled == [Kind.CONCURRENT_KERNEL, Kind.MEMCPY, Kind.MEMSET]
    timed = clock.record([launch] * 3)
    assert timed.seconds() == pytest.approx(3 * 1100e-9, rel=1e-12)
    assert timed.by_kernel() == pytest.approx({"scan": 300e-9, "state": 700e-9}, rel=1e-12)


def test_overlapping_kernels_are_not_counted_twice(fake: FakeCupti) -> None:
    def launch() -> None:
        fake.run("first", 500)
        fake.now -= 200  # the second begins before the first has ended
        fake.run("second", 500, gap=0)

    assert CuptiClock(PerfCounter()).record([launch]).seconds() == pytest.approx(800e-9, rel=1e-12)


def test_what_ran_before_the_round_and_what_holds_the_device_do_not_count(fake: FakeCupti) -> None:
    fake.run("flush", 10_000)

    def launch() -> None:
        fake.run("kernel", 400)
        fake.run("cudaLaunchKernel", 50, kind=Kind.RUNTIME)

    class Held(PerfCounter):
        def record(self, launches: Any) -> Any:
            hold = lambda: fake.run("void at::cuda::(anonymous namespace)::spin_kernel(long)", 9000)  # noqa: E731
            return super().record([hold, *launches])

    timed = CuptiClock(Held()).record([launch] * 2)
    assert timed.seconds() == pytest.approx(800e-9, rel=1e-12)
    assert list(timed.by_kernel()) == ["kernel"]


def test_copies_and_fills_count(fake: FakeCupti) -> None:
    def launch() -> None:
        fake.run("", 100, gap=0, kind=Kind.MEMSET)
        fake.run("kernel", 400, gap=0)

    assert CuptiClock(PerfCounter()).record([launch]).seconds() == pytest.approx(500e-9, rel=1e-12)


def test_nothing_recorded_is_loud(fake: FakeCupti) -> None:
    fake.run("flush", 10_000)
    timed = CuptiClock(PerfCounter()).record([lambda: fake.run("kernel", 400)])
    fake.deaf = True
    with pytest.raises(CannotRunError, match=wording("timing.cupti-empty")) as caught:
        timed.seconds()
    assert "\n" not in str(caught.value)
    assert re.search(wording("timing.cupti-empty", records=1), str(caught.value))


def test_some_missing_is_loud(fake: FakeCupti) -> None:
    count = 0

    def launch() -> None:
        nonlocal count
        count += 1
        fake.deaf = count == 3
        fake.run("kernel", 400)

    with pytest.raises(CannotRunError, match=wording("timing.cupti-missing", kernels=3, launches=4)):
        CuptiClock(PerfCounter()).record([launch] * 4).seconds()


def test_a_second_profiler_is_one_line(fake: FakeCupti) -> None:
    fake.refuses = True
    with pytest.raises(CannotRunError, match="MULTIPLE_SUBSCRIBERS"):
        CuptiClock(PerfCounter())


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    monkeypatch.setitem(sys.modules, "cupti.cupti", None)
    monkeypatch.setattr(cupti, "_tracer", None)
    with pytest.raises(CannotRunError, match=wording("timing.cupti-package")) as caught:
        CuptiClock(PerfCounter())
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif(not cupti.installed(), reason="cupti-python is not installed")
def test_cupti_sees_the_kernels_of_a_graph() -> None:
    from gdnbench.timing.cuda_clocks import GraphClock

    x = torch.zeros(1 << 24, device="cuda")
    launch = [lambda: x.add_(1)] * 10
    timed = CuptiClock(GraphClock(torch.device("cuda"))).record(launch)
    events = GraphClock(torch.device("cuda")).record(launch)
    events.seconds()
    # The same kernels without what lies between them, of 64 MiB each: a few us of some 30.
    assert 0.5 * events.seconds() < timed.seconds() < 1.1 * events.seconds()
    assert len(timed.by_kernel()) == 1
