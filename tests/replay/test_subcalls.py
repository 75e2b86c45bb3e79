# SPDX-License-Identifier: Apache-2.0
"""Calls made of others by leaving out parts at random: legal, no larger, and the same for the same seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.bits import as_integers
from gdnbench.errors import BadInputError
from gdnbench.judge import calls
from gdnbench.ops import operation
from gdnbench.replay.subcalls import extent, smaller, smaller_record
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Call
from tests.messages import wording

CALLS: dict[str, dict[str, Any]] = {
    "gdn_prefill": {"seqlens": (70, 1, 0, 130), "heads": (2, 4), "head_dim": (8, 8), "initial_state": True},
    "gdn_decode": {"batch": 4, "steps": 3, "heads": (2, 4), "head_dim": (8, 8), "slots": 9, "padding": 0.3},
    "swa_decode": {"lens": (5, 0, 128, 17), "heads": 8},
}
SEEDS = range(24)


def made(op: str) -> Call:
    return synthesise(op, **CALLS[op])


def same(a: Call, b: Call) -> bool:
    return a.tensors.keys() == b.tensors.keys() and all(
        a.tensors[name].shape == b.tensors[name].shape
        and torch.equal(as_integers(a.tensors[name]), as_integers(b.tensors[name]))
        for name in a.tensors
    )


@pytest.mark.parametrize("op", CALLS)
def test_legal_and_no_larger(op: str) -> None:
    found, call = operation(op), made(op)
    assert found.shrinking is not None
    whole = found.shrinking.extent(call)
    extents = []
    for seed in SEEDS:
        small = smaller(found, call, seed)
        found.validate(small)
        counts = found.shrinking.extent(small)
        assert all(counts[what] <= whole[what] for what in whole)
        extents.append(tuple(counts.values()))
    assert len(set(extents)) > len(SEEDS) // 2
    for index in range(len(whole)):  # everything that is counted varies
        assert len({counts[index] for counts in extents}) > 1


@pytest.mark.parametrize("op", CALLS)
def test_the_seed_decides(op: str) -> None:
    found, call = operation(op), made(op)
    assert all(same(smaller(found, call, seed), smaller(found, made(op), seed)) for seed in range(4))


def test_tokens_that_stay_have_their_values() -> None:
    found, call = operation("gdn_prefill"), made("gdn_prefill")
    rows = {tuple(row) for row in call.tensors["k"].flatten(1).tolist()}
    heads = [
        {tuple(row) for row in call.tensors["k"][:, head].tolist()}
        for head in range(call.tensors["k"].shape[1])
    ]
    for seed in SEEDS:
        kept = smaller(found, call, seed).tensors["k"]
        if kept.shape[1] == 2:
            assert {tuple(row) for row in kept.flatten(1).tolist()} <= rows
        else:
            assert any({tuple(row) for row in kept[:, 0].tolist()} <= head for head in heads)


@pytest.mark.parametrize("op", CALLS)
def test_a_store_of_one_record(op: str, tmp_path: Path) -> None:
    call = made(op)
    with StoreWriter(tmp_path / "s.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft(op, call)])
    with Store.open(tmp_path / "s.zarr") as store, smaller_record(store.records[0], 5) as (small, what):
        (record,) = small.records
        assert record.info.op == op
        assert not record.after
        expected = smaller(operation(op), _compact(store), 5)
        assert what == extent(operation(op), expected)
        assert all(record.before[name].meta.shape == tuple(expected.tensors[name].shape) for name in ("q",))


def _compact(store: Store) -> Call:
    record = store.records[0]
    return calls.compact_call(record, operation(record.info.op), torch.device("cpu"))


def test_an_operation_of_one_shape() -> None:
    fixed = replace(operation("gdn_decode"), shrinking=None)
    with pytest.raises(BadInputError, match=wording("bisect.not-shrinkable", operation="gdn_decode")):
        smaller(fixed, made("gdn_decode"), 0)
