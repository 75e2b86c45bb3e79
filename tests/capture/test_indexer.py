# SPDX-License-Identifier: Apache-2.0
"""The adapters of indexers: DeepGEMM called directly, vLLM's layer and SGLang's step, on functions that score
and select by definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.adapters import deep_gemm, sglang_indexer, vllm_indexer
from gdnbench.capture.adapters.indexer_calls import positions_of_slots
from gdnbench.capture.recorder import Counts
from gdnbench.errors import Exit
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store, StoredRecord
from tests.capture import indexer_engine
from tests.capture.frameworks import FOLDER, framework
from tests.capture.source_signatures import parameters
from tests.messages import wording

HEADS, FEATURES, SIZE, PAGES, ENTRIES = 4, 128, 64, 6, 16
E4M3 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def frameworks() -> Iterator[None]:
    with framework():
        yield


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pages() -> Tensor:
    """uint8 [pages, size, D+4]: codes of all keys of a page, then their fp32 scales."""
    codes = random(PAGES, SIZE, FEATURES).to(E4M3).view(torch.uint8).flatten(1)
    scales = (random(PAGES, SIZE).abs() + 0.1).view(torch.uint8).flatten(1)
    return torch.cat([codes, scales], dim=1).view(PAGES, SIZE, FEATURES + 4)


def queries(*shape: int) -> Tensor:
    return random(*shape, HEADS, FEATURES).to(E4M3)


TABLE = ints([4, 1, 0], [2, 5, 3])


def records(path: Path, counts: Counts, number: int) -> list[StoredRecord]:
    """The records, which replay as they were recorded."""
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    assert counts.records == number
    store = Store.open(path)
    for kernel in ("reference", "torch"):
        report = replay(store, kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]
    return list(store.records)


@pytest.mark.parametrize(
    ("lens", "made"), [(ints(100, 3), ["lens"]), (ints([99, 100], [0, 1]), None)], ids=["request", "query"]
)
def test_scores_over_pages(lens: Tensor, made: list[str] | None, tmp_path: Path) -> None:
    q, cache = queries(2, 2), pages()
    with capturing(tmp_path / "run.zarr") as counts:
        function = import_module("deep_gemm").fp8_paged_mqa_logits
        logits = function(q, cache.unsqueeze(2), random(4, HEADS), lens, TABLE, None, 192)
    (record,) = records(tmp_path / "run.zarr", counts, 1)
    info = record.info
    assert info.op == "indexer_logits"
    assert info.scalars == {"columns": 192, "logits_dtype": "float32", "clean_logits": False}
    assert info.dispatch.get("made_by_capture") == made
    by_query = lens.flatten().tolist() if made is None else [99, 100, 2, 3]
    assert record.before["lens"].read().tolist() == by_query
    assert info.pools["cache"].rows == ((1, 2, 4) if int(lens.amax()) > SIZE else (2, 4))
    assert torch.equal(record.before["cache"].read(), cache[list(info.pools["cache"].rows)])
    assert torch.equal(record.before["q"].read().view(torch.uint8), q.view(torch.uint8).flatten(0, 1))
    assert torch.equal(record.after["logits"].read(), logits)


def test_columns_of_no_key_that_are_infinite(tmp_path: Path) -> None:
    with capturing(tmp_path / "run.zarr") as counts:
        function = import_module("deep_gemm").fp8_paged_mqa_logits
        cache, weights = pages().unsqueeze(2), random(2, HEADS)
        function(queries(2, 1), cache, weights, ints(100, 3), TABLE, None, 192, clean_logits=True)
    (record,) = records(tmp_path / "run.zarr", counts, 1)
    assert record.info.scalars["clean_logits"] is True


def test_requests_of_rows(tmp_path: Path) -> None:
    """As vLLM calls it where it may: every query is a row, with the number of its request."""
    with capturing(tmp_path / "run.zarr") as counts:
        function = import_module("deep_gemm").fp8_fp4_paged_mqa_logits
        cache, weights, owners = pages().unsqueeze(2), random(3, HEADS), ints(1, 0, 1)
        function((queries(3, 1), None), cache, weights, ints([70], [5], [71]), TABLE, None, 192, owners)
    (record,) = records(tmp_path / "run.zarr", counts, 1)
    assert record.info.dispatch["made_by_capture"] == ["block_table"]
    assert record.info.pools["cache"].rows == (2, 4, 5)


@pytest.mark.parametrize("width", [0, 50])
def test_scores_of_packed_keys(width: int, tmp_path: Path) -> None:
    k, scale = random(60, FEATURES).to(E4M3), random(60).abs() + 0.1
    starts, ends = ints(0, 0, 20), ints(20, 0, 60)
    with capturing(tmp_path / "run.zarr") as counts:
        function = import_module("deep_gemm").fp8_mqa_logits
        logits = function(
            queries(3), (k, scale), random(3, HEADS), starts, ends, clean_logits=False, max_seqlen_k=width
        )
    (record,) = records(tmp_path / "run.zarr", counts, 1)
    assert record.info.scalars["compressed"] is bool(width)
    assert record.before["lens"].read().tolist() == [20, 0, 40]
    assert torch.equal(record.before["row_starts"].read(), starts)
    assert torch.equal(record.after["logits"].read(), logits)


@pytest.mark.parametrize(
    ("q", "reason"),
    [
        ((queries(2, 1), torch.ones(2, 1, HEADS, dtype=torch.int32)), wording("capture.queries-scaled")),
        ((queries(2, 1).view(torch.uint8), None), wording("capture.queries-e4m3")),
    ],
)
def test_queries_that_the_operation_does_not_have(q: Any, reason: str, tmp_path: Path) -> None:
    with capturing(tmp_path / "run.zarr") as counts:
        module = import_module("deep_gemm")
        function = module.fp8_fp4_paged_mqa_logits
        function(q, pages().unsqueeze(2), random(2, HEADS), ints(0, 0), TABLE, None, 192)
    ((found, _),) = counts.passed_over.items()
    assert re.fullmatch(reason, found)


def vllm_layer(path: Path, step: SimpleNamespace, q: Tensor, weights: Tensor) -> Any:
    with capturing(path) as counts:
        layers = import_module("vllm.model_executor.layers.sparse_attn_indexer")
        cache = SimpleNamespace(prefix="model.layers.2.attn.indexer.k_cache", kv_cache=pages())
        buffer = torch.full((8, ENTRIES + 4), -1, dtype=torch.int32)
        model = torch.nn.Module()
        model.indexer = layers.SparseAttnIndexer(cache, ENTRIES, 1000, buffer)
        context = import_module("vllm.forward_context")
        with context.set_forward_context({cache.prefix: step}):
            logits, indices = model.indexer(q, weights)
    return counts, logits, indices


def test_decoding_in_vllm(tmp_path: Path) -> None:
    """Two queries of each of two requests; the logits have room for 1000 columns, and keys reach 150."""
    lens = ints([140, 141], [9, 10])
    decode = SimpleNamespace(seq_lens=lens, block_table=TABLE, indices=None)
    step = SimpleNamespace(prefill=None, decode=decode, max_seq_len=150)
    counts, logits, indices = vllm_layer(tmp_path / "run.zarr", step, queries(2, 2), random(4, HEADS))
    scored, chosen = records(tmp_path / "run.zarr", counts, 2)
    assert (scored.info.op, chosen.info.op) == ("indexer_logits", "indexer_topk")
    assert scored.info.layer == chosen.info.layer == "indexer"
    assert scored.info.scalars["columns"] == 150
    assert scored.info.dispatch["columns_as_called"] == chosen.info.dispatch["columns_as_called"] == 1000
    assert torch.equal(scored.after["logits"].read(), logits[:, :150])
    assert torch.equal(chosen.before["logits"].read(), logits[:, :150])
    assert chosen.before["lens"].read().tolist() == [140, 141, 9, 10]
    assert chosen.info.scalars == {"top_k": ENTRIES}
    assert torch.equal(chosen.after["indices"].read(), indices)


def test_a_prefill_in_vllm(tmp_path: Path) -> None:
    kv = (random(60, FEATURES).to(E4M3), random(60).abs() + 0.1)
    step = SimpleNamespace(prefill=(ints(0, 0, 20), ints(20, 3, 60), kv), decode=None, max_seq_len=40)
    counts, logits, indices = vllm_layer(tmp_path / "run.zarr", step, queries(3), random(3, HEADS))
    scored, chosen = records(tmp_path / "run.zarr", counts, 2)
    assert scored.info.scalars["compressed"] is True
    assert torch.equal(scored.after["logits"].read(), logits)
    assert chosen.before["lens"].read().tolist() == [20, 3, 40]
    assert chosen.before["row_starts"].read().tolist() == [0, 0, 0]
    assert chosen.info.dispatch["path"] == "prefill"
    assert torch.equal(chosen.after["indices"].read(), indices)


@pytest.mark.every(2)
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("how", ["deep_gemm", "torch", "torch sm120"])
def test_a_step_of_sglang(how: str, raw: bool, tmp_path: Path) -> None:
    """Rows of one query each, one of no request; slots come from pages with stale ones behind."""
    table = ints([4, 1, 0], [2, 2, 5], [0, 0, 0])
    step = SimpleNamespace(
        pages=pages().unsqueeze(2), weights=random(3, HEADS), lens=ints(130, 40, 1), page_table=table,
        max_seq_len=180,
    )  # fmt: skip
    positions = torch.zeros(3, ENTRIES, dtype=torch.int32) if raw and how != "torch sm120" else None
    with capturing(tmp_path / "run.zarr") as counts:
        models = import_module("sglang.srt.models.deepseek_v4")
        context = import_module("sglang.srt.model_executor.forward_context")
        kind = import_module("sglang.srt.layers.attention.dsv4.indexer").C4IndexerBackend
        with context.forward_context(kind(step, how, ENTRIES, positions)):
            logits, slots = models.MQALayer(5)(queries(3))
    scored, chosen = records(tmp_path / "run.zarr", counts, 2)
    assert (scored.info.op, scored.info.layer_index) == ("indexer_logits", 5)
    assert scored.info.dispatch["backend"] == ("deep_gemm" if how == "deep_gemm" else "torch")
    assert torch.equal(scored.after["logits"].read(), logits)
    assert (chosen.info.op, chosen.info.layer_index) == ("indexer_topk", 5)
    found = chosen.after["indices"].read()
    if positions is not None:
        assert "made_by_capture" not in chosen.info.dispatch
        assert torch.equal(found, positions)
    else:
        assert chosen.info.dispatch["made_by_capture"] == ["indices"]
    assert [int((row >= 0).sum()) for row in found] == [ENTRIES, ENTRIES, 1]
    for row in range(3):
        chosen_here = found[row][found[row] >= 0].tolist()
        expected = [int(table[row, at // SIZE]) * SIZE + at % SIZE for at in chosen_here]
        assert slots[row].tolist()[: len(expected)] == expected


@pytest.mark.parametrize("spoilt", [False, True])
def test_columns_of_no_key_may_be_nan(spoilt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--on-nonfinite` keeps calls for what counts, in scores and in what the top-k selects from."""
    monkeypatch.setattr(indexer_engine.paged_scores, "__defaults__", (torch.nan,))
    logits, lens = random(2, 40), ints(30, 5)
    logits[0, 30:], logits[1, 4 if spoilt else 5 :] = torch.nan, torch.inf
    out = torch.zeros(2, ENTRIES, dtype=torch.int32)
    cache = pages().unsqueeze(2)
    if spoilt:
        cache[4].view(-1)[SIZE * FEATURES :].view(torch.float32)[2] = torch.nan
    with capturing(tmp_path / "run.zarr", CaptureOptions(on_nonfinite=True)) as counts:
        topk = import_module("sglang.kernels.ops.attention.dsv4").topk_transform_paged
        topk(logits, lens, None, out, SIZE)
        scores = import_module("deep_gemm").fp8_fp4_paged_mqa_logits
        scores((queries(2, 1), None), cache, random(2, HEADS), ints(3, 2), TABLE, None, 192)
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    assert counts.records == (2 if spoilt else 0)


def test_positions_of_slots() -> None:
    table = ints([7, 3, 3], [1, 0, 9])  # of the first row, the last page is stale
    slots = ints([12, 29, -1], [36, 3, 2])
    found = positions_of_slots(slots, table, 4, ints(7, 12))
    assert found.tolist() == [[4, 1, -1], [8, 7, 6]]
    # A slot of no page of the row is not made up.
    assert positions_of_slots(ints([40]), ints([7, 3]), 4, ints(7)).tolist() == [[-1]]


STAND_INS = [
    ("deep_gemm/__init__.py", deep_gemm.SIGNATURES, name)
    for name in (deep_gemm.PAGED, deep_gemm.PACKED, deep_gemm.PAGED_FP4, deep_gemm.PACKED_FP4)
]
STAND_INS += [
    ("sglang/srt/layers/attention/dsv4/indexer.py", deep_gemm.SIGNATURES, deep_gemm.TORCH),
    ("vllm/model_executor/layers/indexer_topk.py", vllm_indexer.SIGNATURES, vllm_indexer.FORWARD),
    ("vllm/_custom_ops.py", vllm_indexer.SIGNATURES, vllm_indexer.DECODE),
    ("vllm/_custom_ops.py", vllm_indexer.SIGNATURES, vllm_indexer.PREFILL),
    ("sglang/kernels/ops/attention/dsv4/topk.py", sglang_indexer.SIGNATURES, sglang_indexer.PAGED),
    ("sglang/kernels/ops/attention/dsv4/topk.py", sglang_indexer.SIGNATURES, sglang_indexer.PAGED_V2),
    ("sglang/srt/layers/attention/dsv4/indexer.py", sglang_indexer.SIGNATURES, sglang_indexer.TORCH),
    ("sglang/srt/layers/attention/dsv4/indexer.py", sglang_indexer.SIGNATURES, sglang_indexer.BFLOAT16),
]


@pytest.mark.parametrize(("file", "known", "name"), STAND_INS, ids=[name for *_, name in STAND_INS])
def test_the_stand_ins_have_the_signatures(file: str, known: Any, name: str) -> None:
    assert parameters(FOLDER / file, name) == known.functions[name].parameters
    assert set(known.functions[name].needs.split()) <= known.functions[name].names
