# SPDX-License-Identifier: Apache-2.0
"""What a saved run says beyond errors: ranges of the captured inputs, and what each stage added."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gdnbench.judge.calls import compact_call
from gdnbench.record import RecordDraft
from gdnbench.replay.replay import replay
from gdnbench.report.runs import read_run
from gdnbench.store.reader import Store
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel

StoreOf = Callable[[list[RecordDraft]], Store]
Made = Callable[..., list[RecordDraft]]


def test_a_run_with_stages_has_their_shares(store_of: StoreOf, made: Made, tmp_path: Path) -> None:
    """States of the store lie [K, V], and torch's kernel takes [V, K]: the error of final_state is small only
    where both sides are looked at in one layout."""
    store = store_of(made("gdn_prefill", state_layout="KV"))
    replay(store, stages=True, save=tmp_path / "run.zarr")
    (record,) = read_run(tmp_path / "run.zarr").records
    shares = {share["stage"]: share for share in record["waterfall"]}
    assert [next(iter(shares)), list(shares)[-1]] == ["g_cu", "o"]
    kernels = [t for t in record["tensors"] if t["side"] == "kernel"]
    assert set(shares) == {t["tensor"] for t in kernels}
    call = compact_call(store.records[0], PREFILL, torch.device("cpu"))
    by_token, by_chunk = (run_kernel(PREFILL, name, one) for name, one in (
        ("reference", call), ("reference_staged", PREFILL.stage_call(call)),
    ))  # fmt: skip
    for tensor in kernels:
        share, error = shares[tensor["tensor"]], tensor["errors"]["rms"]
        if tensor["stage"]:
            assert share["error"] == pytest.approx(error, rel=1e-9)
        else:
            # Outputs are held to one oracle and here to the other: by the triangle inequality the errors
            # differ by what the two do.
            apart = (by_token[tensor["tensor"]] - by_chunk[tensor["tensor"]]).square().mean().sqrt()
            assert abs(share["error"] - error) <= float(apart) * (1 + 1e-9) + 1e-9 * error
            assert share["error"] < 0.1 * share["reference"]


def test_without_stages_there_are_none(store: Store, tmp_path: Path) -> None:
    report = replay(store, save=tmp_path / "run.zarr")
    assert all(record["waterfall"] is None for record in read_run(tmp_path / "run.zarr").records)
    assert all(record.ranges for record in report.records)


def test_ranges_are_those_of_the_captured_tensors(store: Store, tmp_path: Path) -> None:
    replay(store, op="gdn_prefill", save=tmp_path / "run.zarr")
    (record,) = read_run(tmp_path / "run.zarr").records
    found = {one["name"]: one["values"] for one in record["capture"]}
    beta = store.records[0].before["beta"].read().double().numpy()
    assert found["beta"] == {"min": beta.min(), "max": beta.max()}


def test_a_run_that_keeps_nothing_works_nothing_of_it_out(store: Store) -> None:
    report = replay(store, stages=False)
    assert all(record.ranges is None and record.waterfall is None for record in report.records)
