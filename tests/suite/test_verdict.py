# SPDX-License-Identifier: Apache-2.0
"""Known failures and accepted errors, on results made by hand: what is excused, and until when."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gdnbench.errors import Exit
from gdnbench.judge.result import Side
from gdnbench.report.outcome import Outcome
from gdnbench.sim import Finding, Severity
from gdnbench.suite.baseline import Baseline
from gdnbench.suite.markdown import sections
from gdnbench.suite.plan import Entry, Known, Suite, TensorRule
from gdnbench.suite.result import EntryResult, SuiteResult
from gdnbench.suite.schema import WORSE
from gdnbench.suite.verdict import Verdict, judge_record
from tests.messages import wording

TODAY = date(2026, 6, 1)
HALF_ULP = 2.0**-24  # what rounding to float32 costs of values up to 1


def judged(make: Any, record: Any, *known: Known, today: date = TODAY, **options: Any) -> Verdict:
    return judge_record(make.entry(**options), record, known, None, today)


def beside(
    make: Any, rms: float, max_abs: float, accepted: tuple[float, float] | None, **options: Any
) -> Verdict:
    """A passing tensor `o` with these errors, beside accepted ones."""
    entry: Entry = make.entry(**options)
    baseline = Baseline(Path("none"))
    if accepted is not None:
        key = (*entry.key, "segment/3", "o")
        baseline.accepted[key] = {"rms": accepted[0], "max_abs": accepted[1], "update": 1}
    return judge_record(entry, make.result(make.tensor("o", rms, max_abs)), (), baseline, TODAY)


def test_a_pass_is_a_pass(make: Any) -> None:
    verdict = judged(make, make.result(make.tensor("o", 1e-3, 1e-2)))
    assert (verdict.outcome, verdict.exit_code) == ("pass", Exit.PASS)


@pytest.mark.parametrize(
    "given",
    [{}, {"record": "3"}, {"record": "segment/*"}, {"record": "3 gdn_decode *"}, {"tensor": "o"},
     {"tensor": "*"}, {"outcome": "numeric mismatch"}, {"until": TODAY}, {"entry": "both.*.cpu"}],
)  # fmt: skip
def test_a_known_failure_is_excused(make: Any, given: dict[str, Any]) -> None:
    verdict = judged(make, make.result(make.tensor("o", 1, 1, "too much")), make.known(**given))
    assert (verdict.outcome, verdict.exit_code) == ("known failure", Exit.PASS)
    assert "a reason" in verdict.reason


@pytest.mark.parametrize(
    "given",
    [{"record": "4"}, {"record": "segment/4"}, {"tensor": "state"}, {"outcome": "crash"},
     {"outcome": "check error"}, {"outcome": WORSE}, {"entry": "both.torch.sim"}],
)  # fmt: skip
def test_what_is_known_of_something_else_excuses_nothing(make: Any, given: dict[str, Any]) -> None:
    verdict = judged(make, make.result(make.tensor("o", 1, 1, "too much")), make.known(**given))
    assert (verdict.outcome, verdict.exit_code) == ("numeric mismatch", Exit.MISMATCH)


def test_the_day_after_the_last_it_fails_and_says_so(make: Any) -> None:
    record = make.result(make.tensor("o", 1, 1, "too much"))
    verdict = judged(make, record, make.known(until=TODAY), today=date(2026, 6, 2))
    assert verdict.exit_code is Exit.MISMATCH
    over = wording("suite.known-over", until="2026-06-01", reason="a reason")
    assert re.fullmatch("o: too much; " + over, verdict.reason)


def test_one_known_tensor_does_not_hide_another(make: Any) -> None:
    record = make.result(make.tensor("o", 1, 1, "too much"), make.tensor("state", 1, 1, "far off"))
    verdict = judged(make, record, make.known(tensor="o"))
    assert verdict.exit_code is Exit.MISMATCH
    assert [failure.text for failure in verdict.failures] == ["state: far off"]
    both = judged(make, record, make.known(tensor="o"), make.known(tensor="state"))
    assert both.exit_code is Exit.PASS


def test_a_known_tensor_hides_neither_faults_nor_crashes(make: Any) -> None:
    fault = make.result(make.tensor("o", 1, 1, "too much"), faults=("q was written to",))
    assert [failure.text for failure in judged(make, fault, make.known(tensor="*")).failures] == [
        "q was written to"
    ]
    crash = make.result(outcome=Outcome.CRASH, reason="signal 11")
    assert judged(make, crash, make.known(tensor="*")).exit_code is Exit.MISMATCH
    assert judged(make, crash, make.known(outcome="crash")).exit_code is Exit.PASS


def test_a_mismatch_that_is_known_does_not_hide_an_error_of_the_checker(make: Any) -> None:
    error = Finding(Severity.ERROR, "race", "race: a, b", launch=0)
    record = make.result(make.tensor("o", 1, 1, "too much"), findings=(error,))
    verdict = judged(make, record, make.known(outcome="numeric mismatch"))
    assert [(failure.outcome, failure.text) for failure in verdict.failures] == [
        ("check error", "race: a, b")
    ]


def test_what_cannot_run_is_skipped_only_where_it_is_optional(make: Any) -> None:
    record = make.result(outcome=Outcome.MISSING, reason="no GPU")
    assert judged(make, record).exit_code is Exit.CANNOT_RUN
    optional = judged(make, record, optional=True)
    assert (optional.exit_code, optional.outcome, optional.reason) == (Exit.PASS, "skipped", "no GPU")
    mismatch = make.result(make.tensor("o", 1, 1, "too much"))
    assert judged(make, mismatch, optional=True).exit_code is Exit.MISMATCH


# 3e-3 of 1e-3 is over a factor of 1.5 and of 2, and not of 4.
@pytest.mark.parametrize(("factor", "fails"), [(1.5, True), (2.0, True), (4.0, False)])
@pytest.mark.parametrize("metric", ["rms", "max_abs"])
def test_worse_by_more_than_the_factor_fails(make: Any, factor: float, fails: bool, metric: str) -> None:
    now = {"rms": 1e-3, "max_abs": 1e-2} | {metric: {"rms": 3e-3, "max_abs": 3e-2}[metric]}
    verdict = beside(make, now["rms"], now["max_abs"], (1e-3, 1e-2), factor=factor)
    assert verdict.exit_code is (Exit.MISMATCH if fails else Exit.PASS)
    assert verdict.outcome == (WORSE if fails else "pass")
    if fails:
        (change,) = verdict.worse
        assert (change.tensor, change.metric, change.now) == ("o", metric, now[metric])
        assert re.search(wording("suite.metric-over", ratio="3 x"), verdict.reason)
        assert f"factor {factor:g}" in verdict.reason


def test_exactly_the_factor_is_not_worse(make: Any) -> None:
    assert not beside(make, 3.0, 3.0, (2.0, 2.0), factor=1.5).worse
    assert beside(make, 3.000001, 3.0, (2.0, 2.0), factor=1.5).worse


def test_a_rounding_is_never_worse(make: Any) -> None:
    # The tensor's values have an RMS of 1: half a unit in the last place of float32 is 2^-24.
    assert not beside(make, HALF_ULP, 0.0, (0.0, 0.0)).worse
    assert beside(make, 1.01 * HALF_ULP, 0.0, (0.0, 0.0)).worse


def test_better_by_the_factor_is_told_and_passes(make: Any) -> None:
    verdict = beside(make, 1e-3, 1e-2, (2e-3, 1e-2), factor=1.5)
    assert [change.metric for change in verdict.better] == ["rms"]
    assert verdict.exit_code is Exit.PASS
    assert not beside(make, 1e-3, 1e-2, (1.4e-3, 1e-2), factor=1.5).better
    mixed = beside(make, 1e-3, 9e-2, (2e-3, 1e-2), factor=1.5)  # better in one and worse in the other
    assert mixed.worse
    assert not mixed.better


def test_no_accepted_error_is_told_and_passes(make: Any) -> None:
    verdict = beside(make, 1.0, 1.0, None)
    assert (verdict.missing, verdict.exit_code, verdict.compared) == (("o",), Exit.PASS, 0)


def test_worse_can_be_known(make: Any) -> None:
    entry = make.entry()
    baseline = Baseline(
        Path("none"), {(*entry.key, "segment/3", "o"): {"rms": 1e-3, "max_abs": 1, "update": 1}}
    )
    record = make.result(make.tensor("o", 3e-3, 1.0))
    verdict = judge_record(entry, record, (make.known(outcome=WORSE),), baseline, TODAY)
    assert (verdict.exit_code, verdict.outcome) == (Exit.PASS, "known failure")


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"reasons": ("failed",)}, {}),
        ({"judged": False}, {}),
        ({"side": Side.AGAINST}, {}),
        ({"errors": None}, {}),
        ({}, {"rule": TensorRule(bitwise=True)}),
        ({}, {"tensors": {"gdn_decode.o": TensorRule(bitwise=True)}}),
        ({}, {"rule": TensorRule(tol=(1.0, 0.0)), "against": "recorded"}),
    ],
)
def test_only_errors_against_the_oracle_that_pass_may_be_accepted(
    make: Any, changed: dict[str, Any], options: dict[str, Any]
) -> None:
    assert judged(make, make.result(make.tensor("o", 1e-3, 1e-2))).errors.keys() == {"o"}
    assert not judged(make, make.result(make.tensor("o", 1e-3, 1e-2, **changed)), **options).errors


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_never_accepted(make: Any, value: float) -> None:
    assert not judged(make, make.result(make.tensor("o", value, 1.0))).errors
    assert not judged(make, make.result(make.tensor("o", 1.0, value))).errors


def suite_result(make: Any, known: Known, record: Any, today: date = TODAY) -> SuiteResult:
    verdict = judged(make, record, known, today=today)
    suite = Suite(Path("suite.toml"), (make.entry(),), (known,))
    return SuiteResult(suite, Path("results"), (EntryResult(make.entry(), (verdict,)),))


def test_a_known_failure_that_passes_is_told(make: Any) -> None:
    passing, failing = make.result(make.tensor("o", 0, 0)), make.result(make.tensor("o", 1, 1, "too much"))
    known = make.known()
    assert suite_result(make, known, passing).known_passing == [known]
    assert suite_result(make, known, failing).known_passing == []
    # Expired and still failing is no pass either; nor is what could not run.
    assert suite_result(make, known, failing, date(2028, 1, 1)).known_passing == []
    assert suite_result(make, known, make.result(outcome=Outcome.MISSING)).known_passing == []


def test_a_known_failure_of_no_record_is_told(make: Any) -> None:
    known = make.known(record="9")
    assert suite_result(make, known, make.result()).known_unmatched == [known]
    assert suite_result(make, known, make.result()).known_passing == []


def test_what_is_skipped_is_told_with_its_reason(make: Any) -> None:
    record = make.result(outcome=Outcome.UNSUPPORTED, reason="no bfloat16 here")
    verdict = judged(make, record, optional=True)
    suite = Suite(Path("suite.toml"), (make.entry(),))
    result = SuiteResult(suite, Path("results"), (EntryResult(make.entry(), (verdict,)),))
    assert dict(sections(result))["Skipped"] == [f"both.torch.cpu record {record.label}: no bfloat16 here"]
