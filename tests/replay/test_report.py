# SPDX-License-Identifier: Apache-2.0
"""Reports for people and machines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from gdnbench.judge.result import Side, TensorResult
from gdnbench.record import RecordDraft, When
from gdnbench.replay.replay import replay
from gdnbench.report.export import to_json, to_junit
from gdnbench.report.junit import JunitSuite, Problem, junit_text
from gdnbench.report.outcome import Outcome
from gdnbench.report.render import render_histogram, render_text
from gdnbench.report.report import RecordResult, ReplayReport
from gdnbench.store.reader import Store
from tests.messages import wording

Faulty = Callable[[str], str]
StoreOf = Callable[[list[RecordDraft]], Store]
Made = Callable[..., list[RecordDraft]]


@pytest.fixture(scope="module")
def passing(store: Store) -> ReplayReport:
    return replay(store, kernel="torch")


@pytest.fixture(scope="module")
def failing(store: Store, faulty: Faulty) -> ReplayReport:
    return replay(store, kernel=faulty("gets_a_tail_wrong"), isolate=False)


def report_of(*outcomes: Outcome) -> ReplayReport:
    records = tuple(
        RecordResult(i, f"s/{i}", "gdn_decode", "layer\x00<0>", 0, i, outcome, "why & how")
        for i, outcome in enumerate(outcomes)
    )
    return ReplayReport("s.zarr", "k", "reference", "cpu", "rule", records)


def test_a_pass_is_one_line_a_tensor(passing: ReplayReport) -> None:
    lines = render_text(passing).splitlines()
    rows = [line.split() for line in lines if line.rstrip().endswith("pass")]
    assert [(row[1], row[2]) for row in rows] == [
        ("gdn_prefill", "o"),
        ("gdn_prefill", "final_state"),
        ("gdn_decode", "state"),
        ("gdn_decode", "o"),
    ]
    what = wording("report.summary-what", kernel="torch", on="cpu", against="reference")
    rule = wording("judge.rule", k=2, others="")
    summary = wording(
        "report.summary",
        records=3,
        plural="s",
        outcomes="3 pass",
        what=re.compile(what),
        rule=re.compile(rule),
    )
    assert re.fullmatch(summary, lines[-1])


def test_trouble_names_record_tensor_and_place(failing: ReplayReport) -> None:
    text = render_text(failing)
    label = "0 gdn_prefill synth step 0"
    assert re.search(wording("report.record-outcome", outcome="numeric mismatch", label=label), text)
    assert "sequence 3, chunk 1, token 69, head" in text
    assert "FAIL" in text
    assert "ULP off: 50% " in text
    groups = next(line for line in text.splitlines() if "worst RMS: " in line)
    assert "in sequence 3 chunk 1 head" in groups
    assert len(groups) < 200


def test_elements_that_are_not_judged_are_said(store_of: StoreOf, made: Made) -> None:
    """Within a chunk the torch kernel's masked product carries a NaN back to the tokens before it."""
    text = render_text(replay(store_of(made("gdn_prefill", seqlens=(40,), nan_at=(20,))), kernel="torch"))
    # Tokens 0 .. 19 of 4 heads of 32; what follows the NaN is NaN in the oracle too.
    not_judged = wording("report.not-judged", side="kernel", tensor="o", excluded=2560, elements=5120)
    assert re.search(f"note: {not_judged}", text)


def test_shares_that_reach_the_same_distance_are_said_once() -> None:
    """Of 100 elements 50 are equal, 41 one ULP off, 9 two or three."""
    tensor = TensorResult("o", When.AFTER, Side.KERNEL, "bfloat16", (100,), ulp_histogram=(50, 41, 9))
    assert render_histogram(tensor) == "50% 0, 90% 1, all 2-3"


def strict(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def test_json_is_strict_and_complete(failing: ReplayReport, store: Store, faulty: Faulty) -> None:
    document = json.loads(to_json(failing), parse_constant=strict)
    assert document["schema"] == 1
    assert document["exit_code"] == 1
    assert document["records"][0]["outcome"] == "numeric mismatch"
    o = next(t for t in document["records"][0]["tensors"] if t["tensor"] == "o")
    assert (o["worst"]["sequence"], o["worst"]["token"]) == (3, 69)
    assert sum(o["ulp_histogram"]) == o["elements"] == o["errors"]["count"]
    assert o["errors"]["relative_l2"] == o["errors"]["rms_ratio"] > o["torch_errors"]["rms_ratio"]
    unwritten = replay(store, kernel=faulty("does_nothing"), isolate=False, records=[0])
    first = json.loads(to_json(unwritten), parse_constant=strict)["records"][0]["tensors"][0]
    assert first["worst"]["x"] == "nan"


def test_junit_counts_and_details(failing: ReplayReport) -> None:
    suite = ElementTree.fromstring(to_junit(failing)).find("testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "errors", "skipped")} == {
        "tests": "3",
        "errors": "0",
        "skipped": "0",
    }
    case = suite.find("testcase[@name='0 gdn_prefill synth step 0']")
    assert case is not None
    failure = case.find("failure")
    assert failure is not None
    assert failure.text is not None
    assert "token 69" in failure.text


def test_junit_of_a_hostile_store_is_xml() -> None:
    """Every name in it may be a text of the store, in which XML has characters that it cannot hold."""
    bad = "a\x00\x1b[2J\ud800\uffff<&\"'"
    suite = JunitSuite(bad, {bad: bad}, "1")
    suite.add_case(bad, bad, 1.0, Problem("failure", bad, bad, bad))
    root = ElementTree.fromstring(junit_text([suite], bad))
    shown = "a??[2J??<&\"'".replace("?", "\N{REPLACEMENT CHARACTER}")
    case = root.find("testsuite/testcase")
    assert case is not None
    assert (case.get("classname"), case.get("name")) == (shown, shown)
    failure = case.find("failure")
    assert failure is not None
    assert (failure.get("type"), failure.get("message"), failure.text) == (shown, shown, shown)
    named = root.find("testsuite/properties/property")
    assert named is not None
    assert (named.get("name"), named.get("value"), root.get("name")) == (shown, shown, shown)


def test_junit_kinds_and_escapes() -> None:
    suite = ElementTree.fromstring(to_junit(report_of(*Outcome))).find("testsuite")
    assert suite is not None
    kinds = [[child.tag for child in case] for case in suite.findall("testcase")]
    by_outcome = dict(zip(Outcome, kinds, strict=True))
    assert by_outcome[Outcome.PASS] == []
    for outcome in (Outcome.MISMATCH, Outcome.CHECK):
        assert by_outcome[outcome] == ["failure"]
    for outcome in (Outcome.CRASH, Outcome.HANG, Outcome.COMPILE_FAILURE, Outcome.REFUSED):
        assert by_outcome[outcome] == ["error"]
    for outcome in (Outcome.UNSUPPORTED, Outcome.MISSING, Outcome.NOT_COMPARABLE):
        assert by_outcome[outcome] == ["skipped"]
    assert (suite.get("failures"), suite.get("errors")) == ("2", "4")
    assert suite.get("skipped") == "3"
    assert "layer\N{REPLACEMENT CHARACTER}<0>" in str(suite.findall("testcase")[0].get("name"))


def test_what_could_not_run_says_why() -> None:
    text = render_text(report_of(Outcome.MISSING))
    missing = re.compile("0 gdn_decode.*")
    assert re.search(
        wording("report.record-outcome", outcome="missing device or package", label=missing), text
    )
    assert "  why & how" in text
