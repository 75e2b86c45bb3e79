# SPDX-License-Identifier: Apache-2.0
"""Predicted times of calls: what is refused, what is summed, and what people read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gdnbench.cli.console import table
from gdnbench.errors import Exit
from gdnbench.report.outcome import Outcome
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.predict import (
    GROUPS,
    LATENCY,
    MACHINES,
    PredictedCall,
    PredictedTime,
    Prediction,
    Predictor,
    machine_model,
    parameter_table,
)
from gdnbench.timing.counting import CountsReport, KernelCounts, RecordCounts
from gdnbench.timing.counts import Counts
from gdnbench.timing.table import counts_text

PAGE = Path(__file__).parents[2] / "docs" / "time_model.md"


def prediction(seconds: float = 2e-6, **given: Any) -> Prediction:
    what: dict[str, Any] = {
        "machine": "h200",
        "entry": "k",
        "seconds": seconds,
        "low": seconds / 2,
        "high": seconds * 2,
        "limits": {"HBM": 0.7, "L2": 0.2},
        "waits": {},
        "ctas": 1.0,
        "resident": 1,
        "memory_bytes": 1000.0,
        "cycles": 100.0,
        "path": {"warps 0-3 compute: issue": 60.0, "warp 4 MMA: tensor core": 40.0},
        "lines": {"kernel.py:7": 100.0},
        "floor": 1e-6,
        "floor_unit": "HBM",
        "of_floor": 2.0,
    }
    return Prediction(**what | given)


def test_a_unit_that_is_busy_for_half_of_the_time_is_the_bound() -> None:
    assert prediction().bound == "HBM"
    assert prediction(limits={"HBM": 0.3, "L2": 0.49}).bound == LATENCY


def test_the_launches_of_a_call_follow_one_another() -> None:
    call = PredictedCall("h200", (prediction(1e-6), prediction(3e-6)))
    assert call.seconds == pytest.approx(4e-6)
    assert call.range == pytest.approx((2e-6, 8e-6))
    assert call.longest.seconds == 3e-6


def report(kernel: KernelCounts) -> CountsReport:
    record = RecordCounts("0: made", 0, "key", "swa_decode", None, (kernel,))
    return CountsReport("store", (kernel.name,), "rule", (record,))


COUNTED = Counts(1, 1, 10, 0, {})


def test_the_table_says_that_times_are_predicted() -> None:
    call = PredictedCall("h200", (prediction(),))
    shown = report(KernelCounts("portable", Outcome.PASS, "", COUNTED, call))
    text = counts_text(shown, table)
    assert "predicted times, which are a model's (docs/time_model.md)" in text
    (line,) = [line for line in text.splitlines() if "2 us" in line]
    assert line.split() == [
        "0",
        "swa_decode",
        "portable",
        "h200",
        "2",
        "us",
        "1",
        "us",
        "..",
        "4",
        "us",
        "HBM",
        "70%",
        "1,000",
        "B",
        "1",
        "us",
        "HBM",
        "2",
        "x",
    ]
    assert (
        "critical path: portable on record 0: 60% warps 0-3 compute: issue, 40% warp 4 MMA: tensor core\n"
        in text
    )
    assert shown.exit_code is Exit.PASS


def test_a_launch_without_a_model_says_why() -> None:
    kernel = KernelCounts("portable", Outcome.PASS, "", COUNTED, no_time="the time of a launch with clusters")
    shown = report(kernel)
    assert "not predicted: portable on record 0: made: the time of a launch with clusters" in counts_text(
        shown, table
    )
    assert shown.exit_code is Exit.CANNOT_RUN


def test_a_call_with_a_refused_launch_has_no_time() -> None:
    found = Predictor(machine_model("h200"), [prediction()], "not simulated: clusters")
    assert PredictedCall.of(found) is None
    assert PredictedCall.of(Predictor(machine_model("h200"), [prediction()])) is not None


def test_a_time_comes_back_from_json() -> None:
    """As workers send it; the seconds of a call are those of its launches."""
    call = PredictedCall("h200", (prediction(1e-6), prediction(3e-6, limits={"L2": 0.1})))
    time = PredictedTime("portable", call)
    plain = json.loads(json.dumps(time.to_json()))
    assert PredictedTime.from_json(plain) == time
    assert plain["seconds"] == pytest.approx(4e-6)
    assert (plain["low"], plain["high"]) == pytest.approx((2e-6, 8e-6))
    assert plain["bound"] == LATENCY  # of the longest launch
    for refused in (Predictor(machine_model("h200"), [], "clusters"), Predictor(machine_model("h200"))):
        none = PredictedTime.of("portable", refused)
        assert none.no_time
        assert none.call is None
        assert PredictedTime.from_json(json.loads(json.dumps(none.to_json()))) == none


def test_a_gpu_without_a_model_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="the time on h100: there is a model of h200, b200, b300"):
        machine_model("h100")


@pytest.mark.parametrize("name", MACHINES)
def test_every_parameter_has_a_source_and_lies_in_its_range(name: str) -> None:
    for each in MACHINES[name].parameters().values():
        assert each.source
        assert each.low <= each.value <= each.high
        assert each.group in ("", *GROUPS)
        assert each.published or each.low < each.high


@pytest.mark.parametrize("name", MACHINES)
def test_the_page_has_the_parameters(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"### {name}\n\n{parameter_table(MACHINES[name])}\n" in page


def test_what_nobody_published_of_a_b300_is_that_of_a_b200() -> None:
    """Its exponentials take half the time; HBM's rate has a range, since only the data sheet's is known."""
    b200, b300 = (MACHINES[name].parameters() for name in ("b200", "b300"))
    for name, each in b300.items():
        if not each.published:
            assert "as on a B200" in each.source
            assert each.value == b200[name].value
    assert b300["exponential_cycles"].value == b200["exponential_cycles"].value / 2
