# SPDX-License-Identifier: Apache-2.0
"""The scheduler: turns, landing of effects, peeks, and deadlocks with who waits for what."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.async_queue import PATIENCE, AsyncOperation
from gdnbench.sim.machine.engine_interface import SHARED_BASE
from gdnbench.sim.machine.memory import GlobalMemory
from tests.messages import wording
from tests.sim.machine.bench import ALL, Bench, play, step

BAR = SHARED_BASE
INIT = "mbarrier.init.shared.b64 [%a], %n"
ARRIVE = "mbarrier.arrive.shared.b64 _, [%a], 1"
ARRIVE_TX = "mbarrier.arrive.expect_tx.shared.b64 _, [%a], %n"
TRY = "mbarrier.try_wait.parity.shared.b64 %p0, [%a], %n"
BULK = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%d1], %n, [%a]"


def deadlock() -> pytest.RaisesExc[KernelFault]:
    return pytest.raises(KernelFault, match=f"{FaultKind.DEADLOCK}: ")


def test_deadlock_names_who_waits_for_what() -> None:
    bench = Bench()
    bench.issue(INIT, a=BAR, n=2)
    with deadlock() as caught:
        play(
            bench,
            [step(ARRIVE_TX, a=BAR, n=512), step(TRY, a=BAR, n=0)],
            [step("bar.sync 3, 96", lanes=ALL)],
            [step("bar.sync 3, 96", lanes=ALL)],
        )
    message = str(caught.value)
    mbarrier = wording(
        "sim.machine.mbarrier-state", address=f"{BAR:#x}", parity=0, phase=0, pending=1, expected=2, tx=512
    )
    assert re.search(r"warp 0 \(1 lanes\) waits for " + mbarrier, message)
    barrier = wording("sim.machine.threads-missing", barrier=3, arrived=64, threads=96)
    assert re.search(r"warps \[1, 2\] \(64 lanes\) wait for " + barrier, message)
    assert "PTX line" in message
    assert "CTA (0, 0, 0)" in message


def test_a_barrier_for_all_warps_names_the_missing_ones() -> None:
    bench = Bench()
    bench.issue(INIT, a=BAR, n=1)
    sync = [step("bar.sync 0", lanes=ALL)]
    with deadlock() as caught:
        play(bench, sync, sync, [step(TRY, a=BAR, n=0), *sync], sync)
    assert re.search(wording("sim.machine.warps-missing", barrier=0, warps="[2]"), str(caught.value))


def test_no_deadlock_when_the_last_arrival_comes() -> None:
    bench = Bench()
    bench.issue(INIT, a=BAR, n=2)
    wait = [step(ARRIVE, a=BAR), step(TRY, a=BAR, n=0)]
    play(bench, wait, wait)


def test_a_peek_gives_up_and_the_warp_goes_on() -> None:
    """Peek at a barrier that only this warp will complete, then arrive and wait for it."""
    bench = Bench(threads=32)
    bench.issue(INIT, a=BAR, n=1)
    (warp,) = play(
        bench,
        [
            step(TRY, a=BAR, n=0, loop=False),
            step(TRY, a=BAR, n=0, loop=False),
            step(ARRIVE, a=BAR),
            step(TRY, a=BAR, n=0),
        ],
    )
    assert [bool(warp.results[index][0][0]) for index in (0, 1, 3)] == [False, False, True]  # type: ignore[index]


def test_many_peeks_of_many_warps() -> None:
    """Every warp peeks in turn, each time after the others moved: that is progress, not a deadlock."""
    bench = Bench()
    bench.issue(INIT, a=BAR, n=4)
    script = [step(TRY, a=BAR, n=0, loop=False)] * 12 + [step(ARRIVE, a=BAR), step(TRY, a=BAR, n=0)]
    play(bench, script, script, script, script)


def test_late_lands_what_is_waited_for_and_nothing_else() -> None:
    memory = GlobalMemory()
    data = np.arange(64, dtype=np.float32)
    base = memory.add_array(data, "data")
    bench = Bench(memory=memory)
    bench.issue(INIT, a=BAR, n=1)
    bench.issue(INIT, a=BAR + 8, n=1)
    target = SHARED_BASE + 1024
    seen: list[tuple[bool, bool]] = []

    def look() -> None:
        first = bench.shared.bytes[target : target + 64].view(np.float32)
        second = bench.shared.bytes[target + 64 : target + 128].view(np.float32)
        seen.append((bool(np.isnan(first).any()), bool(np.isnan(second).any())))

    play(
        bench,
        [
            step(ARRIVE_TX, a=BAR, n=64),
            step(ARRIVE_TX, a=BAR + 8, n=64),
            step(BULK, s=target, d1=base, n=64, a=BAR),
            step(BULK, s=target + 64, d1=base + 64, n=64, a=BAR + 8),
            look,
            step(TRY, a=BAR + 8, n=0),
            look,
            step(TRY, a=BAR, n=0),
            look,
        ],
    )
    assert seen == [(True, True), (True, False), (False, False)]
    np.testing.assert_array_equal(bench.shared.bytes[target : target + 128].view(np.float32), data[:32])


def test_effects_land_at_exit() -> None:
    memory = GlobalMemory()
    base = memory.add_array(np.ones(4, np.float32), "data")
    bench = Bench(memory=memory)
    bench.issue(INIT, a=BAR, n=1)
    play(bench, [step(BULK, s=SHARED_BASE + 64, d1=base, n=16, a=BAR)])
    assert not len(bench.cta.queue)
    assert (bench.shared.bytes[SHARED_BASE + 64 : SHARED_BASE + 80].view(np.float32) == 1).all()


def test_overdue_effects_land_for_kernels_that_poll() -> None:
    bench = Bench()
    landed: list[int] = []
    bench.cta.queue.submit(AsyncOperation("store", land=lambda: landed.append(1)))
    for _ in range(PATIENCE - 1):
        bench.cta.queue.tick()
    assert not landed
    bench.cta.queue.tick()
    assert landed == [1]


def test_streams_land_in_order_under_random() -> None:
    for seed in range(20):
        bench = Bench(schedule=f"random:{seed}")
        order: list[tuple[str, int]] = []
        for index in range(12):
            for stream in ("a", "b"):
                land = partial(order.append, (stream, index))
                bench.cta.queue.submit(AsyncOperation(stream, land=land, stream=stream))
            bench.cta.queue.tick()
        bench.cta.queue.drain()
        for stream in ("a", "b"):
            assert [index for name, index in order if name == stream] == list(range(12))


def test_random_is_decided_by_the_seed() -> None:
    def order(seed: int) -> list[int]:
        bench = Bench(schedule=f"random:{seed}")
        landed: list[int] = []
        for index in range(20):
            bench.cta.queue.submit(AsyncOperation("x", land=lambda i=index: landed.append(i)))
        bench.cta.queue.drain()
        return landed

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) == 5


def test_the_observer_sees_issue_and_landing() -> None:
    bench = Bench()
    seen: list[tuple[str, bool]] = []
    bench.cta.queue.observer = lambda operation: seen.append((operation.name, operation.landed))
    bench.cta.queue.submit(AsyncOperation("x", land=lambda: None))
    bench.cta.queue.drain()
    assert seen == [("x", False), ("x", True)]
