# SPDX-License-Identifier: Apache-2.0
"""Runs under many schedules: which bits differ, what is merged, and what an interruption leaves. The runs are
made up: no kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch

from gdnbench.sim.explore import Exploration, Run, Shape, across_sms, explore, schedules
from gdnbench.sim.finding import Finding, Severity
from tests.messages import wording


@dataclass
class Made:
    """A shape whose runs are given by schedule, in the order in which it is asked for them."""

    runs: Mapping[str, Run | BaseException]
    asked: list[str] = field(default_factory=list)

    def __call__(self, schedule: str) -> Run:
        self.asked.append(schedule)
        run = self.runs[schedule]
        if isinstance(run, BaseException):
            raise run
        return run

    def shape(self, name: str = "a") -> Shape:
        return Shape(name, self, lambda schedule: f"repeat {name} {schedule}")


def left(**tensors: float) -> Run:
    return Run({name: torch.tensor([1.0, value]) for name, value in tensors.items()})


def finding(message: str, severity: Severity = Severity.ERROR, **more: object) -> Finding:
    return Finding(severity, "race", message, 0, **more)  # type: ignore[arg-type]


def explored(*shapes: Shape, under: tuple[str, ...] = ("late", "early", "random:7")) -> Exploration:
    return explore(shapes, under)


def test_schedules() -> None:
    assert [schedules(count) for count in (1, 2)] == [("late",), ("late", "early")]
    many = schedules(12)
    assert many[:2] == ("late", "early")
    assert len(set(many)) == 12
    assert all(one.startswith("random:") and int(one.removeprefix("random:")) >= 0 for one in many[2:])
    assert set(many[2:]).isdisjoint(schedules(12)[2:])  # fresh ones


def test_equal_bits() -> None:
    nan = Run({"y": torch.tensor([torch.nan, -0.0])})
    found = explored(Made(dict.fromkeys(("late", "early", "random:7"), nan)).shape())
    assert found.ok
    (tried,) = found.tried
    assert (tried.difference, tried.compared, found.runs) == (None, 3, 3)


@pytest.mark.parametrize(
    ("other", "tensor"),
    [
        ({"x": 1.0, "y": 3.0, "z": 4.0}, "y"),
        ({"x": 1.0, "y": 2.0}, "z"),
        ({"x": 1.0, "y": 2.0, "z": 3.0, "w": 0.0}, "w"),
        ({"x": -0.0 + 1e-8, "y": 2.0, "z": 3.0}, "x"),
    ],
)
def test_the_first_difference_is_named(other: dict[str, float], tensor: str) -> None:
    first = left(x=1.0, y=2.0, z=3.0)
    made = Made({"late": first, "early": first, "random:7": left(**other), "random:8": left(x=5.0)})
    found = explored(made.shape(), under=("late", "early", "random:7", "random:8"))
    difference = found.tried[0].difference
    assert difference is not None
    assert (difference.tensor, difference.schedule, difference.against) == (tensor, "random:7", "late")
    assert (difference.unsteady, difference.command) == (False, "repeat a random:7")
    assert not found.ok
    # The first schedule again, to see whether it is the schedule; then the rest all the same.
    assert made.asked == ["late", "early", "random:7", "late", "random:8"]


def test_a_dtype_is_bits_too() -> None:
    runs = {"late": Run({"y": torch.zeros(2)}), "early": Run({"y": torch.zeros(2, dtype=torch.int32)})}
    found = explored(Made(runs).shape(), under=("late", "early"))
    assert found.tried[0].difference is not None


def test_what_differs_by_itself_is_said() -> None:
    values = iter(range(10))

    def run(schedule: str) -> Run:
        return left(y=next(values))

    found = explored(Shape("a", run, str))
    assert found.tried[0].difference is not None
    assert found.tried[0].difference.unsteady
    assert "under late too" in str(found.tried[0].difference)


def test_a_run_that_ended_early_is_not_compared() -> None:
    ended = Run(None, (finding("stopped"),))
    found = explored(Made({"late": ended, "early": left(y=1.0), "random:7": left(y=1.0)}).shape())
    assert (found.tried[0].difference, found.tried[0].compared, found.tried[0].ok) == (None, 2, True)
    assert not found.ok


def test_findings_are_merged_with_the_run_that_showed_them_first() -> None:
    race, review = finding("a race"), finding("to look at", Severity.REVIEW)
    runs = {
        "late": Run({}),
        "early": Run({}, (race, race, review)),
        "random:7": Run({}, (race,)),
    }
    clean = dict.fromkeys(runs, Run({}))
    found = explored(Made(clean).shape("a"), Made(runs).shape("b"), Made(runs).shape("c"))
    assert [(one.finding, one.schedule, one.shapes, one.runs) for one in found.found] == [
        (race, "early", ["b", "c"], 4),
        (review, "early", ["b", "c"], 2),
    ]
    assert found.found[0].command == "repeat b early"
    assert [found.passed(one) for one in found.tried] == [True, False, False]
    data = found.as_json()
    assert (data["ok"], data["runs"]) == (False, 9)
    assert data["findings"][0]["first"] == {"shape": "b", "schedule": "early", "command": "repeat b early"}


def test_a_fault_is_the_same_at_another_address() -> None:
    place = {"ptx_line": 3, "ptx": "ld.global.b32 %r1, [%rd1];", "file": "k.py", "line": 9}
    faults = [finding(f"4 bytes at {address}", **place) for address in ("0x10", "0x20")]
    other = finding("4 bytes at 0x10", **{**place, "line": 10})
    runs = {
        "late": Run(None, (faults[0],)),
        "early": Run(None, (faults[1],)),
        "random:7": Run(None, (other,)),
    }
    found = explored(Made(runs).shape())
    assert [(one.finding.line, one.runs) for one in found.found] == [(9, 2), (10, 1)]


def test_accepted_findings_fail_nothing() -> None:
    runs = dict.fromkeys(("late", "early", "random:7"), Run({}, (finding("a race"),)))
    found = explored(Made(runs).shape())

    def accept(findings: object) -> tuple[Finding, ...]:
        return tuple(finding("a race", accepted="right") for _ in found.found)

    assert not found.ok
    assert found.accepting(accept).ok


def test_failures_are_told_once_each() -> None:
    runs = {"late": Run(left(y=1.0).tensors, failed="wrong"), "early": Run(failed="wrong")}
    found = explored(Made({**runs, "random:7": Run(refused="hung")}).shape())
    assert [(one.reason, one.schedule) for one in found.tried[0].failed] == [
        ("wrong", "late"),
        ("hung", "random:7"),
    ]
    assert not found.ok


def test_a_shape_that_is_refused_is_left() -> None:
    made = Made({"late": Run(refused="too small")})
    found = explored(
        made.shape("a"), Made(dict.fromkeys(("late", "early", "random:7"), left(y=0.0))).shape("b")
    )
    assert (made.asked, found.tried[0].refused, found.tried[0].schedules) == (["late"], "too small", [])
    assert len(found.tried[1].schedules) == 3


def test_an_interruption_keeps_what_was_found() -> None:
    runs = {"late": Run({}, (finding("a race"),)), "early": KeyboardInterrupt()}
    other = Made({"late": Run({})})
    found = explored(Made(runs).shape("a"), other.shape("b"))
    assert found.interrupted
    assert [one.finding.message for one in found.found] == ["a race"]
    assert (found.tried[0].schedules, other.asked) == (["late"], [])


def test_progress() -> None:
    told: list[tuple[int, int]] = []
    refusing, running = Made({"late": Run(refused="no")}), Made(dict.fromkeys(("late", "early"), Run({})))
    shapes = [refusing.shape("a"), running.shape("b")]
    explore(shapes, ("late", "early"), lambda done, total: told.append((done, total)))
    assert told == [(3, 4), (4, 4)]


def on_gpus(**runs: Run) -> Exploration:
    """A shape whose run on a GPU of N SMs is `sms_N`, under one schedule."""
    return across_sms(
        {
            int(name.removeprefix("sms_")): explore([Made({"late": run}).shape()], ("late",), keep=True)
            for name, run in runs.items()
        }
    )


def test_bits_on_gpus_of_several_numbers_of_sms() -> None:
    found = on_gpus(sms_1=left(x=2.0), sms_4=left(x=2.0), sms_148=left(x=2.5, y=0.0))
    assert not found.ok
    assert [(one.sms, one.ok, one.outputs) for one in found.tried] == [
        (1, True, None),
        (4, True, None),
        (148, False, None),
    ]
    difference = found.tried[2].sms_difference
    text = wording(
        "sim.sms-depends",
        tensor="x",
        place="x[1]",
        value=2.5,
        sms=148,
        other=2.0,
        against=1,
        elements=1,
        size=2,
    )
    assert re.fullmatch(text, str(difference))
    assert found.as_json()["shapes"][2]["sms_difference"]["command_against"] == "repeat a late"
    assert on_gpus(sms_1=left(x=2.0), sms_4=left(x=2.0)).ok


def test_a_tensor_that_only_one_gpu_leaves() -> None:
    (_, tried) = on_gpus(sms_1=left(x=2.0), sms_2=left(x=2.0, y=1.0)).tried
    assert tried.sms_difference is not None
    assert (tried.sms_difference.tensor, tried.sms_difference.index) == ("y", ())


def test_a_gpu_on_which_it_does_not_run() -> None:
    """The others are compared all the same."""
    found = on_gpus(sms_1=Run(refused="no"), sms_2=left(x=2.0), sms_3=left(x=3.0))
    assert [one.refused for one in found.tried] == ["no", "", ""]
    assert found.tried[2].sms_difference is not None
    assert found.tried[2].sms_difference.against == 2


def test_findings_of_several_gpus_are_one() -> None:
    found = on_gpus(
        sms_1=Run({}, (finding("late"),)), sms_2=Run({}), sms_4=Run({}, (finding("late"), finding("b")))
    )
    assert [(one.finding.message, one.runs, one.shapes) for one in found.found] == [
        ("late", 2, ["a, --sms 1", "a, --sms 4"]),
        ("b", 1, ["a, --sms 4"]),
    ]
    assert [found.passed(one) for one in found.tried] == [False, True, False]
