# SPDX-License-Identifier: Apache-2.0
"""The replay of one SM on code that is made up, with expectations worked out by hand from the parameters."""

from __future__ import annotations

import statistics

import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.predict.regions import Pipe
from gdnbench.sim.predict.sm import Memory, sectors_lacking
from gdnbench.sim.predict.trace import (
    SECTOR,
    Accessed,
    Arrived,
    CtaTrace,
    Entered,
    Issued,
    Kind,
    Operation,
    Space,
    Step,
    Waited,
)
from tests.sim.predict.made_up import PLAIN, cost, run

COPIES = 8000


def test_stalls_and_scoreboards() -> None:
    """Issued at 0, 4 and, once the second's result is there at 4 + 20, at 24; the next may issue at 26."""
    region = (cost(0, stall=4), cost(1, result=3, latency=20), cost(2, waits=(3,), stall=2))
    assert run({0: region}, [[Entered(0)]])[0] == 26


@pytest.mark.parametrize(("warps", "cycles"), [(4, 10), (5, 20), (8, 20), (12, 30)])
def test_warps_of_a_sub_partition_share_its_issue(warps: int, cycles: int) -> None:
    """Ten instructions a warp; warps 0 and 4 are of the same of four sub-partitions."""
    region = tuple(cost(0) for _ in range(10))
    assert run({0: region}, [[Entered(0)] for _ in range(warps)])[0] == cycles


def test_a_pipe_takes_one_instruction_at_a_time() -> None:
    """Ten instructions of two cycles for each of two warps of a sub-partition: 40."""
    region = tuple(cost(0, pipe=Pipe.ALU, busy=2.0) for _ in range(10))
    assert run({0: region}, [[Entered(0)] for _ in range(8)])[0] == 40


def test_a_phase_ends_with_its_last_contribution() -> None:
    """Warp 1 arrives after 100 cycles and the cycle of its arrival; warp 0 goes on `phase_latency` later."""
    regions = {0: tuple(cost(0) for _ in range(100))}
    end, sm = run(regions, [[Waited(5, (0,))], [Entered(0), Arrived(6, (0,))]], arrivals=[1])
    assert end == 101 + PLAIN.phase_latency.value
    assert sm.waits == {("compute", "ld"): 101 + PLAIN.phase_latency.value - 1}


def test_a_copy_ends_a_phase_after_the_way_of_its_bytes() -> None:
    """Bytes that L2 has: the copy engine, the rate and latency of L2, and what a copy takes longer."""
    copy = Operation(Kind.COPY_IN, 3, 5600, (), phases=[0])
    machine = PLAIN.with_values(copy_cycles=30, l2_rate=56, l2_latency=200, copy_latency=100)
    end, _ = run({}, [[Issued(3, (0,)), Waited(5, (0,))]], machine, operations=[copy], arrivals=[1])
    assert end == 1 + 30 + 5600 / 56 + 200 + 100 + machine.phase_latency.value


def test_bank_conflicts_keep_other_warps_waiting() -> None:
    """Of four warps each loads with 32 cycles; the last has its value after 128 and the latency."""
    region = (cost(0, memory=True, result=0), cost(1, waits=(0,)))
    warp: list[Step] = [Entered(0), Accessed(0, Space.SHARED, 32, ())]
    end, _ = run({0: region}, [warp] * 4)
    assert end == 4 * 32 + PLAIN.shared_latency.value + 1


def test_ctas_run_as_many_at_once_as_are_resident() -> None:
    region = (cost(0, result=0, latency=99), cost(1, waits=(0,)))
    assert run({0: region}, [[Entered(0)]], ctas=6, resident=3)[0] == 200
    assert run({0: region}, [[Entered(0)]], ctas=6, resident=2)[0] == 300


def test_an_sm_starts_one_cta_after_the_other() -> None:
    """Each of six takes 10 cycles, and the last begins five intervals after the first, 20 cycles later."""
    region = tuple(cost(0) for _ in range(10))
    machine = PLAIN.with_values(cta_interval=100, cta_start=20)
    assert run({0: region}, [[Entered(0)]], machine, ctas=6, resident=3)[0] == 5 * 100 + 20 + 10


def test_what_an_earlier_cta_loaded_is_in_l2() -> None:
    first, second = (
        CtaTrace(n, [[Accessed(0, Space.GLOBAL, 1, sectors)]], ["compute"], [], [])
        for n, sectors in enumerate([(1, 2), (2, 3)])
    )
    assert sectors_lacking([first, second]) == [{1, 2}, {3}]


def test_ctas_that_run_together_share_what_they_fetch() -> None:
    """Both need lines 0 to 3 of four sectors: each fetches two of them."""
    traces = [
        CtaTrace(n, [[Accessed(0, Space.GLOBAL, 1, (*range(16), 100 + n))]], ["compute"], [], [])
        for n in range(2)
    ]
    even = {line * 4 + sector for line in (0, 2) for sector in range(4)}
    assert sectors_lacking(traces, together=True) == [even | {100}, (set(range(16)) - even) | {101}]


@pytest.mark.parametrize("first", range(4))
def test_shares_do_not_depend_on_where_lines_lie(first: int) -> None:
    """Four CTAs need two lines of each of four rows, which are 32 lines apart: each fetches two lines."""
    lines = [first + 32 * row + column for row in range(4) for column in range(2)]
    sectors = tuple(line * 4 + sector for line in lines for sector in range(4))
    traces = [CtaTrace(n, [[Accessed(0, Space.GLOBAL, 1, sectors)]], ["compute"], [], []) for n in range(4)]
    assert [len(own) for own in sectors_lacking(traces, together=True)] == [8, 8, 8, 8]


def test_one_request_at_a_time_takes_the_latency() -> None:
    """Nothing is queued: 100 loads of a sector, each after the one before."""
    plain = {"memory_latency": 500, "memory_burst": SECTOR, "memory_scatter": 0, "clock": 2.0}
    memory, at = Memory(PLAIN.with_values(**plain, l2_rate=SECTOR), share=1e9), 0.0
    for _ in range(100):
        at = memory.request(at, SECTOR, SECTOR)
    assert at == pytest.approx(100 * (1 + 500 * 2.0), rel=1e-6)


def test_a_request_is_over_with_its_last_line() -> None:
    """Of 1,000 requests of eight lines, each late by 60 cycles in the mean: the mean of the largest of eight
    is 60 (1 + 1/2 + ... + 1/8), its standard deviation 60 sqrt(1 + 1/4 + ... + 1/64) (Renyi). Five standard
    errors are allowed."""
    late = {"memory_latency": 0, "memory_burst": 1e-3, "memory_scatter": 60, "l2_rate": 1e9}
    memory, lines = Memory(PLAIN.with_values(**late), share=1e9), 8
    found = statistics.mean(
        memory.request(at * 1e6, 128 * lines, 128 * lines) - at * 1e6 for at in range(1000)
    )
    mean = 60 * sum(1 / n for n in range(1, lines + 1))
    deviation = 60 * sum(1 / n**2 for n in range(1, lines + 1)) ** 0.5
    assert found == pytest.approx(mean, abs=5 * deviation / 1000**0.5)


def test_an_sm_that_asked_for_less_gets_its_credit_at_once() -> None:
    """A share of 10 bytes a cycle and a credit of 1,000 bytes: of 1,500 bytes after a pause 500 take 50
    cycles, and of those that follow at once all. In bursts of 10^-3 bytes a service of 150 cycles has a
    standard deviation of 150 sqrt(10^-3 / 1500) = 0.12 cycles; the limits are 5 cycles."""
    values = {"memory_latency": 0, "memory_burst": 1e-3, "memory_scatter": 0, "l2_rate": 1e9}
    memory = Memory(PLAIN.with_values(**values, memory_credit=1000), share=10.0)
    assert memory.request(5000.0, 1500, 1500) == pytest.approx(5050, rel=1e-3)
    assert memory.request(5050.0, 500, 500) == pytest.approx(5100, rel=1e-3)


def test_lines_of_requests_in_flight_come_in_turn() -> None:
    """Each of 640 bytes, 10 cycles at the port, and 500 cycles on their way: the second one waits for the
    first, the third for the bytes of both, which are in flight. At 600 they have landed, at 510, 520 and
    630 the first three."""
    values = {"memory_latency": 250, "memory_burst": SECTOR, "memory_scatter": 0, "clock": 2.0, "l2_rate": 64}
    memory = Memory(PLAIN.with_values(**values, memory_interleave=1), share=1e9)
    assert [memory.request(at, 640, 640) for at in (0, 0, 100)] == pytest.approx([510, 520, 630], rel=1e-6)
    assert memory.request(600.0, 640, 640) == pytest.approx(600 + 20 + 500, rel=1e-6)
    assert memory.request(2000.0, 640, 640) == pytest.approx(2000 + 10 + 500, rel=1e-6)


def test_half_of_the_memory_is_that_of_the_other_die() -> None:
    """Requests of two parts, each with a probability of a half 300 cycles farther, both with 1/4 not: of
    1,000 the mean is 3/4 of it, a standard deviation sqrt(3/16). Five standard errors are allowed."""
    values = {"memory_latency": 0, "memory_burst": 1e-3, "memory_scatter": 0, "l2_rate": 1e9}
    memory = Memory(PLAIN.with_values(**values, die_latency=300, die_bytes=4096), share=1e9)
    late = [memory.request(at * 1e6, 8192, 8192) - at * 1e6 for at in range(1000)]
    assert {round(each) for each in late} == {0, 300}
    assert statistics.mean(late) == pytest.approx(225, abs=5 * 300 * (3 / 16) ** 0.5 / 1000**0.5)


# SemiAnalysisAI/microbench-blackwell, tma2d_tput.csv: bytes of tensor copies in flight on each of the 148 SMs
# of a B200, and TB/s from HBM with boxes of three sizes.
IN_FLIGHT = {
    4096: (1.105, 1.172, 1.148),
    8192: (2.111, 2.181, 1.894),
    16384: (3.789, 3.593, 3.391),
    32768: (5.868, 5.766, 5.423),
    65536: (7.223, 7.174, 7.063),
    131072: (6.984, 7.133, 7.260),
}


@pytest.mark.parametrize("in_flight", IN_FLIGHT)
def test_bytes_in_flight_give_the_rates_that_a_b200_has(in_flight: int) -> None:
    """Three numbers give the mean curve of all boxes: 443 ns, 7.25 TB/s, and bursts of 16 KB. `B200` has
    other values, which fit each size of box (test_b200_copies.py). The limit is the distance of the published
    rates from their mean, which is up to 8 %."""
    machine = PLAIN.with_values(memory_latency=443, memory_burst=16384, clock=1.965, l2_rate=1e9)
    memory = Memory(machine, share=7250 / 1.965 / 148)
    ends = [0.0] * (in_flight // 4096)
    for _ in range(COPIES):
        first = min(range(len(ends)), key=ends.__getitem__)
        ends[first] = memory.request(ends[first], 4096, 4096)
    rate = COPIES * 4096 / max(ends) * 1.965e9 * 148 / 1e12
    assert rate == pytest.approx(statistics.mean(IN_FLIGHT[in_flight]), rel=0.08)


def test_a_unit_is_busy_for_no_more_than_the_time() -> None:
    """The warp ends while its 100 KB of stores wait for memory: 100 bytes a cycle take 1,000 cycles. In
    bursts of 10^-3 bytes their standard deviation is 1000 sqrt(10^-3 / 10^5) = 0.1 cycles; ten of these are
    allowed."""
    machine = PLAIN.with_values(memory_latency=0, memory_burst=1e-3, l2_rate=1e9)
    sectors = tuple(range(100_000 // SECTOR))
    region, steps = (cost(0, memory=True),), [Entered(0), Accessed(0, Space.GLOBAL, 1, sectors)]
    end, sm = run({0: region}, [steps], machine, share=100.0, op="st")
    assert end == pytest.approx(1001, rel=1e-3)
    assert sm.limits()["HBM"] == pytest.approx(1000 / 1001, rel=1e-3)


def test_a_phase_that_never_ends_is_told() -> None:
    with pytest.raises(UnsupportedError, match="warps wait for ever"):
        run({}, [[Waited(5, (0,))]], arrivals=[1])
