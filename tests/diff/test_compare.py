# SPDX-License-Identifier: Apache-2.0
"""Two stores compared: what belongs together, what is unmatched, and by which rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdnbench.diff.compare import diff
from gdnbench.errors import BadInputError, Exit
from gdnbench.record import RecordDraft
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from tests.messages import wording

Keep = Callable[..., Store]
Changed = Callable[..., RecordDraft]


def test_equal_stores_pass(keep: Keep, drafts: list[RecordDraft]) -> None:
    report = diff(keep("a", drafts), keep("b", drafts))
    assert [r.outcome for r in report.records] == [Outcome.PASS] * 3
    assert report.exit_code is Exit.PASS
    names = {(t.when, t.tensor) for t in report.records[0].tensors}
    assert {("before", "q"), ("before", "cu_seqlens"), ("after", "o"), ("after", "final_state")} <= names


def test_one_wrong_element_is_named(keep: Keep, drafts: list[RecordDraft], changed: Changed) -> None:
    other = [changed(drafts[0], "o", (66, 1, 3), 1.0), *drafts[1:]]
    report = diff(keep("a", drafts), keep("b", other))
    assert [r.outcome for r in report.records] == [Outcome.MISMATCH, Outcome.PASS, Outcome.PASS]
    assert "[66, 1, 3] (sequence 1, chunk 1, token 65, head 1, V 3)" in report.records[0].reason
    assert report.exit_code is Exit.MISMATCH


def test_a_slot_is_named_by_its_number(keep: Keep, drafts: list[RecordDraft], changed: Changed) -> None:
    slots = drafts[1].info.pools["state"].rows
    other = [drafts[0], changed(drafts[1], "state", (1, 2, 3, 4), 1.0), drafts[2]]
    (record,) = [r for r in diff(keep("a", drafts), keep("b", other)).records if r.reason]
    assert f"[{slots[1]}, 2, 3, 4]" in record.reason


def test_an_input_that_differs_is_a_mismatch(keep: Keep, drafts: list[RecordDraft], changed: Changed) -> None:
    other = [changed(drafts[0], "k", (0, 0, 0), 1.0, "before"), *drafts[1:]]
    (record,) = [r for r in diff(keep("a", drafts), keep("b", other)).records if r.reason]
    assert record.reason.startswith("k: 1 of")


def test_tolerance(keep: Keep, drafts: list[RecordDraft], changed: Changed) -> None:
    other = [changed(drafts[0], "final_state", (1, 1, 1, 1), 0.01), *drafts[1:]]
    a, b = keep("a", drafts), keep("b", other)
    assert diff(a, b).exit_code is Exit.MISMATCH
    assert diff(a, b, tol=(0.02, 0.0)).exit_code is Exit.PASS
    assert diff(a, b, tol=(0.005, 0.0)).exit_code is Exit.MISMATCH


def test_the_oracle_says_which_side_is_wrong(keep: Keep, drafts: list[RecordDraft], changed: Changed) -> None:
    other = [changed(drafts[0], "o", (66, 1, 3), 1.0), *drafts[1:]]
    record = diff(keep("a", drafts), keep("b", other), oracle=True).records[0]
    assert record.outcome is Outcome.MISMATCH
    verdicts = {(t.tensor, str(t.side)): t.passed for t in record.tensors}
    assert verdicts["o", "kernel"]
    assert not verdicts["o", "against"]


@pytest.mark.parametrize("side", ["A", "B"])
def test_the_oracle_has_nothing_to_say_of_inputs_alone(
    keep: Keep, drafts: list[RecordDraft], side: str
) -> None:
    stores = {"A": drafts[:1], "B": drafts[:1]} | {side: [replace(drafts[0], after={})]}
    report = diff(keep("a", stores["A"]), keep("b", stores["B"]), oracle=True)
    assert [r.outcome for r in report.records] == [Outcome.NOT_COMPARABLE]
    assert re.match(wording("diff.outputs-missing", side=side), report.records[0].reason)
    assert report.exit_code is Exit.CANNOT_RUN


def test_unmatched_records_and_tensors_fail(keep: Keep, drafts: list[RecordDraft]) -> None:
    lacking = replace(drafts[1], after={"o": drafts[1].after["o"]})
    report = diff(keep("a", drafts), keep("b", [lacking, drafts[2]]))
    assert [r.outcome for r in report.records] == [Outcome.MISMATCH, Outcome.PASS, Outcome.MISMATCH]
    assert report.records[0].reason == "state: only A has it"
    assert "only A" in report.records[2].reason
    assert report.records[2].op == "gdn_prefill"


def test_records_match_by_layer_and_step_whatever_their_order(keep: Keep, drafts: list[RecordDraft]) -> None:
    report = diff(keep("a", drafts), keep("b", drafts[::-1]))
    assert report.exit_code is Exit.PASS
    assert [(r.step, r.outcome) for r in report.records] == [(0, "pass"), (0, "pass"), (1, "pass")]


def test_shape_and_scalars_must_match(keep: Keep, drafts: list[RecordDraft]) -> None:
    info = drafts[0].info
    other = replace(drafts[0], info=replace(info, scalars={**info.scalars, "scale": 0.5}))
    (record,) = diff(keep("a", drafts[:1]), keep("b", [other])).records
    assert record.outcome is Outcome.MISMATCH
    assert record.reason.startswith("scalars")


def test_rules_that_make_no_sense_are_refused(keep: Keep, drafts: list[RecordDraft]) -> None:
    store = keep("a", drafts)
    with pytest.raises(BadInputError, match=wording("judge.tol-negative")):
        diff(store, store, tol=(-1.0, 0.0))
    with pytest.raises(BadInputError, match=wording("diff.k-needs-oracle")):
        diff(store, store, k=3.0)


def test_nothing_to_compare(keep: Keep, drafts: list[RecordDraft]) -> None:
    store = keep("a", drafts[:1])
    with pytest.raises(BadInputError, match=wording("diff.record-missing", what=" of gdn_decode")):
        diff(store, store, op="gdn_decode")
    with pytest.raises(BadInputError, match=wording("diff.tol-or-oracle")):
        diff(store, store, oracle=True, tol=(0.0, 0.0))


def saved(store: Store, kernel: str, path: Path, **options: Any) -> Store:
    replay(store, kernel=kernel, save=path, isolate=False, **options)
    return Store.open(path)


def test_runs_of_two_kernels(keep: Keep, drafts: list[RecordDraft], tmp_path: Path) -> None:
    """What `replay --save` wrote is compared by the record it came from, in whatever order that was."""
    store = keep("a", drafts)
    torchs = saved(store, "torch", tmp_path / "torch.zarr")
    again = saved(store, "torch", tmp_path / "again.zarr", records=[2, 1, 0])
    hf = saved(store, "hf", tmp_path / "hf.zarr")
    assert torchs.kind == "run"
    assert diff(torchs, again).exit_code is Exit.PASS
    assert diff(torchs, hf).exit_code is Exit.MISMATCH
    # bf16 outputs and states of magnitude 1 by two roundings of a few 2**-8 each.
    assert diff(torchs, hf, tol=(0.05, 0.0)).exit_code is Exit.PASS
    report = diff(store, hf, oracle=True)
    assert report.exit_code is Exit.PASS, [r.reason for r in report.records]
    report = diff(torchs, hf, oracle=True)
    assert report.exit_code is Exit.CANNOT_RUN
    assert re.search(wording("diff.inputs-missing"), report.records[0].reason)


def test_a_run_keeps_index_tensors_and_digests_alone(
    keep: Keep, drafts: list[RecordDraft], tmp_path: Path
) -> None:
    store = keep("a", drafts)
    run = saved(store, "torch", tmp_path / "run.zarr")
    record = run.records[0]
    assert set(record.before) == {"cu_seqlens"}
    assert set(record.after) == {"o", "final_state"}
    assert record.info.run["kernel"] == "torch"
    assert record.info.run["outcome"] == "pass"
    assert record.info.run["source"] == store.records[0].key
    assert record.info.run["inputs"]["q"] == store.records[0].before["q"].digest


def test_runs_of_different_inputs_are_told_apart(
    keep: Keep, drafts: list[RecordDraft], changed: Changed, tmp_path: Path
) -> None:
    """Equal outputs of unequal inputs are no agreement: v of an empty gate can differ and o not."""
    run = saved(keep("a", drafts[:1]), "torch", tmp_path / "run.zarr")
    other = saved(
        keep("b", [changed(drafts[0], "v", (0, 0, 0), 1.0, "before")]), "torch", tmp_path / "other.zarr"
    )
    (record,) = diff(run, other, tol=(1e9, 0.0)).records
    assert record.outcome is Outcome.MISMATCH
    assert re.fullmatch(wording("diff.input-differs", name="v"), record.reason)


def test_a_run_that_crashed_has_nothing_to_compare(
    keep: Keep, drafts: list[RecordDraft], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("def kernel(q):\n    raise RuntimeError('no')\n")
    store = keep("a", drafts[:1])
    good = saved(store, "torch", tmp_path / "good.zarr")
    bad = saved(store, f"{tmp_path}/broken.py:kernel", tmp_path / "bad.zarr")
    (record,) = diff(good, bad).records
    assert record.outcome is Outcome.MISMATCH
    assert "o: only A has it" in record.reason
    assert bad.records[0].info.run["outcome"] == "crash"
