# SPDX-License-Identifier: Apache-2.0
"""Named barriers, setmaxnreg and the instructions without effect (PTX ISA, "bar, barrier", "setmaxnreg")."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.engine_interface import LANES, Wait
from gdnbench.sim.machine.memory import GlobalMemory
from tests.sim.machine.bench import ALL, ONE, Bench, play, step

LANE = np.arange(LANES)


def fault(kind: FaultKind, text: str):  # type: ignore[no-untyped-def]
    return pytest.raises(KernelFault, match=f"{kind}: .*{text}")


@pytest.mark.parametrize("schedule", ["late", "random:1", "random:2"])
def test_sync_orders_all_warps(schedule: str) -> None:
    bench = Bench(schedule=schedule)
    log: list[str] = []
    scripts = [
        [
            lambda name=name: log.append(f"before {name}"),
            step("bar.sync 0", lanes=ALL),
            lambda name=name: log.append(f"between {name}"),
            step("bar.sync 0", lanes=ALL),
            lambda name=name: log.append(f"after {name}"),
        ]
        for name in range(4)
    ]
    play(bench, *scripts)  # type: ignore[arg-type]
    assert [entry.split()[0] for entry in log] == ["before"] * 4 + ["between"] * 4 + ["after"] * 4


def test_arrive_does_not_wait_and_sync_waits_for_it() -> None:
    bench = Bench(threads=64)
    log: list[str] = []
    producer = [
        step("bar.sync 2, 64", lanes=ALL),  # held until the consumer is ready
        lambda: log.append("produced"),
        step("bar.arrive 1, 64", lanes=ALL),
        lambda: log.append("went on"),
    ]
    consumer = [
        step("bar.arrive 2, 64", lanes=ALL),
        step("bar.sync 1, 64", lanes=ALL),
        lambda: log.append("consumed"),
    ]
    play(bench, producer, consumer)
    assert log.index("produced") < log.index("consumed")


def test_a_group_of_warps_has_its_own_barrier() -> None:
    """Warps 0 and 1 meet at barrier 1 while 2 and 3 never come to it."""
    bench = Bench()
    met: list[int] = []
    scripts = [[step("barrier.cta.sync %r1, %r2", lanes=ALL, r1=1, r2=64), lambda: met.append(1)]] * 2
    play(bench, *scripts, [step("bar.sync 2, 64", lanes=ALL)], [step("bar.sync 2, 64", lanes=ALL)])
    assert len(met) == 2


def test_exited_warps_are_not_waited_for() -> None:
    """PTX ISA, "exit": barriers for all threads do not wait for those that exited."""
    bench = Bench()
    done: list[int] = []
    play(bench, [step("bar.sync 0", lanes=ALL), lambda: done.append(1)])
    assert done == [1]


def test_unaligned_barrier_takes_lanes_one_by_one() -> None:
    bench = Bench(threads=32)
    wait = bench.issue("barrier.sync 0", lanes=LANE < 10)
    assert isinstance(wait, Wait)
    assert not wait.ready()
    assert not isinstance(bench.issue("barrier.sync 0", lanes=LANE >= 10), Wait)
    assert wait.ready()
    assert bench.issue("barrier.sync 0", lanes=LANE < 10, previous=wait) == ()


def test_a_block_with_a_partial_warp() -> None:
    """48 threads: the second warp has 16 lanes, and counts as a warp."""
    bench = Bench(threads=48)
    wait = bench.issue("bar.sync 0, 64", lanes=ALL)
    assert isinstance(wait, Wait)
    assert not isinstance(bench.issue("bar.sync 0, 64", warp=1, lanes=LANE < 16), Wait)
    assert wait.ready()


def test_reductions() -> None:
    odd = LANE % 2 == 1
    for text, want in (
        ("barrier.red.popc.u32 %r0, 1, 64, %p1", 32),
        ("barrier.red.and.pred %p0, 1, 64, %p1", 0),
        ("barrier.red.or.pred %p0, 1, 64, %p1", 1),
        ("barrier.red.popc.u32 %r0, 1, 64, !%p1", 32),
    ):
        bench = Bench(threads=64)
        wait = bench.issue(text, lanes=ALL, p1=odd)
        (second,) = bench.issue(text, warp=1, lanes=ALL, p1=odd)
        (first,) = bench.issue(text, lanes=ALL, p1=odd, previous=wait)
        assert first.tolist() == second.tolist() == [want] * LANES
    bench = Bench(threads=32)
    (got,) = bench.issue("bar.red.and.pred %p0, 1, %p1", lanes=ALL, p1=1)
    assert got.all()


@pytest.mark.parametrize("text", ["bar.sync 0", "barrier.sync.aligned 0", "bar.arrive 0, 64"])
def test_divergence_at_an_aligned_barrier(text: str) -> None:
    with fault(FaultKind.DIVERGENCE, r"without lanes \[5\] of the warp"):
        Bench().issue(text, lanes=LANE != 5)
    Bench().issue(text, lanes=ALL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bar.sync 16", "barrier 16; there are 16"),
        ("bar.sync 1, 48", "48 threads, no multiple of 32"),
        ("bar.sync 1, 1056", "1056 threads, no multiple of 32 up to 1024"),
        ("bar.sync 1, -32", "4294967264 threads, no multiple of 32 up to 1024"),
        ("barrier.arrive 1, 0", "0 threads"),
    ],
)
def test_misuse(text: str, message: str) -> None:
    with fault(FaultKind.BARRIER, message):
        Bench().issue(text, lanes=ALL)


def test_different_thread_counts() -> None:
    bench = Bench()
    bench.issue("bar.sync 1, 64", lanes=ALL)
    with fault(FaultKind.BARRIER, "for 96 threads, where others wait for 64"):
        bench.issue("bar.sync 1, 96", warp=1, lanes=ALL)


def test_lanes_that_name_different_barriers() -> None:
    with fault(FaultKind.DIVERGENCE, "the barrier's number differs"):
        Bench().issue("barrier.sync %r1", lanes=ALL, r1=LANE % 2)


def test_registers_move_between_warps() -> None:
    """One warp asks for 232 registers a thread, and gets them once another went down from 168 to 104."""
    bench = Bench(registers=168)
    wait = bench.issue("setmaxnreg.inc.sync.aligned.u32 232", lanes=ALL)
    assert isinstance(wait, Wait)
    assert "232 registers a thread" in wait.text()
    bench.issue("setmaxnreg.dec.sync.aligned.u32 104", warp=1, lanes=ALL)
    assert wait.ready()
    assert bench.issue("setmaxnreg.inc.sync.aligned.u32 232", lanes=ALL, previous=wait) == ()
    assert isinstance(bench.issue("setmaxnreg.inc.sync.aligned.u32 176", warp=2, lanes=ALL), Wait)


def test_unknown_register_counts_are_granted() -> None:
    assert Bench().issue("setmaxnreg.inc.sync.aligned.u32 232", lanes=ALL) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("setmaxnreg.dec.sync.aligned.u32 20", "20: no multiple"),
        ("setmaxnreg.dec.sync.aligned.u32 100", "100: no multiple"),
        ("setmaxnreg.inc.sync.aligned.u32 264", "264: no multiple"),
        ("setmaxnreg.dec.sync.aligned.u32 176", "176 in a warp that has 168"),
        ("setmaxnreg.inc.sync.aligned.u32 160", "160 in a warp that has 168"),
    ],
)
def test_register_misuse(text: str, message: str) -> None:
    with fault(FaultKind.BUDGET, message):
        Bench(registers=168).issue(text, lanes=ALL)


@pytest.mark.parametrize(
    "text",
    [
        "fence.proxy.async.shared::cta",
        "fence.mbarrier_init.release.cluster",
        "fence.acq_rel.cta",
        "fence.sc.gpu",
        "membar.gl",
        "griddepcontrol.wait",
        "griddepcontrol.launch_dependents",
        "nanosleep.u32 20",
    ],
)
def test_no_effect(text: str) -> None:
    bench = Bench()
    before = bench.shared.bytes.copy()
    assert bench.issue(text, lanes=ALL) == ()
    np.testing.assert_array_equal(bench.shared.bytes, before)


@pytest.mark.parametrize("text", ["fence.acq_rel", "fence.sc.acq_rel.cta"])
def test_fences_that_do_not_exist(text: str) -> None:
    with pytest.raises(UnsupportedError, match="fence"):
        Bench().issue(text, lanes=ALL)


def test_discard_poisons() -> None:
    memory = GlobalMemory()
    data = np.ones(128, np.float32)
    base = memory.add_array(data, "data")
    start = -(-base // 128) * 128
    bench = Bench(memory=memory)
    bench.issue("discard.global.L2 [%d1], 128", lanes=ONE, d1=start)
    first = (start - base) // 4
    assert np.isnan(data[first : first + 32]).all()
    assert (data[:first] == 1).all()
    with fault(FaultKind.MISALIGNED, "no multiple of 128"):
        bench.issue("discard.global.L2 [%d1], 128", lanes=ONE, d1=start + 16)


def test_what_no_unit_models_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"instruction tcgen05\.shift") as caught:
        Bench().issue("tcgen05.shift.cta_group::1.down [%r1]", r1=0)
    assert caught.value.place is not None
