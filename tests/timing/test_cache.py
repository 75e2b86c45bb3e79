# SPDX-License-Identifier: Apache-2.0
"""The cache made cold, and the control that says whether it is: on a model of a cache with a known answer."""

from __future__ import annotations

import re
from collections import OrderedDict
from functools import partial

import pytest
import torch
from torch import Tensor

from gdnbench.ops import operation
from gdnbench.timing import bench, cache
from gdnbench.timing.bench import Bench
from gdnbench.timing.cache import MARGIN, Flush, judged, judged_warm, last_level
from gdnbench.timing.clocks import PerfCounter
from gdnbench.timing.rotation import RotationOptions
from gdnbench.timing.types import Cache, Mode
from tests.messages import wording

CPU = torch.device("cpu")
LINE = 4096
"""Bytes of a line of the model: large, so that there are few to count."""
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class Model:
    """A cache of `size` bytes that forgets what was read longest ago. A line from memory takes `slow` times
    what one from the cache does; a launch takes `fixed` lines' time beside."""

    def __init__(self, size: int, slow: float = 4.0, fixed: float = 0.0) -> None:
        self.now = 0.0
        self._lines: OrderedDict[int, None] = OrderedDict()
        self._most = size // LINE
        self._slow, self._fixed = slow, fixed

    def clock(self) -> float:
        self.now += 1e-12
        return self.now

    def read(self, memory: Tensor, total: Tensor) -> None:
        begin = memory.data_ptr() // LINE
        end = -(-(memory.data_ptr() + memory.nbytes) // LINE)
        self.now += 1e-6 * self._fixed
        for line in range(begin, end):
            self.now += 1e-6 * (1.0 if line in self._lines else self._slow)
            self._lines[line] = None
            self._lines.move_to_end(line)
            if len(self._lines) > self._most:
                self._lines.popitem(last=False)


def bench_on(
    model: Model, monkeypatch: pytest.MonkeyPatch, mode: Cache, size: int | None, **options: int
) -> Bench:
    monkeypatch.setattr(cache, "read_memory", model.read)
    monkeypatch.setattr(cache, "last_level", lambda device: size)
    monkeypatch.setattr(bench, "clock_of", lambda *arguments: PerfCounter(model.clock))
    found = operation("gdn_decode")
    call = found.synth(batch=2, heads=(1, 2), seed=0)  # 2 x 2 states of 64 KiB and little else
    given = RotationOptions(placements=1, **options)
    return Bench(call, found, CPU, Mode(mode), given)


MIB = 1 << 20


def test_a_flush_that_holds_is_found_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench_on(Model(2 * MIB), monkeypatch, Cache.COLD, 2 * MIB, touched=8 * MIB)
    control = made.control()
    assert control.holds is True
    # The model's own answer: everything from memory, and everything from the cache.
    assert control.cold == pytest.approx(control.known, rel=0.03)  # a line more or less at the ends
    assert control.warm == pytest.approx(control.known / 4, rel=0.03)
    assert control.cache_bytes == 2 * MIB


@pytest.mark.parametrize("sets", [2, 4])
def test_a_flush_that_does_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch, sets: int) -> None:
    """All sets fit into the cache together, so what was read in the round before is still there."""
    made = bench_on(Model(4 * MIB), monkeypatch, Cache.COLD, 4 * MIB, touched=16 * MIB, most_sets=sets)
    monkeypatch.setattr(made, "_flush", lambda: None)
    control = made.control()
    assert control.holds is False
    assert control.cold < control.known / 2
    assert re.search(wording("timing.cache-warm"), control.reason)


def test_a_flush_that_is_too_small_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(4 * MIB)
    made = bench_on(model, monkeypatch, Cache.COLD, 4 * MIB, touched=16 * MIB, most_sets=4)
    monkeypatch.setattr(made, "_flush", Flush(CPU, MIB))
    assert made.control().holds is False


def test_sets_that_outnumber_the_cache_need_no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench_on(Model(2 * MIB), monkeypatch, Cache.COLD, 2 * MIB, touched=8 * MIB)
    assert made.sets * made.launch_bytes > 8 * MIB
    monkeypatch.setattr(made, "_flush", lambda: None)
    assert made.control().holds is True


def test_a_launch_that_costs_more_than_its_bytes_makes_the_control_blind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = bench_on(Model(2 * MIB, fixed=1e5), monkeypatch, Cache.COLD, 2 * MIB, touched=8 * MIB)
    control = made.control()
    assert control.holds is None
    assert "blind" in control.reason


def test_warm_rounds_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench_on(Model(2 * MIB), monkeypatch, Cache.WARM, 2 * MIB, touched=8 * MIB).control().holds is True
    small = bench_on(Model(LINE), monkeypatch, Cache.WARM, LINE, touched=8 * MIB)
    assert small.control().holds is False


def test_where_the_line_is() -> None:
    """Of 100 when known and 40 when warm, a cold time may be 6 % fast, which is a tenth of the bytes."""
    of = partial(judged, warm=40.0, known=100.0, size=1, cache_bytes=10)
    assert of(100 * (1 - MARGIN)).holds is True
    found = of(93.9)
    assert found.holds is False
    assert re.fullmatch(wording("timing.cache-warm", part="10%"), found.reason)
    assert of(200.0).holds is True
    assert judged(100.0, 88.1, 100.0, 1, 10).holds is None
    assert judged(100.0, 88.0, 100.0, 1, 10).holds is True
    assert judged(50.0, 99.0, 100.0, 11, 10).holds is True  # more than the cache: nothing to find there
    assert judged(50.0, 99.0, 100.0, 11, None).holds is None
    assert judged_warm(88.0, 100.0, 1, 10).holds is True
    assert judged_warm(88.1, 100.0, 1, 10).holds is None
    assert judged_warm(88.1, 100.0, 11, 10).holds is False


def test_a_flush_reads_all_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(cache, "read_memory", lambda memory, total: read.append(memory.nbytes))
    for size in (1, 8, 1001, 4096):
        flush = Flush(CPU, size)
        flush()
        assert read.pop() == flush.bytes >= size


def test_reading_reads_every_word() -> None:
    memory = torch.randint(-(1 << 40), 1 << 40, (1003,), generator=torch.Generator().manual_seed(0))
    total = torch.zeros((), dtype=torch.int64)
    cache.read_memory(memory, total)
    assert total.item() == sum(memory.tolist())


def test_sizes_of_caches_are_read_as_the_kernel_writes_them() -> None:
    assert cache._bytes("32768K\n") == 32 * MIB
    assert cache._bytes("512M") == 512 * MIB
    assert cache._bytes("4096") == 4096
    found = last_level(CPU)
    # Smaller than any last level of this century, larger than any.
    assert found is None or 256 << 10 <= found <= 4 << 30


class TestOnAGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("form", ["graph", "plain"])
    def test_cold_is_cold_and_warm_is_warm(self, form: str) -> None:
        """Two MiB of state a launch: far less than any L2 holds."""
        from gdnbench.judge.calls import Call
        from gdnbench.timing.types import Form

        found = operation("gdn_decode")
        call = found.synth(batch=16, heads=(8, 16), seed=0)
        moved = Call({n: t.cuda() for n, t in call.tensors.items()}, call.scalars, call.conventions)
        for mode in Cache:
            how, device = Mode(mode, Form(form)), torch.device("cuda")
            made = Bench(moved, found, device, how, RotationOptions(placements=1), "events")
            control = made.control()
            assert control.holds is not False, control
            if form == "graph":
                assert control.holds is True, control
