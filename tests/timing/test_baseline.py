# SPDX-License-Identifier: Apache-2.0
"""Two runs of known speed: regressions are found, noise is not, and other machines are refused."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gdnbench.errors import BadInputError
from gdnbench.report.outcome import Outcome
from gdnbench.timing.baseline import UNKNOWN_CLOCKS, UNSEEN_PLACEMENTS, against
from gdnbench.timing.comparison import compare
from gdnbench.timing.result import KernelTiming, Machine, RecordTiming, Seen
from gdnbench.timing.statistics import CONFIDENCE, Rule, Verdict
from gdnbench.timing.types import Cache, Conditions, Form, Mode
from tests.messages import wording
from tests.seeds import drawn
from tests.timing.synthetic import Machine as World
from tests.timing.synthetic import Noise, Places, Quiet, White, kernels


def timed(
    seed: int,
    speeds: tuple[float, ...] = (1.0, 1.0),
    noise: Callable[[random.Random], Noise] = White,
    placements: int = 16,
) -> RecordTiming:
    subjects = kernels(World(noise(random.Random(seed))), speeds, placements)
    found = compare(subjects, Rule(blocks=384, repeat=False, resolution=0.0), Quiet())
    return RecordTiming(
        "0 gdn_decode layer step 1",
        0,
        "key",
        "gdn_decode",
        Mode(),
        Machine("cuda", "NVIDIA H200", "host"),
        tuple(
            KernelTiming(name, Outcome.PASS, "", samples, summary, launches)
            for name, samples, summary, launches in zip(
                found.names, found.samples, found.summaries, found.launches, strict=True
            )
        ),
        found.pairs,
        blocks=found.blocks,
        placements=found.placements,
        conditions=found.conditions,
    )


def test_a_slower_kernel_is_a_regression_and_a_faster_one_is_not() -> None:
    found = against(timed(1, (1.05, 0.95)), timed(2))
    slower, faster = found.changes
    assert (slower.verdict, faster.verdict) == (Verdict.SLOWER, Verdict.FASTER)
    assert (slower.regression, faster.regression, found.regression) == (True, False, True)
    assert slower.interval is not None
    assert slower.interval.low < 1.05 < slower.interval.high
    assert slower.interval.confidence == CONFIDENCE
    assert slower.before == pytest.approx(1e-5, rel=0.01)  # 2 % of noise over hundreds of blocks
    assert slower.after == pytest.approx(1.05e-5, rel=0.01)
    assert not against(timed(1, (0.9, 0.9)), timed(2)).regression


@pytest.mark.slow
@pytest.mark.parametrize("noise", [White, Places])
def test_the_same_kernel_in_another_process_is_no_regression(
    noise: Callable[[random.Random], Noise],
) -> None:
    """Each run has placements of its own, which move it by 6 %."""
    runs, seed, false = 60, drawn("timing baseline"), 0
    for index in range(0, 2 * runs, 2):
        found = against(timed(seed + index, noise=noise), timed(seed + index + 1, noise=noise))
        false += found.changes[0].verdict is not Verdict.NO_DIFFERENCE
    # 1 % is due at 99 %, the margin apart: 6 or more of 60 come by chance once in 30 000 series.
    assert false < 6, f"seed {seed}: {false} of {runs}"


def test_placements_alone_do_not_pass_for_a_regression_nor_hide_a_large_one() -> None:
    found = against(timed(3, (1.0, 1.25), Places), timed(4, noise=Places))
    assert [change.verdict for change in found.changes] == [Verdict.NO_DIFFERENCE, Verdict.SLOWER]
    assert found.changes[0].within is not None
    # U(-0.06, 0.06) has deviation 0.0346: of two means over 16, 0.0122, and t(0.995, 30) = 2.75 of that.
    assert 0.015 < found.changes[0].within < 0.07


def test_the_margin_is_the_clocks() -> None:
    def seen(low: int | None, high: int | None) -> Seen:
        return Seen("NVML", lowest=Conditions(clock=low), highest=Conditions(clock=high))

    now, then = timed(1, (1.05, 1.05)), timed(2)
    tick = 2 * 5e-7 / 1e-3  # two rounds of a millisecond, by events
    alike = against(
        replace(now, conditions=seen(1980, 1980)), replace(then, conditions=seen(1980, 1980))
    ).changes[0]
    assert alike.margin == pytest.approx(15 / 1980 + tick, rel=0.01)  # medians are of 1 ms within 1 %
    assert alike.regression
    apart = against(
        replace(now, conditions=seen(1755, 1770)), replace(then, conditions=seen(1965, 1980))
    ).changes[0]
    assert apart.margin == pytest.approx(math.log(1980 / 1755) + 15 / 1755 + tick, rel=0.01)
    assert apart.verdict is Verdict.NO_DIFFERENCE  # 5 % slower on clocks that are 11 % lower
    for unknown in (None, seen(None, None)):
        margin = against(replace(now, conditions=unknown), then).changes[0].margin
        assert margin == pytest.approx(UNKNOWN_CLOCKS + tick, rel=0.01)


def test_the_margin_is_of_the_clock_that_timed_both() -> None:
    now, then = timed(1), timed(2)
    for clock, late in (("perf_counter", 1e-7), ("events", 5e-7), ("cupti", 5e-7), ("", 5e-7)):  # seconds
        one, other = (replace(run, clock=clock, conditions=None) for run in (now, then))
        margin = against(one, other).changes[0].margin
        # Of two rounds of a millisecond, within 1 %, beyond what unknown clocks take.
        assert margin - UNKNOWN_CLOCKS == pytest.approx(2 * late / 1e-3, rel=0.02)


def test_few_placements_widen_the_margin() -> None:
    few = against(timed(1, (1.05, 1.05), placements=2), timed(2)).changes[0]
    many = against(timed(1, (1.05, 1.05)), timed(2)).changes[0]
    # The clock's part follows the medians, which are alike within 1 % of 0.1 %.
    assert few.margin - many.margin == pytest.approx(UNSEEN_PLACEMENTS, abs=1e-4)
    assert few.verdict is Verdict.NO_DIFFERENCE
    assert few.interval is not None
    assert few.interval.by == "stretch"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "other"}, wording("timing.baseline-differs", field="record", ours="key", theirs="other")),
        ({"op": "gdn_prefill"}, "operation is gdn_decode, the baseline's is gdn_prefill"),
        (
            {"mode": Mode(Cache.WARM)},
            wording("timing.baseline-differs", field="cache", ours="cold", theirs="warm"),
        ),
        (
            {"mode": Mode(form=Form.PLAIN)},
            wording("timing.baseline-differs", field="form", ours="graph", theirs="plain"),
        ),
        (
            {"machine": Machine("cpu", "NVIDIA H200", "host")},
            wording("timing.baseline-differs", field="kind of device", ours="cuda", theirs="cpu"),
        ),
        (
            {"machine": Machine("cuda", "NVIDIA B200", "host")},
            wording("timing.baseline-differs", field="device", ours="NVIDIA H200", theirs="NVIDIA B200"),
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    timing = timed(1)
    with pytest.raises(BadInputError) as caught:
        against(timing, replace(timing, **change))
    assert re.match(f"record 0 gdn_decode layer step 1: {message}", str(caught.value))
    assert "\n" not in str(caught.value)


def test_kernels_without_a_counterpart_are_said() -> None:
    timing = timed(1)
    first, second = timing.kernels
    failed = KernelTiming(first.name, Outcome.CRASH, "signal 11")
    gone = replace(timing, kernels=(failed, replace(second, name="new")))
    found = against(gone, timing)
    assert [change.reason for change in found.changes] == ["not timed now: crash", "not in the baseline"]
    assert {change.verdict for change in found.changes} == {Verdict.UNKNOWN}
    assert not found.regression
    assert re.fullmatch(
        wording("timing.not-timed-before", outcome="crash"),
        against(timing, replace(timing, kernels=(failed,))).changes[0].reason,
    )
    short = replace(
        timing,
        blocks=timing.blocks[:8],
        kernels=tuple(replace(k, samples=k.samples[:8]) for k in timing.kernels),
    )
    assert re.fullmatch(wording("timing.blocks-too-few"), against(short, timing).changes[0].reason)


def test_times_of_a_busy_machine_are_not_judged() -> None:
    """A quarter of the blocks may be disturbed, by whichever reason there is most of."""
    slow, timing = timed(1, (1.5, 1.5)), timed(2)
    quarter = len(slow.blocks) // 4
    assert against(replace(slow, disturbed={"a": quarter, "b": quarter}), timing).regression
    found = against(replace(slow, disturbed={"a": 1, "b": quarter + 1}), timing).changes[0]
    assert found.verdict is Verdict.UNKNOWN
    assert re.fullmatch(
        wording("timing.blocks-disturbed", count=quarter + 1, blocks=4 * quarter, when="now"), found.reason
    )
    reverse = against(timing, replace(slow, disturbed={"a": quarter + 1})).changes[0]
    assert re.fullmatch(
        wording("timing.blocks-disturbed", count=quarter + 1, blocks=4 * quarter, when="then"), reverse.reason
    )


def test_what_else_changed_is_noted() -> None:
    timing = timed(1)
    before = Machine("cuda", "NVIDIA H200", "elsewhere", "570.1", packages={"torch": "2.11", "fla": "0.6"})
    now = Machine("cuda", "NVIDIA H200", "host", "580.2", packages={"torch": "2.13"})
    found = against(replace(timing, machine=now), replace(timing, machine=before))
    assert found.notes == (
        "host: elsewhere then, host now",
        "driver: 570.1 then, 580.2 now",
        "fla: 0.6 then, none now",
        "torch: 2.11 then, 2.13 now",
    )
    assert against(timing, timing).notes == ()
