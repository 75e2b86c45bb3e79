# SPDX-License-Identifier: Apache-2.0
"""Records of swa_decode that no capture writes: refused or unequal in one line, whatever was edited."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.diff.compare import diff
from gdnbench.errors import CannotRunError
from gdnbench.judge import calls
from gdnbench.ops import operation
from gdnbench.record import Pool, RecordDraft, TensorDraft
from gdnbench.replay import bind
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Call, ContractError
from tests.messages import wording

StoreOf = Callable[..., Store]
OP = operation("swa_decode")


@pytest.fixture(scope="module")
def given() -> RecordDraft:
    options: dict[str, Any] = {"lens": (20, 0, 9, 32), "heads": 2, "block_size": 16, "spare_pages": 10}
    return draft("swa_decode", synthesise("swa_decode", **options))


def edited(
    record: RecordDraft, name: str, edit: Callable[[Tensor], Tensor], when: str = "before"
) -> RecordDraft:
    side = getattr(record, when)
    held = side[name]
    data = edit(held.data.clone())
    axes = (*held.meta.axes, "x", "x")[: data.ndim]
    meta = replace(
        held.meta, shape=tuple(data.shape), axes=axes, dtype=str(data.dtype).removeprefix("torch.")
    )
    return replace(record, **{when: {**side, name: TensorDraft(data, meta)}})


def without(record: RecordDraft, name: str, when: str = "before") -> RecordDraft:
    kept = {key: value for key, value in getattr(record, when).items() if key != name}
    return replace(record, **{when: kept})


def pooled(record: RecordDraft, name: str, pool: Pool) -> RecordDraft:
    return replace(record, info=replace(record.info, pools={**record.info.pools, name: pool}))


def said(record: RecordDraft, conventions: dict[str, str]) -> RecordDraft:
    return replace(record, info=replace(record.info, conventions={**record.info.conventions, **conventions}))


def half(tensor: Tensor) -> Tensor:
    return tensor[: len(tensor) // 2].contiguous()


@pytest.mark.parametrize("name", ["cache", "inv_scale", "swa_indices", "swa_lens"])
@pytest.mark.parametrize(
    "edit", [half, torch.flatten, lambda t: t.flatten()[0].clone(), lambda t: t[..., None]]
)
def test_tensors_of_other_shapes(store_of: StoreOf, given: RecordDraft, name: str, edit: Any) -> None:
    wrong = edited(given, name, edit)
    if wrong.before[name].data.shape == given.before[name].data.shape:
        return  # flat already
    store = store_of([wrong])
    for report in (replay(store, kernel="torch"), diff(store, store), diff(store, store, oracle=True)):
        (record,) = report.records
        assert record.outcome is Outcome.REFUSED
        assert record.reason.startswith("swa_decode: ")
        assert "\n" not in record.reason


@pytest.mark.parametrize("name", ["q", "swa_lens", "swa_indices", "o", "other"])
def test_pools_of_what_is_no_pool(store_of: StoreOf, given: RecordDraft, name: str) -> None:
    store = store_of([pooled(given, name, Pool(9, (0, 1, 2, 3)))])
    for report in (replay(store, kernel="torch", against="recorded"), diff(store, store, oracle=True)):
        (record,) = report.records
        assert record.outcome is Outcome.REFUSED
        assert re.fullmatch(
            wording("judge.pool-refused", operation="swa_decode", pool=name, known="cache, inv_scale"),
            record.reason,
        )
    assert diff(store, store).records[0].outcome is Outcome.REFUSED


def test_pools_of_other_rows_than_were_stored(store_of: StoreOf, given: RecordDraft) -> None:
    pool = given.info.pools["cache"]
    for rows in (pool.rows[:-1], ()):
        store = store_of([pooled(given, "cache", Pool(pool.slots, rows))], f"{len(rows)}.zarr")
        (record,) = replay(store, kernel="torch").records
        assert record.outcome is Outcome.REFUSED
        assert re.fullmatch(
            wording(
                "judge.pool-rows", operation="swa_decode", pool="cache", shape="[4, 16, 512]", rows=len(rows)
            ),
            record.reason,
        )


def test_a_pool_of_more_slots_than_torch_can_count(store_of: StoreOf, given: RecordDraft) -> None:
    """Nor is a list made of them to see whether all were stored."""
    for slots in (1 << 40, (1 << 63) - 1):
        store = store_of(
            [pooled(given, "cache", Pool(slots, given.info.pools["cache"].rows))], f"{slots}.zarr"
        )
        assert not calls.is_whole(store.records[0].info.pools["cache"])
        for report in (replay(store, kernel="torch"), diff(store, store), diff(store, store, oracle=True)):
            assert report.records[0].outcome is Outcome.REFUSED or report.records[0].outcome is Outcome.PASS
    assert re.search(wording("judge.pool-size"), replay(store, kernel="torch").records[0].reason)


def test_a_pool_that_no_memory_holds_cannot_be_run(store_of: StoreOf) -> None:
    options: dict[str, Any] = {"lens": (20,), "heads": 1, "block_size": 16, "cache_layout": "fp8_ds_mla"}
    record = draft("swa_decode", synthesise("swa_decode", **options))
    slots = 1 << 34  # 160 TB, more than the 47 bits of a process's addresses
    store = store_of([pooled(record, "cache", Pool(slots, record.info.pools["cache"].rows))])
    with pytest.raises(
        CannotRunError, match=wording("replay.pool-memory", size=re.compile(".* TiB"), device="cpu")
    ):
        bind.exact(store.records[0], OP, torch.device("cpu"))
    (found,) = replay(store, kernel="torch").records
    assert found.outcome is Outcome.MISSING


def test_slots_past_31_bits_are_counted_right() -> None:
    """An int32 compared with such a number would be compared with what is left of it in 32 bits."""
    call = synthesise(
        "swa_decode", lens=(20,), heads=1, block_size=16, cache_layout="fp8_ds_mla", spare_pages=0
    )
    for slots in ((1 << 31) + 16, (1 << 32) + 16, 1 << 40):
        large = {
            name: torch.empty((slots // 16, 16, 584), dtype=torch.uint8, device="meta")
            if name == "cache"
            else t
            for name, t in call.tensors.items()
        }
        OP.validate(Call(large, call.scalars, call.conventions))


@pytest.mark.parametrize(
    ("conventions", "reason"),
    [
        (
            {"index_shape": "WT"},
            "swa_decode: "
            + wording(
                "kernels.convention-value", convention="index_shape", value="WT", known="TW or T1W or 1TW"
            ),
        ),
        (
            {"cache_layout": "fp4"},
            "swa_decode: "
            + wording(
                "kernels.convention-value",
                convention="cache_layout",
                value="fp4",
                known=re.compile("per_token_scale.*"),
            ),
        ),
        ({"gate": "log"}, "swa_decode: " + wording("kernels.convention-unknown", convention="gate")),
        (
            {"index_shape": "1TW"},
            "swa_decode: "
            + wording("kernels.tensor-rank", tensor="swa_indices", shape="[4, 128]", rank=2, axes="1, T, W"),
        ),
    ],
)
def test_conventions_that_there_are_not(
    store_of: StoreOf, given: RecordDraft, conventions: dict[str, str], reason: str
) -> None:
    store = store_of([said(given, conventions)])
    for report in (replay(store, kernel="torch"), diff(store, store), diff(store, store, oracle=True)):
        (record,) = report.records
        assert record.outcome is Outcome.REFUSED
        assert re.match(reason, record.reason)


@pytest.mark.parametrize("scale", [1e39, -1e300, 10**400])
def test_a_scale_past_float32(scale: float) -> None:
    call = synthesise("swa_decode", lens=(3,), heads=1)
    with pytest.raises(ContractError, match=wording("capture.scale-infinite")):
        OP.validate(replace(call, scalars={"scale": scale}))


@pytest.mark.parametrize("name", ["o", "lse"])
def test_an_output_that_was_not_recorded(
    store_of: StoreOf, given: RecordDraft, name: str, tmp_path: Path
) -> None:
    """A mismatch of that output alone on either side; the other is judged."""
    store = store_of([without(given, name, "after")])
    replay(store, kernel="torch", save=tmp_path / "run")
    with open_store(tmp_path / "run") as run:
        for left, right, reason in (
            (store, run, f"{name}: " + wording("judge.not-an-output")),
            (run, store, f"{name}: " + wording("judge.not-among")),
            (store, store, f"{name}: " + wording("judge.not-an-output")),
        ):
            (record,) = diff(left, right, oracle=True).records
            assert record.outcome is Outcome.MISMATCH
            assert [t.tensor for t in record.tensors if not t.passed] == [name]
            assert re.search(reason, record.reason)
            assert len({t.tensor for t in record.tensors}) == 2


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["o", "lse"])
@pytest.mark.parametrize("edit", [half, torch.flatten, lambda t: t.flatten()[0].clone()])
def test_outputs_of_other_shapes(store_of: StoreOf, given: RecordDraft, name: str, edit: Any) -> None:
    wrong, right = store_of([edited(given, name, edit, "after")]), store_of([given], "right.zarr")
    for left, other in ((wrong, wrong), (wrong, right), (right, wrong)):
        for options in ({}, {"oracle": True}, {"tol": (1.0, 1.0)}):
            (record,) = diff(left, other, **options).records
            assert record.outcome is Outcome.MISMATCH, options
            assert f"{name}: shape [" in record.reason


def test_index_tensors_that_are_not_there(store_of: StoreOf, given: RecordDraft) -> None:
    for name in ("swa_indices", "swa_lens", "cache"):
        store = store_of([without(given, name)], f"{name}.zarr")
        assert replay(store, kernel="torch").records[0].outcome is Outcome.REFUSED
        (record,) = diff(store, store).records
        assert record.outcome is Outcome.PASS
        every = wording("diff.all-rows", tensor="o", error=repr(name))
        assert any(re.fullmatch(every, note) for note in record.notes)
