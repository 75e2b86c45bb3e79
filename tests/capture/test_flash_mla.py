# SPDX-License-Identifier: Apache-2.0
"""The adapter of FlashMLA called directly, on a function that attends by its documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.adapters.flash_mla import FUNCTION, SIGNATURES
from gdnbench.capture.recorder import Counts
from gdnbench.errors import Exit
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.swa_decode.layouts import pack_ds_mla
from tests.capture.frameworks import FOLDER, framework
from tests.capture.source_signatures import parameters
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of, patched
from tests.messages import wording

REQUESTS, QUERIES, HEADS, WINDOW, ENTRIES = 2, 3, 4, 64, 12


@pytest.fixture(autouse=True)
def flash_mla() -> Iterator[None]:
    with framework():
        yield


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def table(entries: int, slots: int, queries: int = QUERIES) -> Tensor:
    """int32 [requests, queries, entries] of slots, one of them -1."""
    generator = torch.Generator().manual_seed(entries)
    found = torch.randint(slots, (REQUESTS, queries, entries), generator=generator)
    found[0, 0, 1] = -1
    return found.int()


def extra(**more: Any) -> dict[str, Any]:
    given = {
        "extra_k_cache": pack_ds_mla(random(40, 2, 512)).unsqueeze(2),
        "extra_indices_in_kvcache": table(ENTRIES, 80),
        "extra_topk_length": torch.tensor([12, 5], dtype=torch.int32),
    }
    return {**given, **more}


def called(path: Path, module: str = "flash_mla", queries: int = QUERIES, **more: Any) -> tuple[Any, Counts]:
    arguments = {
        "q": random(REQUESTS, queries, HEADS, 512),
        "k_cache": pack_ds_mla(random(3, 64, 512)).unsqueeze(2),
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "tile_scheduler_metadata": None,
        "indices": table(WINDOW, 192, queries),
        "attn_sink": torch.linspace(-1, 1, HEADS),
        "topk_length": torch.tensor([64, 20], dtype=torch.int32),
        **more,
    }
    with capturing(path) as counts:
        result = getattr(import_module(module), FUNCTION)(**arguments)
    assert (counts.failures, counts.first_failure) == (0, None)
    return result, counts


def the_record(path: Path, result: Any) -> StoredRecord:
    """The record, which replays as it was recorded."""
    store = Store.open(path)
    (record,) = store.records
    o = record.after["o"].read()
    assert torch.equal(o, result[0].reshape(o.shape))
    for kernel in ("reference", "torch"):
        report = replay(store, kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]
    return record


@pytest.mark.parametrize("module", ["flash_mla", "flash_mla.flash_mla_interface"])
def test_several_queries_of_a_request(module: str, tmp_path: Path) -> None:
    result, _ = called(tmp_path / "run.zarr", module, **extra())
    record = the_record(tmp_path / "run.zarr", result)
    assert record.info.op == "v4_decode"
    assert record.info.conventions["lens_shape"] == "B"
    assert record.before["q"].meta.shape == (REQUESTS, QUERIES, HEADS, 512)
    assert torch.equal(record.after["lse"].read(), result[1].transpose(1, 2))
    assert "made_by_capture" not in record.info.dispatch


def test_without_lengths_all_entries_count(tmp_path: Path) -> None:
    result, _ = called(tmp_path / "run.zarr", topk_length=None, **extra(extra_topk_length=None))
    record = the_record(tmp_path / "run.zarr", result)
    assert record.info.dispatch["made_by_capture"] == ["swa_lens", "extra_lens"]
    assert record.before["swa_lens"].read().tolist() == [WINDOW] * REQUESTS
    assert record.before["extra_lens"].read().tolist() == [ENTRIES] * REQUESTS


def test_the_window_alone(tmp_path: Path) -> None:
    result, _ = called(tmp_path / "run.zarr")
    record = the_record(tmp_path / "run.zarr", result)
    assert record.info.op == "swa_decode"
    assert record.before["swa_lens"].read().tolist() == [64] * QUERIES + [20] * QUERIES


def test_more_queries_than_the_operation_has(tmp_path: Path) -> None:
    given = extra(extra_indices_in_kvcache=table(ENTRIES, 80, 9))
    _, counts = called(tmp_path / "run.zarr", queries=9, **given)
    ((reason, _),) = counts.passed_over.items()
    assert re.fullmatch(wording("capture.queries-many"), reason)


def given(**more: Any) -> dict[str, Any]:
    """A call of several queries of each request."""
    names = ("block_table", "cache_seqlens", "tile_scheduler_metadata")
    return {
        "q": random(REQUESTS, QUERIES, HEADS, 512),
        "k_cache": pack_ds_mla(random(3, 64, 512)).unsqueeze(2),
        "head_dim_v": 512,
        "indices": table(WINDOW, 192),
        **dict.fromkeys(names),
        **extra(**more),
    }


def test_in_a_cuda_graph(tmp_path: Path) -> None:
    """Lengths of the window are made in the graph; the others are the caller's, new at the second replay."""
    lengths = torch.tensor([12, 5], dtype=torch.int32)
    arguments = given(extra_topk_length=lengths)
    streams, graph = StandInStreams(), StandInGraph()
    options = CaptureOptions(full_pools=True)
    module = import_module("flash_mla")
    with capturing_stand_in(tmp_path / "run.zarr", streams, options) as counts, patched():
        function = getattr(module, FUNCTION)
        with graph_of(graph):
            function(**arguments)
        graph.replay()
        lengths -= 1
        graph.replay()
    assert (counts.records, counts.failures, counts.first_failure) == (2, 0, None)
    records = Store.open(tmp_path / "run.zarr").records
    assert [one.before["extra_lens"].read().tolist() for one in records] == [[12, 5], [11, 4]]
    assert [one.before["swa_lens"].read().tolist() for one in records] == [[WINDOW] * REQUESTS] * 2


def test_the_stand_in_has_the_signature() -> None:
    known = SIGNATURES.functions[FUNCTION]
    assert parameters(FOLDER / "flash_mla/flash_mla_interface.py", FUNCTION) == known.parameters
    assert set(known.needs.split()) <= known.names
