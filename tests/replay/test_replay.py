# SPDX-License-Identifier: Apache-2.0
"""Replay end to end: right kernels pass, each wrong one fails for what it does wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.record import RecordDraft, Status, TensorDraft
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from tests.messages import wording

Faulty = Callable[[str], str]
StoreOf = Callable[[list[RecordDraft]], Store]
Made = Callable[..., list[RecordDraft]]


def run(store: Store, kernel: str, **options: Any) -> Any:
    return replay(store, kernel=kernel, isolate=False, **options)


@pytest.mark.every(2)
@pytest.mark.parametrize("kernel", ["torch", "hf", "reference"])
@pytest.mark.parametrize("against", ["reference", "recorded", "torch"])
def test_right_kernels_pass(store: Store, kernel: str, against: str) -> None:
    report = run(store, kernel, against=against)
    assert [r.outcome for r in report.records] == [Outcome.PASS] * 3, [r.reason for r in report.records]
    assert report.exit_code is Exit.PASS


@pytest.mark.parametrize(
    "kernel", ["correct", "fills_buffers", "returns_tuple", "linear_gate_kv", "wants_int64"]
)
def test_every_way_to_take_and_return_passes(
    store: Store, faulty: Faulty, kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(store, faulty(kernel))
    assert [r.outcome for r in report.records] == [Outcome.PASS] * 3, [r.reason for r in report.records]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "a kernel talks on stdout" in printed.err


def test_conversions_are_said(store: Store, faulty: Faulty) -> None:
    report = run(store, faulty("linear_gate_kv"))
    for record in report.records:
        assert [note.split(":")[0] for note in record.notes] == [
            "gate log -> linear",
            "state_layout VK -> KV",
        ]


MISTAKES = [
    ("maps_heads_wrongly", [0, 1, 2], "RMS error"),
    ("transposes_the_state", [0, 1, 2], "state: RMS error"),
    ("gets_a_tail_wrong", [0], "o: "),
    ("leaves_rows_unwritten", [0], "o: 128 of 17152 elements were never written"),
    ("writes_to_an_input", [0, 1, 2], "input k was written to: 1 elements"),
    ("writes_a_stale_slot", [1, 2], "state: 1 slots were written that the call must not touch"),
    ("does_nothing", [0, 1, 2], "were never written"),
]


@pytest.mark.every(2)
@pytest.mark.parametrize(("kernel", "records", "reason"), MISTAKES)
def test_every_mistake_fails(
    store: Store, faulty: Faulty, kernel: str, records: list[int], reason: str
) -> None:
    report = run(store, faulty(kernel), records=records)
    assert report.exit_code is Exit.MISMATCH
    for record in report.records:
        assert record.outcome is Outcome.MISMATCH
        everything = [
            record.reason,
            *record.faults,
            *(f"{t.tensor}: {line}" for t in record.tensors for line in t.reasons),
        ]
        assert any(reason in line for line in everything), everything


def test_beta_rounded_to_bf16_fails_on_an_fp32_state(store: Store, faulty: Faulty) -> None:
    report = run(store, faulty("rounds_beta_to_bf16"), op="gdn_decode")
    for record in report.records:
        assert record.outcome is Outcome.MISMATCH
        assert [t.tensor for t in record.tensors if not t.passed] == ["state"]


def test_the_wrong_token_is_named(store: Store, faulty: Faulty) -> None:
    (record,) = run(store, faulty("gets_a_tail_wrong"), records=[0]).records
    (o,) = [tensor for tensor in record.tensors if tensor.tensor == "o"]
    assert o.worst is not None
    assert (o.worst.at.sequence, o.worst.at.token, o.worst.at.chunk) == (3, 69, 1)
    assert {(g.sequence, g.chunk) for g in o.groups if g.errors.max_abs == o.errors.max_abs} == {(3, 1)}


OUTCOMES = [
    ("raises", Outcome.CRASH, Exit.MISMATCH, "RuntimeError: something broke ("),
    ("refuses", Outcome.UNSUPPORTED, Exit.CANNOT_RUN, "head dim 128 only"),
    ("lacks_a_package", Outcome.MISSING, Exit.CANNOT_RUN, "pip install nosuch"),
    ("asks_for_a_gpu", Outcome.MISSING, Exit.CANNOT_RUN, "No CUDA GPUs are available"),
    ("does_not_compile", Outcome.COMPILE_FAILURE, Exit.MISMATCH, "ptxas"),
    ("wants_more", Outcome.UNSUPPORTED, Exit.CANNOT_RUN, "needs 'nonsense'"),
    ("returns_too_much", Outcome.CRASH, Exit.MISMATCH, "returned 4 values"),
]


@pytest.mark.parametrize(("kernel", "outcome", "code", "reason"), OUTCOMES)
def test_outcomes(
    store: Store, faulty: Faulty, kernel: str, outcome: Outcome, code: Exit, reason: str
) -> None:
    report = run(store, faulty(kernel), records=[0])
    assert report.records[0].outcome is outcome
    assert reason in report.records[0].reason
    assert "\n" not in report.records[0].reason
    assert report.exit_code is code


def test_bitwise_and_tolerance(store: Store) -> None:
    assert run(store, "torch", against="recorded", bitwise=True).exit_code is Exit.PASS
    assert run(store, "hf", against="recorded", bitwise=True, records=[0]).exit_code is Exit.MISMATCH
    assert run(store, "hf", against="recorded", tol=(0.05, 0.0)).exit_code is Exit.PASS
    assert run(store, "reference", bitwise=True).exit_code is Exit.PASS


def test_both_sides_are_judged(store_of: StoreOf, made: Made) -> None:
    """A recorded output that is itself wrong is a mismatch, and says whose it is."""
    (draft,) = made("gdn_prefill")
    o = draft.after["o"]
    wrong = o.data.clone()
    wrong[70, 1, 3] += 1.0
    kept = store_of([replace(draft, after={**draft.after, "o": TensorDraft(wrong, o.meta)})])
    (record,) = run(kept, "torch", against="recorded").records
    assert record.outcome is Outcome.MISMATCH
    assert record.reason.startswith("against o: ")
    sides = {(t.tensor, t.side): t.passed for t in record.tensors}
    assert sides["o", "kernel"]
    assert not sides["o", "against"]
    difference = next(t for t in record.tensors if (t.tensor, t.side) == ("o", "difference"))
    assert difference.worst is not None
    assert difference.worst.at.index == (70, 1, 3)


def test_an_output_that_was_not_recorded_is_unmatched(store_of: StoreOf, made: Made) -> None:
    (draft,) = made("gdn_prefill")
    kept = store_of([replace(draft, after={"o": draft.after["o"]})])
    (record,) = run(kept, "torch", against="recorded").records
    assert record.outcome is Outcome.MISMATCH
    assert re.fullmatch("against final_state: " + wording("judge.not-among"), record.reason)


def test_unfinished_records_replay_but_have_nothing_to_compare_with(store_of: StoreOf, made: Made) -> None:
    (draft,) = made("gdn_decode")
    kept = store_of([replace(draft, info=replace(draft.info, status=Status.UNFINISHED), after={})])
    assert run(kept, "torch").exit_code is Exit.PASS
    report = run(kept, "torch", against="recorded")
    assert report.records[0].outcome is Outcome.NOT_COMPARABLE
    assert report.exit_code is Exit.CANNOT_RUN


def test_records_of_inputs_alone_say_so(store_of: StoreOf, made: Made) -> None:
    (draft,) = made("gdn_decode")
    report = run(store_of([replace(draft, after={})]), "torch", against="recorded")
    assert report.records[0].outcome is Outcome.NOT_COMPARABLE
    alone = re.compile(wording("replay.inputs-alone"))
    assert re.fullmatch(wording("replay.no-output", why=alone), report.records[0].reason)


def test_a_record_that_breaks_its_contract_is_refused(store_of: StoreOf, made: Made) -> None:
    good, bad = made("gdn_prefill", 2)
    offsets = bad.before["cu_seqlens"]
    broken = TensorDraft(offsets.data + 1, offsets.meta)
    bad = replace(bad, before={**bad.before, "cu_seqlens": broken})
    report = run(store_of([good, bad]), "torch")
    assert [r.outcome for r in report.records] == [Outcome.PASS, Outcome.REFUSED]
    assert re.search(wording("kernels.offsets-start", value=1), report.records[1].reason)
    assert report.exit_code is Exit.BAD_INPUT


def strided(
    draft: RecordDraft, name: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> RecordDraft:
    held = draft.before[name]
    meta = replace(held.meta, caller_shape=shape, caller_strides=strides, caller_offset=offset)
    return replace(draft, before={**draft.before, name: TensorDraft(held.data, meta)})


def test_a_kernel_sees_the_callers_strides(store_of: StoreOf, made: Made, faulty: Faulty) -> None:
    (draft,) = made("gdn_prefill")
    tokens = draft.before["q"].data.shape[0]
    kept = store_of([strided(draft, "q", (tokens, 2, 32), (512, 32, 1), 7)])
    assert run(kept, faulty("reads_a_neighbour")).records[0].outcome is Outcome.PASS


def test_untouched_slots_of_a_strided_pool_are_watched(store_of: StoreOf, made: Made, faulty: Faulty) -> None:
    """Slots as vLLM's pages hold them: each beside other data, so the pool is not contiguous."""
    (draft,) = made("gdn_decode")
    slots, slot = draft.info.pools["state"].slots, 4 * 32 * 32
    kept = store_of([strided(draft, "state", (slots, 4, 32, 32), (slot + 100, 1024, 32, 1), 50)])
    assert run(kept, "torch").records[0].outcome is Outcome.PASS
    (record,) = run(kept, faulty("writes_a_stale_slot")).records
    assert re.search(wording("replay.slots-written", tensor="state", count=1, slot=0), record.reason)


def test_nan_values_are_replayed_as_they_are(store_of: StoreOf, made: Made) -> None:
    """NaN in one sequence reaches its later tokens in the oracle, and no other sequence."""
    kept = store_of(made("gdn_prefill", nan_at=(40,)))
    report = run(kept, "torch")
    assert report.records[0].outcome is Outcome.PASS, report.records[0].reason


def test_selection_and_bad_arguments(store: Store, tmp_path: Path) -> None:
    assert [r.number for r in run(store, "torch", records=[2, 0]).records] == [2, 0]
    assert [r.number for r in run(store, "torch", op="gdn_decode").records] == [1, 2]
    with pytest.raises(BadInputError, match=wording("replay.record-missing", number=3, count=3)):
        run(store, "torch", records=[3])
    with pytest.raises(
        BadInputError,
        match=wording("replay.kernel-unknown", kernel="nosuch", known=re.compile(".*hf, .*torch.*")),
    ):
        run(store, "nosuch")
    with pytest.raises(BadInputError, match=wording("replay.nothing-selected", what="record of gdn_prefill")):
        run(store, "torch", records=[1], op="gdn_prefill")
    with pytest.raises(BadInputError, match=wording("replay.timeout-needs-isolation")):
        run(store, "torch", timeout=1.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_cuda_that_is_not_there_is_said(store: Store) -> None:
    with pytest.raises(CannotRunError, match=wording("replay.gpu-missing")):
        replay(store, kernel="torch", on="cuda")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": "tpu"}, wording("replay.device-unknown", device="tpu", known="cpu, cuda", last="sim")),
        ({"timeout": 0.0}, wording("replay.timeout-wrong", timeout=0)),
        ({"timeout": float("nan")}, wording("replay.timeout-wrong", timeout="nan")),
        ({"k": 3.0, "bitwise": True}, wording("judge.k-without-oracle")),
        (
            {"k_by_tensor": {"nosuch": 3.0}},
            wording(
                "judge.k-unused",
                output="nosuch",
                known="conv_state, entries, final_state, indices, logits, lse, o, state, y",
            ),
        ),
    ],
)
def test_senseless_arguments_are_refused(store: Store, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        replay(store, kernel="torch", **options)


def test_every_listed_oracle_passes(store: Store) -> None:
    report = run(store, "reference_staged", records=[0])
    assert report.records[0].outcome is Outcome.PASS, report.records[0].reason


def test_a_write_to_a_converted_input_is_seen(store_of: StoreOf, made: Made, faulty: Faulty) -> None:
    """The record's own q and k are raw, the kernel gets normalised copies."""
    kept = store_of(made("gdn_prefill", qk="raw"))
    (record,) = run(kept, faulty("writes_to_an_input")).records
    (fault,) = record.faults
    assert re.fullmatch(wording("replay.input-elements-written", tensor="k", count=1, first=[0, 0, 5]), fault)


def test_what_the_other_kernel_did_counts_too(store: Store, faulty: Faulty) -> None:
    other = faulty("writes_a_stale_slot")
    (record,) = run(store, "hf", against=other, records=[1]).records
    assert record.outcome is Outcome.MISMATCH
    assert record.faults[0].startswith(f"{other}: state: 1 slots were written")
    (record,) = run(store, "torch", against="hf", records=[1]).records
    assert record.outcome is Outcome.PASS
    assert [note.split(":")[0] for note in record.notes] == ["hf"]


@pytest.mark.parametrize("full_pools", [False, True])
def test_slots_that_the_recorded_call_had_no_business_with(
    store_of: StoreOf, made: Made, full_pools: bool
) -> None:
    (draft,) = made("gdn_decode")
    pool = draft.info.pools["state"]
    after = draft.after
    if full_pools:
        pool = replace(pool, rows=tuple(range(pool.slots)), untouched_before=None, untouched_after=None)
        state = draft.before["state"]
        whole = torch.zeros(pool.slots, *state.data.shape[1:])
        whole[list(draft.info.pools["state"].rows)] = state.data
        wrong = whole.clone()
        wrong[list(draft.info.pools["state"].rows)] = after["state"].data
        free = min(set(range(pool.slots)) - set(draft.info.pools["state"].rows))
        wrong[free, 0, 0, 0] = 1.0
        meta = replace(state.meta, shape=tuple(whole.shape))
        before = {**draft.before, "state": TensorDraft(whole, meta)}
        after = {**after, "state": TensorDraft(wrong, meta)}
        found = f", first slot {free}"
    else:
        before = dict(draft.before)
        pool = replace(pool, untouched_after="00000000000000aa")
        found = f" (checksum {pool.untouched_before} before, 00000000000000aa after)"
    stray = replace(draft, info=replace(draft.info, pools={"state": pool}), before=before, after=after)
    kept = store_of([stray])
    assert run(kept, "torch").records[0].outcome is Outcome.PASS
    (record,) = run(kept, "torch", against="recorded").records
    assert record.outcome is Outcome.MISMATCH
    (fault,) = record.faults
    changed = wording("replay.recorded-slots-changed", tensor="state")
    assert re.fullmatch(changed + re.escape(found), fault)


def test_a_slot_that_was_not_captured_is_refused_alone(store_of: StoreOf, made: Made) -> None:
    good, bad = made("gdn_decode", 2)
    pool = bad.info.pools["state"]
    cut = {
        name: TensorDraft(part["state"].data[1:], replace(part["state"].meta, shape=(2, 4, 32, 32)))
        for name, part in (("before", bad.before), ("after", bad.after))
    }
    bad = replace(
        bad,
        info=replace(bad.info, pools={"state": replace(pool, rows=pool.rows[1:])}),
        before={**bad.before, "state": cut["before"]},
        after={**bad.after, "state": cut["after"]},
    )
    report = run(store_of([bad, good]), "torch")
    assert [r.outcome for r in report.records] == [Outcome.REFUSED, Outcome.PASS]
    assert re.search(wording("kernels.slot-not-captured", slot=pool.rows[0]), report.records[0].reason)


def test_progress_and_order(store: Store) -> None:
    seen: list[tuple[int, int, int]] = []
    run(store, "torch", progress=lambda done, total, last: seen.append((done, total, last.number)))
    assert seen == [(1, 3, 0), (2, 3, 1), (3, 3, 2)]
