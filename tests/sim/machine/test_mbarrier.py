# SPDX-License-Identifier: Apache-2.0
"""mbarriers. Expectations are the phase rules of the PTX ISA, chapter "mbarrier"."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.engine_interface import LANES, SHARED_BASE, SHARED_WINDOW, Wait
from gdnbench.sim.run import run_ptx
from tests.messages import wording
from tests.sim.machine.bench import ALL, Bench, play, step

AT = SHARED_BASE + 64
LANE = np.arange(LANES, dtype=np.uint64)

INIT = "mbarrier.init.shared.b64 [%a], %n"
ARRIVE = "mbarrier.arrive.shared.b64 %d0, [%a]"
ARRIVE_N = "mbarrier.arrive.shared.b64 _, [%a], %n"
ARRIVE_TX = "mbarrier.arrive.expect_tx.shared.b64 _, [%a], %n"
EXPECT = "mbarrier.expect_tx.relaxed.cta.shared.b64 [%a], %n"
COMPLETE = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%a], %n"
TEST = "mbarrier.test_wait.parity.shared.b64 %p0, [%a], %n"
TRY = "mbarrier.try_wait.parity.shared.b64 %p0, [%a], %n"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def init(bench: Bench, count: int, at: int = AT) -> None:
    bench.issue(INIT, a=at, n=count)


def passed(bench: Bench, parity: int) -> bool:
    """Whether a wait for `parity` goes through at once."""
    got = bench.issue(TRY, a=AT, n=parity)
    return not isinstance(got, Wait) and bool(got[0][0])


def fault(text: str, kind: FaultKind = FaultKind.BARRIER):  # type: ignore[no-untyped-def]
    return pytest.raises(KernelFault, match=f"{kind}: .*{text}")


def test_a_fresh_barrier_passes_parity_one(bench: Bench) -> None:
    init(bench, 1)
    assert passed(bench, 1)
    assert not passed(bench, 0)


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
def test_only_bit_0_of_a_parity_counts(engine: str) -> None:
    """ptxas of CUDA 13.0 shifts the operand of try_wait left by 31, for sm_90a and sm_100a. An H100 answers
    0, 1, 0, 1, 0, 1 to the parities 0, 1, 2, 3, 2^31 and 2^31 + 1 of a fresh mbarrier."""
    body = """mbarrier.init.shared.b64 [bar], 1;
    other: mbarrier.try_wait.parity.shared.b64 %p, [bar], 3;
    @!%p bra other;
    mbarrier.test_wait.parity.shared.b64 %q, [bar], 2;
    mbarrier.arrive.shared.b64 _, [bar];
    again: mbarrier.try_wait.parity.shared.b64 %p, [bar], 0x80000000;
    @!%p bra again;"""
    text = f"""
    .version 8.7
    .target sm_90a
    .address_size 64
    .visible .entry k(.param .u64 out) {{
    .reg .pred %p, %q; .reg .b32 %r; .reg .b64 %d; .shared .align 8 .b64 bar;
    {body}
    selp.b32 %r, 2, 1, %q; ld.param.u64 %d, [out]; st.global.b32 [%d], %r; ret; }}"""
    out = np.zeros(1, np.int32)
    run_ptx(text, "k", (1, 1, 1), (1, 1, 1), [out], engine=engine)
    assert out.tolist() == [1]


def test_phases_alternate(bench: Bench) -> None:
    init(bench, 2)
    for phase in range(5):
        assert not passed(bench, phase & 1)
        bench.issue(ARRIVE, a=AT)
        assert not passed(bench, phase & 1)
        bench.issue(ARRIVE, a=AT)
        assert passed(bench, phase & 1)
        assert not passed(bench, (phase + 1) & 1)


def test_each_lane_arrives(bench: Bench) -> None:
    init(bench, LANES)
    bench.issue(ARRIVE, lanes=LANE < 31, a=AT)
    assert not passed(bench, 0)
    bench.issue(ARRIVE, lanes=LANE == 31, a=AT)
    assert passed(bench, 0)


def test_lanes_arrive_across_phases(bench: Bench) -> None:
    init(bench, 16)
    bench.issue(ARRIVE, lanes=ALL, a=AT)  # two phases of 16
    assert bench.shared.phase[AT // 8] == 2


def test_counts(bench: Bench) -> None:
    init(bench, 5)
    bench.issue(ARRIVE_N, a=AT, n=3)
    assert not passed(bench, 0)
    bench.issue(ARRIVE_N, a=AT, n=2)
    assert passed(bench, 0)


def test_bytes_hold_the_phase(bench: Bench) -> None:
    init(bench, 1)
    bench.issue(ARRIVE_TX, a=AT, n=4096)
    assert not passed(bench, 0)
    bench.issue(COMPLETE, a=AT, n=4000)
    assert not passed(bench, 0)
    bench.issue(COMPLETE, a=AT, n=96)
    assert passed(bench, 0)


def test_bytes_may_come_before_they_are_expected(bench: Bench) -> None:
    init(bench, 1)
    bench.issue(COMPLETE, a=AT, n=128)
    bench.issue(EXPECT, a=AT, n=256)
    bench.issue(ARRIVE, a=AT)
    assert not passed(bench, 0)
    bench.issue(COMPLETE, a=AT, n=128)
    assert passed(bench, 0)


def test_drop_lowers_the_next_count(bench: Bench) -> None:
    init(bench, 2)
    bench.issue("mbarrier.arrive_drop.shared.b64 %d0, [%a]", a=AT)
    assert not passed(bench, 0)  # the current phase still waits for the other
    bench.issue(ARRIVE, a=AT)
    assert passed(bench, 0)
    bench.issue(ARRIVE, a=AT)  # one is enough now
    assert passed(bench, 1)


def test_states(bench: Bench) -> None:
    init(bench, 1)
    state = bench.issue(ARRIVE, a=AT)[0]
    (count,) = bench.issue("mbarrier.pending_count.b64 %r0, %d0", d0=state)
    assert count[0] == 1  # as it was before the arrival
    (done,) = bench.issue("mbarrier.test_wait.shared.b64 %p0, [%a], %d0", a=AT, d0=state)
    assert done[0] == 1
    # The state of the phase that has now begun.
    assert isinstance(
        bench.issue("mbarrier.try_wait.shared.b64 %p0, [%a], %d0", a=AT, d0=int(state[0]) ^ 1 << 63), Wait
    )


@pytest.mark.parametrize("op", ["arrive", "arrive_drop"])
@pytest.mark.parametrize("lanes", [ALL, LANE % 3 == 1], ids=["all", "some"])
@pytest.mark.parametrize("spare", [0, 5])
def test_states_of_a_warp(op: str, lanes: np.ndarray, spare: int, bench: Bench) -> None:
    """Each lane finds one arrival fewer pending than the lane before it did."""
    arrivals = int(lanes.sum())
    init(bench, arrivals + spare)
    state = bench.issue(f"mbarrier.{op}.shared.b64 %d0, [%a]", lanes=lanes, a=AT)[0]
    (counts,) = bench.issue("mbarrier.pending_count.b64 %r0, %d0", lanes=lanes, d0=state)
    assert counts[lanes].tolist() == list(range(arrivals + spare, spare, -1))
    assert passed(bench, 0) == (spare == 0)


def test_no_complete(bench: Bench) -> None:
    init(bench, 2)
    bench.issue("mbarrier.arrive.noComplete.shared.b64 %d0, [%a], %n", a=AT, n=1)
    with fault("completed phase 0"):
        bench.issue("mbarrier.arrive.noComplete.shared.b64 %d0, [%a], %n", a=AT, n=1)


def test_generic_and_cluster_addresses(bench: Bench) -> None:
    bench.issue("mbarrier.init.b64 [%d1], %n", d1=SHARED_WINDOW + AT, n=2)
    bench.issue("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%a]", a=AT)
    bench.issue("mbarrier.arrive.b64 %d0, [%d1]", d1=SHARED_WINDOW + AT)
    assert passed(bench, 0)
    with fault("is not shared memory", FaultKind.OUT_OF_BOUNDS):
        bench.issue("mbarrier.arrive.b64 %d0, [%d1]", d1=AT)


def test_inval_frees_the_bytes(bench: Bench) -> None:
    init(bench, 1)
    with fault("where an mbarrier is"):
        init(bench, 1)
    bench.issue("mbarrier.inval.shared.b64 [%a]", a=AT)
    with fault("no mbarrier"):
        bench.issue(ARRIVE, a=AT)
    init(bench, 1)
    assert not passed(bench, 0)


def test_many_lanes_initialise_once(bench: Bench) -> None:
    bench.issue(INIT, lanes=ALL, a=AT, n=1)
    assert bench.notes() == ["32 lanes initialise one mbarrier"]


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        (TRY, {"a": AT + 8, "n": 0}, "no mbarrier was initialised"),
        (ARRIVE, {"a": AT + 8}, "no mbarrier was initialised"),
        (EXPECT, {"a": AT + 8, "n": 16}, "no mbarrier was initialised"),
        (ARRIVE_N, {"a": AT, "n": 3}, "3 arrivals.*waits for 2 of 2"),
        (ARRIVE_N, {"a": AT, "n": 0}, "count 0"),
        (EXPECT, {"a": AT, "n": 1 << 20}, "tx-count 1048576.*out of range"),
        (INIT, {"a": AT + 8, "n": 0}, "count 0"),
        (INIT, {"a": AT + 8, "n": 1 << 20}, "count 1048576"),
    ],
)
def test_misuse(bench: Bench, text: str, values: dict[str, int], message: str) -> None:
    init(bench, 2)
    with fault(message) as caught:
        bench.issue(text, **values)
    assert caught.value.place is not None
    assert "CTA (0, 0, 0), warp 0, lane 0" in str(caught.value)


def test_addresses(bench: Bench) -> None:
    with fault("no multiple of 8", FaultKind.MISALIGNED):
        init(bench, 1, AT + 4)
    with fault("the CTA has", FaultKind.OUT_OF_BOUNDS):
        init(bench, 1, SHARED_BASE + 64 * 1024)


def test_wait_says_what_it_waits_for(bench: Bench) -> None:
    init(bench, 2)
    bench.issue(ARRIVE_TX, a=AT, n=4096)
    wait = bench.issue(TRY, a=AT, n=0)
    state = wording(
        "sim.machine.mbarrier-state", address=f"{AT:#x}", parity=0, phase=0, pending=1, expected=2, tx=4096
    )
    assert re.fullmatch(state, wait.text())
    assert not wait.ready()
    bench.issue(ARRIVE, a=AT)
    bench.issue(COMPLETE, a=AT, n=4096)
    assert wait.ready()
    (done,) = bench.issue(TRY, a=AT, n=0, previous=wait)
    assert done[0] == 1


def test_a_wait_that_timed_out_is_false(bench: Bench) -> None:
    init(bench, 1)
    wait = bench.issue(TRY, a=AT, n=0)
    wait.timed_out = True
    assert wait.over()
    (done,) = bench.issue(TRY, a=AT, n=0, previous=wait)
    assert done[0] == 0


@pytest.mark.parametrize(("seed", "least"), [(2, 100), (1, 360)], ids=["even", "odd"])
@pytest.mark.parametrize("ask", [TEST, TRY], ids=["test_wait", "try_wait"])
def test_who_asks_is_answered_at_once_now_and_then_under_random(ask: str, seed: int, least: int) -> None:
    bench = Bench(schedule=f"random:{seed}")
    init(bench, 1)
    answers = [bench.issue(ask, a=AT, n=0) for _ in range(400)]
    at_once = [answer for answer in answers if not isinstance(answer, Wait)]
    assert least < len(at_once) < 400
    assert not any(answer[0][0] for answer in at_once)


@pytest.mark.parametrize("seed", [1, 3, 5, 7])
def test_under_an_odd_seed_a_ring_is_peeked_at_in_vain_all_around(seed: int) -> None:
    """As many stages as a ring of a GEMM has: a peek in the wrong parity shows when all are in vain."""
    bench = Bench(schedule=f"random:{seed}")
    init(bench, 1)
    rounds = [[bench.issue(TRY, a=AT, n=0) for _ in range(13)] for _ in range(8)]
    assert any(not any(isinstance(answer, Wait) for answer in answers) for answers in rounds)


@pytest.mark.parametrize("ask", [TEST, TRY], ids=["test_wait", "try_wait"])
def test_asking_for_ever_is_a_deadlock_under_random(ask: str) -> None:
    bench = Bench(schedule="random:1", threads=32)
    init(bench, 1)
    with fault("nothing in the CTA can go on", FaultKind.DEADLOCK):
        play(bench, [step(ask, a=AT, n=0)])


def test_lanes_wait_for_different_barriers(bench: Bench) -> None:
    init(bench, 1)
    init(bench, 1, AT + 8)
    bench.issue(ARRIVE, a=AT)
    lanes = LANE < 2
    wait = bench.issue(TRY, lanes=lanes, a=AT + 8 * (LANE % 2), n=0)
    assert isinstance(wait, Wait)
    wait.timed_out = True
    (done,) = bench.issue(TRY, lanes=lanes, a=AT + 8 * (LANE % 2), n=0, previous=wait)
    assert done[:2].tolist() == [1, 0]


def test_producer_and_consumer_over_several_phases(bench: Bench) -> None:
    """A ring of one slot: full and empty barriers, ten items."""
    full, empty = AT, AT + 8
    init(bench, 1, full)
    init(bench, 1, empty)
    slot: list[int] = [0]
    seen: list[int] = []
    producer: list[object] = []
    consumer: list[object] = []
    for item in range(10):
        producer += [
            step(TRY, a=empty, n=(item & 1) ^ 1),
            lambda item=item: slot.__setitem__(0, item),
            step(ARRIVE, a=full),
        ]
        consumer += [
            step(TRY, a=full, n=item & 1),
            lambda: seen.append(slot[0]),
            step(ARRIVE, a=empty),
        ]
    play(bench, producer, consumer)  # type: ignore[arg-type]
    assert seen == list(range(10))


INVALIDATED = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k()
{
.reg .pred %p, %q;
.reg .b32 %t;
.shared .align 8 .b64 bar;
mov.u32 %t, %tid.x;
setp.eq.u32 %p, %t, 0;
@%p mbarrier.init.shared.b64 [bar], 2;
bar.sync 0;
setp.lt.u32 %q, %t, 32;
@%q bra inval;
again: mbarrier.try_wait.parity.shared.b64 %q, [bar], 0;
@!%q bra again;
ret;
inval:
mov.u32 %t, 0;
spin: add.u32 %t, %t, 1;
setp.lt.u32 %q, %t, 20000;
@%q bra spin;
@%p mbarrier.inval.shared.b64 [bar];
ret;
}
"""


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
def test_a_wait_names_its_place_where_the_mbarrier_is_no_more(engine: str) -> None:
    with fault("no mbarrier was initialised") as caught:
        run_ptx(INVALIDATED, "k", (1, 1, 1), (64, 1, 1), [], engine=engine)
    assert caught.value.place is not None
    assert caught.value.place.text.endswith("mbarrier.try_wait.parity.shared.b64 %q, [bar], 0;")
