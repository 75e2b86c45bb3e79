# SPDX-License-Identifier: Apache-2.0
"""The critical path of an SM, with expectations worked out by hand from the parameters."""

from __future__ import annotations

from typing import Any

from gdnbench.sim.predict.critical_path import TICKS, CriticalPath, scaled, ticks, ticks_by, ticks_by_pc
from gdnbench.sim.predict.regions import Cost, Pipe
from gdnbench.sim.predict.sm import Sm
from gdnbench.sim.predict.trace import Arrived, Entered, Issued, Kind, Operation, Shape, Step, Waited
from gdnbench.sim.predict.warp_groups import group_names
from tests.sim.predict.made_up import PLAIN, cost, run


def path_of(
    regions: dict[int, tuple[Cost, ...]], warps: list[list[Step]], **given: Any
) -> tuple[dict[str, float], CriticalPath, Sm]:
    """The cycles by role and activity; their sum is the whole time in every case."""
    path = CriticalPath()
    end, sm = run(regions, warps, path=path, **given)
    counts = ticks_by(path.segments(), lambda segment: segment.text)
    assert counts.total() == ticks(end)
    return {name: count / TICKS for name, count in counts.items() if count}, path, sm


def test_a_wait_for_a_scoreboard_is_its_latency() -> None:
    """Issued at 0 and 4; the result is there at 24, and the last instruction stalls for 2."""
    region = (cost(0, stall=4), cost(1, result=3, latency=20), cost(2, waits=(3,), stall=2))
    found, path, sm = path_of({0: region}, [[Entered(0)]])
    assert found == {"compute: issue": 6, "compute: scoreboard": 20}
    by_pc = ticks_by_pc(path.segments(), sm.code.region)
    assert {pc: count / TICKS for pc, count in by_pc.items() if count} == {0: 4, 1: 20, 2: 2}


def test_who_has_the_issue_slots_is_on_the_path() -> None:
    """Warps 0 and 4 share a sub-partition: ten cycles of one while the other waits, then ten of its own."""
    region = tuple(cost(0) for _ in range(10))
    found, _, _ = path_of({0: region}, [[Entered(0)] for _ in range(5)], roles=["a", "-", "-", "-", "b"])
    assert found == {"a: queue at issue": 10, "b: issue": 10}


def test_a_busy_pipe_is_longer_than_the_issue() -> None:
    """Ten instructions of two cycles, issued in ten."""
    region = tuple(cost(0, pipe=Pipe.ALU, busy=2.0) for _ in range(10))
    assert path_of({0: region}, [[Entered(0)]])[0] == {"compute: integer": 20}


def test_a_phase_leads_to_the_warp_that_arrived_last() -> None:
    regions = {0: tuple(cost(0) for _ in range(100))}
    warps: list[list[Step]] = [[Waited(5, (0,))], [Entered(0), Arrived(6, (0,))]]
    found, _, _ = path_of(regions, warps, arrivals=[1], roles=["consumer", "producer"])
    assert found == {"producer: issue": 101, "consumer: barrier latency": PLAIN.phase_latency.value}


def test_a_copy_is_what_its_way_consists_of() -> None:
    """The second of two copies, which the first keeps waiting in the copy engine and in L2: 30 cycles each
    there, then 100 each here."""
    copies = [Operation(Kind.COPY_IN, 3, 5600, (), phases=[0]) for _ in range(2)]
    machine = PLAIN.with_values(copy_cycles=30, l2_rate=56, l2_latency=200, copy_latency=300)
    found, _, _ = path_of(
        {}, [[Issued(3, (0, 1)), Waited(5, (0,))]], machine=machine, operations=copies, arrivals=[2]
    )
    assert found == {
        "compute: issue": 1,
        "compute: copy engine": 30,
        "compute: queue at L2": 100,
        "compute: L2": 100,
        "compute: L2 latency": 200,
        "compute: copy latency": 300,
        "compute: barrier latency": 40,
    }


def test_products_queue_at_the_tensor_core() -> None:
    """wgmma of 64x128: 64 cycles each; the last of three has the latency of one on top, which its end shows
    33 cycles after its 64."""
    shape = Shape(64, 128, a_in_shared=True)
    products = [Operation(Kind.PRODUCT, 3, shape=shape, phases=[0]) for _ in range(3)]
    found, _, _ = path_of({}, [[Issued(3, (0, 1, 2)), Waited(5, (0,))]], operations=products, arrivals=[3])
    assert found == {
        "compute: issue": 1,
        "compute: queue at tensor core": 128,
        "compute: tensor core": 64,
        "compute: product latency": 33,
        "compute: barrier latency": 40,
    }


def test_ctas_that_wait_for_a_place_start_after_one_that_ended() -> None:
    region = tuple(cost(0) for _ in range(10))
    machine = PLAIN.with_values(cta_start=20)
    found, _, _ = path_of({0: region}, [[Entered(0)]], machine=machine, ctas=3)
    assert found == {"CTA start": 60, "compute: issue": 30}


def test_cycles_of_a_longer_launch_have_the_same_parts() -> None:
    """7 of 10 cycles are of one kind; of 101 cycles that is 70.7, and no tick is lost."""
    path = ticks_by([], lambda segment: segment.text)
    path["a"], path["b"] = 7 * TICKS, 3 * TICKS
    found = scaled(path, 101.0)
    assert [*found] == ["a", "b"]
    assert found["a"] + found["b"] == 101
    assert abs(found["a"] - 70.7) <= 1 / TICKS


def test_warps_of_a_role_are_named_apart_where_they_run_other_code() -> None:
    """Warps 0 and 1 differ in one step of three; warps 2 and 4 run other code than they."""
    first, elected = [Entered(0), Entered(1)], [Entered(0), Entered(1), Entered(5)]
    second = [Entered(7), Entered(8)]
    names = group_names(["load"] * 3 + ["MMA", "load"], [elected, first, second, first, second])
    assert names == ["warps 0-1 load", "warps 0-1 load", "warps 2,4 load", "warp 3 MMA", "warps 2,4 load"]
