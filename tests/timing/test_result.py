# SPDX-License-Identifier: Apache-2.0
"""A result's JSON: all of it comes back, and nothing else is taken for one."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest

from gdnbench.errors import BadInputError
from gdnbench.report.outcome import Outcome
from gdnbench.timing.comparison import compare
from gdnbench.timing.result import (
    Ceiling,
    Control,
    KernelTiming,
    Machine,
    Rates,
    RecordTiming,
)
from gdnbench.timing.statistics import Rule
from gdnbench.timing.types import Cache, Form, Mode
from tests.messages import wording
from tests.timing.synthetic import Machine as World
from tests.timing.synthetic import Quiet, White, kernels


@pytest.fixture(scope="module")
def timing() -> RecordTiming:
    """A result with every part in it."""
    found = compare(kernels(World(White(random.Random(5))), [1.0, 1.1]), Rule(blocks=62), Quiet())
    timed = [
        KernelTiming(
            name,
            Outcome.PASS,
            samples=samples,
            summary=summary,
            launches=launches,
            rates=Rates.of_kernel(4_000_000, 1_000, summary.median, 4e12),
            programs={"load": 1e-6, "mma": 2e-6},
        )
        for name, samples, summary, launches in zip(
            found.names, found.samples, found.summaries, found.launches, strict=True
        )
    ]
    return RecordTiming(
        label="3 gdn_decode model.layers.0 step 4",
        number=3,
        key="abc",
        op="gdn_decode",
        mode=Mode(Cache.WARM, Form.PLAIN),
        machine=Machine("cuda", "NVIDIA H200", "host", "580.1", "13.0", "3.12", "Linux", {"torch": "2.11"}),
        kernels=(*timed, KernelTiming("broken", Outcome.CRASH, "signal 11")),
        pairs=found.pairs,
        repeat=found.repeat,
        blocks=found.blocks,
        placements=found.placements,
        end=found.end,
        seconds=found.seconds,
        discarded={"slowed down: SwPowerCap": 2},
        disturbed={"the memory clock moved": 1},
        conditions=found.conditions,
        ceiling=Ceiling(4.27e12, "copy", {"copy": 4.27e12, "in place": 4.1e12}),
        control=Control(2e-5, 1e-5, 2.1e-5, 1 << 20, None, True, "cold holds"),
        notes=("a note",),
        time="2026-01-31T12:00:00Z",
        repeat_samples=found.repeat_samples,
    )


def changed(timing: RecordTiming, path: str, value: Any) -> Any:
    """The result's JSON with what lies at `path` replaced, or taken out for ..."""
    data = json.loads(timing.dumps())
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    inner = data
    for part in parents:
        inner = inner[part]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return data


def test_everything_comes_back(timing: RecordTiming) -> None:
    assert RecordTiming.from_json(json.loads(timing.dumps())) == timing
    assert timing.conditions is not None
    assert timing.conditions.highest.clock == 1980


def test_every_field_is_in_the_json(timing: RecordTiming) -> None:
    assert set(json.loads(timing.dumps())) == {"format", *RecordTiming.__dataclass_fields__}


def test_a_result_of_nothing_timed_comes_back() -> None:
    timing = RecordTiming(
        "0 op", 0, "k", "op", Mode(), Machine("cpu", "x", "y"), (KernelTiming("a", Outcome.MISSING, "no a"),)
    )
    assert RecordTiming.from_json(json.loads(timing.dumps())) == timing
    assert not timing.kernels[0].timed


def test_rates_by_hand() -> None:
    found = Rates.of_kernel(8_000, 16_000, 2e-6, 8e9)
    assert (found.bytes_per_second, found.flop_per_second, found.of_ceiling) == pytest.approx((4e9, 8e9, 0.5))
    assert Rates.of_kernel(1, 1, 1.0, None).of_ceiling is None


def test_a_later_release_may_add_names(timing: RecordTiming) -> None:
    data = json.loads(timing.dumps())
    data["new"] = data["machine"]["new"] = {"a": 1}
    assert RecordTiming.from_json(data) == timing


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", 2, wording("timing.result-format", where="here", value=2, format=1)),
        ("format", None, wording("timing.result-format", where="here", value=None)),
        ("number", "3", r"here\.number is '3', not a int"),
        ("number", True, r"here\.number is True, not a int"),
        ("label", 3, r"here\.label is 3, not a str"),
        ("key", ..., wording("store.field-missing", field="here.key")),
        ("mode.cache", "tepid", r"here\.mode\.cache is 'tepid', not one of cold, warm"),
        ("machine", [], wording("store.not-object", field="here.machine", value=[])),
        ("blocks", {}, r"here\.blocks is \{\}, not a list"),
        ("discarded", [1], wording("store.not-object", field="here.discarded", value=[1])),
        ("kernels.1.samples.0", "x", r"here\.kernels\[1\]\.samples\[0\] is 'x', not a float"),
        (
            "kernels.1.samples",
            [1.0],
            wording("timing.samples-count", kernel="here: kernel1", given=1, blocks=62),
        ),
        ("kernels.0.samples.3", -1.0, wording("timing.sample-wrong", kernel="here: kernel0", sample="-1.0")),
        (
            "kernels.0.samples.3",
            5e-324,
            wording("timing.sample-wrong", kernel="here: kernel0", sample="5e-324"),
        ),
        (
            "kernels.0.samples.3",
            1e308,
            wording("timing.sample-wrong", kernel="here: kernel0", sample="1e+308"),
        ),
        ("kernels.0.launches", 0, wording("timing.launches-wrong", kernel="here: kernel0", launches=0)),
        ("kernels.1.summary.median", -1.0, wording("timing.quartiles-wrong", kernel="here: kernel1")),
        (
            "pairs.0.interval.low",
            0.0,
            wording("timing.interval-wrong", kernel="here: kernel1", ends=re.compile(r"0\.0 to .*")),
        ),
        ("conditions.lowest.clock", 0, "here: " + wording("timing.clock-wrong", clock=0)),
        ("seconds", 10**400, r"here\.seconds is 1000"),
        (
            "repeat_samples",
            [],
            wording("timing.samples-count", kernel="here: the repeat of kernel0", given=0, blocks=62),
        ),
        ("seconds", float("nan"), r"here\.seconds is nan, not a finite number"),
        ("kernels.2.outcome", 1, r"here\.kernels\[2\]\.outcome is 1, not one of pass, "),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    timing: RecordTiming, path: str, value: Any, message: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        RecordTiming.from_json(changed(timing, path, value), "here")
    assert re.match(message, str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, [], {}, {"label": "x"}])
def test_something_else_is_no_timing(value: Any) -> None:
    with pytest.raises(BadInputError, match=wording("timing.result-format-missing", where="file")):
        RecordTiming.from_json(value, "file")


def test_a_number_that_json_lacks_is_not_written(timing: RecordTiming) -> None:
    with pytest.raises(ValueError, match=wording("timing.json-refused")):
        replace(timing, seconds=float("inf")).dumps()
