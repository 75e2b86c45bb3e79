# SPDX-License-Identifier: Apache-2.0
"""Replay with stages: judged ahead of outputs, brought out of a worker, kept and diffed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gdnbench.diff.compare import diff
from gdnbench.errors import BadInputError, Exit
from gdnbench.replay.replay import replay
from gdnbench.report.export import to_json, to_junit
from gdnbench.report.outcome import Outcome
from gdnbench.report.render import render_text
from gdnbench.report.report import ReplayReport
from gdnbench.store.reader import Store
from gdnbench.synth import draft, synthesise
from tests.messages import wording

STAGED = Path(__file__).with_name("staged.py")
STAGES = ["g_cu", "A", "Ai", "U", "W", "h", "V_new", "P"]
OUTPUTS = ["o", "final_state"]
DECODE_STAGES = ["alpha_t", "beta_t", "q_t", "k_t", "delta_t"]
WRONG_W = "[196, 1, 7] (sequence 3, chunk 1, token 68, head 1, K 7)"


def run(store: Store, kernel: str, **options: Any) -> ReplayReport:
    """Over the prefill record of the store, in this process unless told otherwise."""
    name = kernel if kernel in ("torch", "hf", "reference_staged") else f"{STAGED}:{kernel}"
    return replay(store, **{"kernel": name, "op": "gdn_prefill", "stages": True, "isolate": False, **options})


def judged(report: ReplayReport) -> list[tuple[str, bool, bool]]:
    (record,) = report.records
    return [(tensor.tensor, tensor.stage, tensor.passed) for tensor in record.tensors if tensor.judged]


ALL_PASS = [*((name, True, True) for name in STAGES), *((name, False, True) for name in OUTPUTS)]


@pytest.mark.every(2)
@pytest.mark.parametrize("kernel", ["torch", "reference_staged", "shows_all", "linear"])
@pytest.mark.parametrize("isolate", [False, True])
def test_stages_come_first_and_pass(store: Store, kernel: str, isolate: bool) -> None:
    report = run(store, kernel, isolate=isolate)
    assert judged(report) == ALL_PASS, report.records[0].reason
    assert report.exit_code is Exit.PASS


def test_without_the_flag_nothing_of_a_stage_is_looked_at(store: Store) -> None:
    report = run(store, "wrong_at_w", stages=False)
    assert judged(report) == [(name, False, True) for name in OUTPUTS]


@pytest.mark.parametrize("isolate", [False, True])
def test_the_first_wrong_stage_is_the_record_s_reason(store: Store, isolate: bool) -> None:
    report = run(store, "wrong_at_w", isolate=isolate)
    (record,) = report.records
    assert record.outcome is Outcome.MISMATCH
    assert report.exit_code is Exit.MISMATCH
    assert [name for name, _, passed in judged(report) if not passed] == ["W"]
    assert record.reason.startswith("W: ")


def test_table_json_and_junit_name_the_stage_and_the_coordinate(store: Store) -> None:
    report = run(store, "wrong_at_w")
    text = render_text(report)
    assert [line.split()[2:4] for line in text.splitlines() if "(stage)" in line] == [
        [name, "(stage)"] for name in STAGES
    ]
    assert f"    worst: {WRONG_W}: " in text
    tensors = json.loads(to_json(report))["records"][0]["tensors"]
    (wrong,) = [tensor for tensor in tensors if not tensor["passed"]]
    assert (wrong["tensor"], wrong["stage"]) == ("W", True)
    assert wrong["worst"]["index"] == [196, 1, 7]
    place = {name: wrong["worst"][name] for name in ("sequence", "chunk", "token", "head", "dims")}
    assert place == {"sequence": 3, "chunk": 1, "token": 68, "head": 1, "dims": {"K": 7}}
    assert [tensor["stage"] for tensor in tensors] == [True] * 8 + [False] * 2
    case = ElementTree.fromstring(to_junit(report)).find(".//testcase/failure")
    assert case is not None
    assert f"kernel W: worst {WRONG_W}" in (case.text or "")


def test_a_kernel_may_show_some_of_its_stages(store: Store) -> None:
    assert judged(run(store, "shows_u")) == [("U", True, True), *ALL_PASS[-2:]]


@pytest.mark.parametrize(
    ("kernel", "outcome", "reason"),
    [
        ("hf", Outcome.UNSUPPORTED, wording("replay.stages-not-taken", kernel="hf", parameter="stages")),
        ("shows_none", Outcome.UNSUPPORTED, wording("replay.stages-not-filled", known="g_cu, A, Ai")),
        (
            "shows_a_stranger",
            Outcome.CRASH,
            wording("replay.stage-unknown", stage="QK", operation="gdn_prefill", known="g_cu, A"),
        ),
        ("shows_no_tensor", Outcome.CRASH, wording("replay.stage-not-tensor", stage="U", type="list")),
    ],
)
def test_what_is_no_stage_is_said(store: Store, kernel: str, outcome: Outcome, reason: str) -> None:
    (record,) = run(store, kernel).records
    assert record.outcome is outcome
    assert re.search(reason, record.reason)


def test_an_operation_without_stages_is_unsupported(store_of: Callable[..., Store]) -> None:
    call = synthesise("swa_decode", lens=(3,), heads=1, window=4)
    report = run(store_of([draft("swa_decode", call)]), "torch", op="swa_decode")
    assert [record.outcome for record in report.records] == [Outcome.UNSUPPORTED]
    assert "swa_decode has no stages" in report.records[0].reason


@pytest.mark.parametrize("kernel", ["torch", "reference_staged"])
def test_decode_has_stages_too(store: Store, kernel: str) -> None:
    """Of records with padding, whose rows are held to nothing."""
    for record in run(store, kernel, op="gdn_decode").records:
        names = [(tensor.tensor, tensor.stage, tensor.passed) for tensor in record.tensors]
        assert names[:5] == [(name, True, True) for name in DECODE_STAGES], record.reason
        assert sorted(names[5:]) == [("o", False, True), ("state", False, True)]


def test_no_call_records_its_stages(store: Store) -> None:
    with pytest.raises(BadInputError, match=wording("replay.stages-not-recorded")):
        run(store, "torch", against="recorded")


def test_another_kernel_s_stages_are_compared(store: Store) -> None:
    other = f"{STAGED}:wrong_at_w"
    (record,) = run(store, "torch", against=other).records
    assert [(t.tensor, str(t.side)) for t in record.tensors if not t.passed] == [("W", "against")]
    (record,) = run(store, "torch", against=other, bitwise=True).records
    assert [t.tensor for t in record.tensors if not t.passed] == ["W"]
    assert [t.unequal for t in record.tensors if not t.passed] == [1]
    (record,) = run(store, "torch", against=other, tol=(1.5, 0.0)).records
    assert record.outcome is Outcome.PASS


def test_saved_stages_are_diffed(store: Store, tmp_path: Path) -> None:
    for kernel in ("shows_all", "wrong_at_w", "shows_u"):
        run(store, kernel, save=tmp_path / f"{kernel}.zarr")
    with (
        Store.open(tmp_path / "shows_all.zarr") as right,
        Store.open(tmp_path / "wrong_at_w.zarr") as wrong,
        Store.open(tmp_path / "shows_u.zarr") as few,
    ):
        assert diff(right, right).exit_code is Exit.PASS
        (record,) = diff(right, wrong).records
        assert [(t.tensor, t.stage, t.unequal) for t in record.tensors if not t.passed] == [("W", True, 1)]
        assert WRONG_W in record.reason
        (record,) = diff(few, right).records
        assert record.outcome is Outcome.PASS
        assert record.notes == tuple(f"stage {name}: only B has it" for name in STAGES if name != "U")
