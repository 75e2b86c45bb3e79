# SPDX-License-Identifier: Apache-2.0
"""Stores with sets of indices: equal in any order, and where they select equal values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gdnbench.diff.compare import diff
from gdnbench.errors import Exit
from gdnbench.record import RecordDraft, TensorDraft
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store
from gdnbench.synth import draft, synthesise

Keep = Callable[..., Store]


@pytest.fixture
def record() -> RecordDraft:
    """Two rows of 8 candidates, of which 4 are 0.0 and 3 are above; 5 entries."""
    call = synthesise("indexer_topk", lens=(8, 3), top_k=5, zeros=0.5)
    logits = call.tensors["logits"].clone()
    logits[0] = torch.tensor([0.0, 4, 0, -1, 0, 2, 3, 0])
    call = replace(call, tensors={**call.tensors, "logits": logits})
    return draft("indexer_topk", call)


def holding(record: RecordDraft, row: list[int]) -> RecordDraft:
    held = record.after["indices"]
    data = held.data.clone()
    data[0] = torch.tensor(row)
    return replace(record, after={"indices": TensorDraft(data, held.meta)})


@pytest.mark.parametrize(
    ("row", "equal"),
    [
        ([2, 1, 5, 6, 0], True),  # another order
        ([7, 6, 5, 4, 1], True),  # other zeros
        ([7, 6, 5, 3, 1], False),  # the candidate of -1
        ([7, 7, 6, 5, 1], False),  # an index twice
        ([7, 6, 5, 1, -1], False),
    ],
)
def test_sets_of_two_captures(keep: Keep, record: RecordDraft, row: list[int], equal: bool) -> None:
    a, b = keep("a", [holding(record, [0, 1, 2, 5, 6])]), keep("b", [holding(record, row)])
    report = diff(a, b)
    assert report.exit_code is (Exit.PASS if equal else Exit.MISMATCH)
    assert diff(a, b, oracle=True).exit_code is report.exit_code
    if not equal:
        assert report.records[0].reason.startswith("indices: 1 of 2 rows select other indices; first row 0:")


def test_runs_have_no_candidates(keep: Keep, record: RecordDraft, tmp_path: Path) -> None:
    """Two runs hold no logits: the same indices are equal, others are not. A capture beside them has
    logits."""
    store = keep("a", [record])
    paths = [tmp_path / "torch.zarr", tmp_path / "other.zarr"]
    script = tmp_path / "later.py"
    script.write_text(
        "def last_ties(logits, lens, top_k, indices):\n"
        "    indices[:] = -1\n"
        "    for row, n in enumerate(lens.tolist()):\n"
        "        order = logits[row, :n].flip(0).argsort(descending=True, stable=True)[:top_k]\n"
        "        indices[row, : len(order)] = (n - 1 - order).int()\n"
    )
    for path, kernel in zip(paths, ("reference", f"{script}:last_ties"), strict=True):
        assert replay(store, kernel=kernel, save=path).exit_code is Exit.PASS
    with open_store(paths[0]) as one, open_store(paths[1]) as other:
        report = diff(one, other)
        assert report.exit_code is Exit.MISMATCH
        assert report.records[0].reason.endswith("(their values were not recorded)")
        assert diff(one, one).exit_code is Exit.PASS
        assert diff(store, other).exit_code is Exit.PASS
