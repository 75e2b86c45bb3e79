# SPDX-License-Identifier: Apache-2.0
"""The adapter of FlashInfer's sparse attention of DeepSeek-V4, on a function that does what it documents."""

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
from gdnbench.capture.adapters import load_adapters, select_targets
from gdnbench.capture.adapters.flashinfer_signatures import SPARSE_MLA
from gdnbench.capture.adapters.flashinfer_sparse_mla import NOT_RECORDED
from gdnbench.capture.recorder import Counts
from gdnbench.errors import Exit
from gdnbench.lineage.check import tables_of
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.swa_decode.layouts import pack_ds_mla
from tests.capture.frameworks import framework
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of, patched
from tests.messages import wording
from tests.subset import quick

BLOCKS, SIZE, HEADS = 5, 64, 8
E4M3 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def flashinfer() -> Iterator[None]:
    with framework():
        yield


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pages(dtype: torch.dtype = torch.bfloat16, room: int = 0) -> Tensor:
    """[blocks, block_size, 512], with `room` rows behind each page."""
    return random(BLOCKS, SIZE + room, 512).to(dtype)[:, :SIZE]


def table(rows: int, width: int = 128) -> Tensor:
    """Row t attends to slots from 17 t on; what is behind its length is stale."""
    return torch.arange(width, dtype=torch.int32) % 128 + 17 * torch.arange(rows, dtype=torch.int32)[:, None]


def given(cache: Tensor, rows: int, **more: Any) -> dict[str, Any]:
    """One query token of each of `rows` sequences: the first is shorter than the window."""
    return {
        "query": random(rows, 1, HEADS, 512).to(cache.dtype),
        "swa_kv_cache": cache,
        "workspace_buffer": None,
        "sparse_indices": table(rows),
        "compressed_kv_cache": cache,
        "sparse_topk_lens": torch.full((rows,), 128, dtype=torch.int32),
        "seq_lens": torch.arange(100, 100 * rows + 100, 100, dtype=torch.int32),
        "bmm1_scale": 512**-0.5,
        "sinks": torch.linspace(-1, 1, HEADS),
        **more,
    }


def captured(path: Path, arguments: dict[str, Any], module: str = "decode") -> tuple[Any, Counts]:
    with capturing(path) as counts:
        result = getattr(import_module(f"flashinfer.{module}"), SPARSE_MLA)(**arguments)
    assert (counts.failures, counts.first_failure) == (0, None)
    return result, counts


def recorded(path: Path, arguments: dict[str, Any], module: str = "decode") -> tuple[Any, StoredRecord]:
    result, counts = captured(path, arguments, module)
    assert (counts.records, counts.passed_over, counts.uncaptured) == (1, {}, {})
    (record,) = Store.open(path).records
    return result, record


def assert_replays(path: Path) -> None:
    for kernel in ("reference", "torch"):
        report = replay(Store.open(path), kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


@pytest.mark.parametrize(("axis", "kv_layout"), quick([(None, "HND"), (1, "HND"), (2, "NHD")], 2))
def test_decoding_over_bfloat16_pages(axis: int | None, kv_layout: str, tmp_path: Path) -> None:
    cache = pages() if axis is None else pages().unsqueeze(axis)
    arguments = given(cache, 3, kv_layout=kv_layout)
    o, record = recorded(tmp_path / "run.zarr", arguments)
    info = record.info
    assert info.op == "swa_decode"
    assert info.conventions == {"cache_layout": "bfloat16", "index_shape": "TW"}
    assert info.scalars == {"scale": 512**-0.5, "output_lse": False}
    assert (info.dispatch["path"], info.dispatch["backend"]) == ("decode", "flashinfer auto")
    assert info.dispatch["made_by_capture"] == ["swa_lens"]
    assert info.dispatch["metadata"] == {"seq_lens": [100, 200, 300]}
    assert torch.equal(record.before["q"].read(), arguments["query"].flatten(0, 1))
    assert torch.equal(record.before["swa_indices"].read(), table(3))
    assert record.before["swa_lens"].read().tolist() == [100, 128, 128]
    assert torch.equal(record.before["cache"].read(), pages()[list(info.pools["cache"].rows)])
    assert torch.equal(record.before["attn_sink"].read(), arguments["sinks"])
    assert torch.equal(record.after["o"].read(), o.flatten(0, 1))
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize("module", quick(["mla._core", "mla", "decode"], 1))
def test_wherever_it_is_imported_from(module: str, tmp_path: Path) -> None:
    recorded(tmp_path / "run.zarr", given(pages(), 1), module)


def test_drafts_over_e4m3_pages_that_lie_apart(tmp_path: Path) -> None:
    """As vLLM calls it: packed queries, and indices that count the 3 rows of room behind each page."""
    cache = pages(E4M3, room=3)
    slots = table(5)
    slots[3, 40:] = -1
    arguments = given(
        cache,
        5,
        sparse_indices=torch.where(slots < 0, -1, slots + 3 * (slots // SIZE)),
        sparse_indices_are_storage_offsets=True,
        seq_lens=ints(60, 40),
        cum_seq_lens_q=ints(0, 3, 5),
        max_q_len=3,
        bmm2_scale=1.0,
    )
    arguments["query"] = arguments["query"].flatten(0, 1)
    out = torch.empty(5, HEADS, 512, dtype=torch.bfloat16)
    _, record = recorded(tmp_path / "run.zarr", {**arguments, "out": out})
    info = record.info
    assert info.conventions == {"cache_layout": "per_token_scale", "index_shape": "TW"}
    assert info.dispatch["made_by_capture"] == ["swa_lens", "swa_indices", "q", "inv_scale"]
    assert info.dispatch["metadata"] == {"seq_lens": [60, 40], "cum_seq_lens_q": [0, 3, 5]}
    assert torch.equal(record.before["swa_indices"].read(), slots)
    assert record.before["swa_lens"].read().tolist() == [58, 59, 60, 39, 40]
    assert torch.equal(
        record.before["q"].read().to(E4M3).view(torch.uint8), arguments["query"].view(torch.uint8)
    )
    kept = record.before["cache"].read()
    assert torch.equal(kept.view(torch.uint8), cache.view(torch.uint8)[list(info.pools["cache"].rows)])
    assert record.before["inv_scale"].read().unique().tolist() == [1]
    assert torch.equal(record.after["o"].read(), out)
    assert_replays(tmp_path / "run.zarr")


def test_packed_pages_of_sm120(tmp_path: Path) -> None:
    cache = pack_ds_mla(random(BLOCKS, SIZE, 512))
    arguments = given(
        cache.unsqueeze(2),
        3,
        query=random(3, HEADS, 512),
        compressed_kv_cache=None,
        sparse_topk_lens=None,
        seq_lens=None,
        swa_topk_lens=ints(128, 5, 0),
        kv_layout="NHD",
    )
    o, record = recorded(tmp_path / "run.zarr", arguments)
    assert record.info.conventions["cache_layout"] == "fp8_ds_mla"
    assert "made_by_capture" not in record.info.dispatch
    assert record.before["swa_lens"].read().tolist() == [128, 5, 0]
    assert torch.equal(record.before["cache"].read(), cache[list(record.info.pools["cache"].rows)])
    assert torch.equal(record.after["o"].read(), o)
    assert_replays(tmp_path / "run.zarr")


def test_outputs_that_the_kernel_rotates_back(tmp_path: Path) -> None:
    """vLLM gives all rows of its buffers then, and those of the running sequences by their offsets."""
    arguments = given(
        pages(E4M3),
        5,
        seq_lens=ints(60, 40),
        cum_seq_lens_q=ints(1, 3, 4),
        max_q_len=2,
        dsv4_inv_rope_cos_sin_cache=torch.zeros(9, 64),
        dsv4_output_scale=torch.zeros(5, 16, 8, dtype=torch.int32),
    )
    arguments["query"] = arguments["query"].flatten(0, 1)
    _, record = recorded(tmp_path / "run.zarr", arguments)
    assert record.info.dispatch["not_recorded"] == NOT_RECORDED
    assert not record.after
    assert record.before["swa_lens"].read().tolist() == [0, 59, 60, 40, 0]
    report = replay(Store.open(tmp_path / "run.zarr"), kernel="torch", against="reference", isolate=False)
    assert report.exit_code is Exit.PASS


@pytest.mark.parametrize("lengths", [(128, 128), (128, 131)])
def test_columns_behind_the_window(lengths: tuple[int, int], tmp_path: Path) -> None:
    """Of the same pool: padding, or the window of a draft whose tokens see one another."""
    arguments = given(pages(), 2, sparse_indices=table(2, 132), sparse_topk_lens=ints(*lengths))
    _, counts = captured(tmp_path / "run.zarr", arguments)
    if lengths[1] > 128:
        ((found, _),) = counts.passed_over.items()
        assert re.fullmatch(wording("capture.windows-wide"), found)
        return
    (record,) = Store.open(tmp_path / "run.zarr").records
    assert torch.equal(record.before["swa_indices"].read(), table(2))
    assert_replays(tmp_path / "run.zarr")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no indices": ({"sparse_indices": None}, wording("capture.indices-missing")),
    "no lengths of compressed keys": (
        {
            "swa_kv_cache": pack_ds_mla(random(BLOCKS, SIZE, 512)),
            "compressed_kv_cache": pack_ds_mla(random(2, SIZE, 512)),
            "query": torch.zeros(2, 1, HEADS, 512, dtype=torch.bfloat16),
            "extra_sparse_indices": table(2, 64),
        },
        wording("capture.extra-lengths-missing"),
    ),
    "rows of a compressed pool": (
        {"sparse_indices": table(2, 192), "compressed_kv_cache": torch.zeros(2, 2, 288)},
        wording("capture.rows-format"),
    ),
    "another format": ({"kv_cache_format": "nvfp4"}, wording("capture.pages-other-format")),
    "a scale on the device": ({"bmm1_scale": torch.ones(1)}, wording("capture.scales-tensors")),
    "a scale of values": ({"bmm2_scale": 0.5}, wording("capture.scale-of-values")),
    "rows of another dtype": ({"query": torch.zeros(2, 1, HEADS, 512)}, wording("capture.rows-format")),
    "pages apart": (
        {"swa_kv_cache": pages(room=3), "compressed_kv_cache": None},
        wording("capture.pages-apart"),
    ),
    "no lengths": ({"seq_lens": None}, wording("capture.lengths-missing")),
}


def compressed(dtype: torch.dtype = torch.bfloat16, room: int = 0) -> Tensor:
    """[blocks, 2, 512] of ratio 128, with `room` rows behind each page."""
    return (random(60, 2 + room, 512) / 2).to(dtype)[:, :2]


def topk(rows: int, width: int = 24) -> Tensor:
    """Row t attends to slots from 7 t on; one entry is -1."""
    found = torch.arange(width, dtype=torch.int32) + 7 * torch.arange(rows, dtype=torch.int32)[:, None]
    found[0, 1] = -1
    return found


def assert_whole(record: StoredRecord, arguments: dict[str, Any], lens: list[int]) -> None:
    """A record of v4_decode with the window of `table`, and the compressed entries of `topk`."""
    info, rows = record.info, len(lens)
    assert info.op == "v4_decode"
    assert info.conventions["extra_index_form"] == "indices"
    assert info.scalars == {"scale": 512**-0.5, "output_lse": False}
    assert torch.equal(record.before["swa_indices"].read()[:, 0], table(rows))
    assert torch.equal(record.before["extra_indices"].read()[:, 0], topk(rows))
    assert record.before["extra_lens"].read().tolist() == lens
    assert torch.equal(record.before["attn_sink"].read(), arguments["sinks"])


def test_compressed_entries_behind_those_of_the_window(tmp_path: Path) -> None:
    cache, other = pages(), compressed()
    lengths = ints(152, 140, 128)
    indices = torch.cat([table(3), topk(3)], dim=1)
    more = {"compressed_kv_cache": other.unsqueeze(1), "sparse_indices": indices, "sparse_topk_lens": lengths}
    arguments = given(cache.unsqueeze(1), 3, **more)
    o, record = recorded(tmp_path / "run.zarr", arguments)
    assert_whole(record, arguments, [24, 12, 0])
    assert record.info.conventions["extra_layout"] == "bfloat16"
    assert record.info.dispatch["made_by_capture"] == ["swa_lens", "extra_lens"]
    assert record.before["swa_lens"].read().tolist() == [100, 128, 128]
    assert torch.equal(
        record.before["extra_cache"].read(), other[list(record.info.pools["extra_cache"].rows)]
    )
    assert torch.equal(record.after["o"].read(), o)
    assert_replays(tmp_path / "run.zarr")


def test_digests_in_place_of_tensors(tmp_path: Path) -> None:
    """Of windows alone: compressed rows are not logged."""
    indices = torch.cat([table(3), topk(3)], dim=1)
    more = {"sparse_indices": indices, "sparse_topk_lens": ints(152, 140, 128)}
    with capturing(tmp_path / "run.zarr", CaptureOptions(digests=True)) as counts:
        function = getattr(import_module("flashinfer.decode"), SPARSE_MLA)
        function(**given(pages(), 3, compressed_kv_cache=compressed(), **more))
    assert (counts.digested, counts.failures, counts.passed_over) == (1, 0, {})
    with Store.open(tmp_path / "run.zarr") as store:
        (made,) = tables_of(store)
    assert made.chains == ("window",)
    assert len(made.rows) == 100 + 128 + 128


def test_compressed_entries_over_e4m3_pages_that_lie_apart(tmp_path: Path) -> None:
    """As vLLM calls it: storage rows, of pages with another room each."""
    cache, other = pages(E4M3, room=3), compressed(E4M3, room=5)
    slots, entries = table(2), topk(2)
    storage = [
        torch.where(one < 0, -1, one + room * (one // size))
        for one, room, size in ((slots, 3, SIZE), (entries, 5, 2))
    ]
    arguments = given(
        cache,
        2,
        compressed_kv_cache=other,
        sparse_indices=torch.cat(storage, dim=1),
        sparse_indices_are_storage_offsets=True,
        sparse_topk_lens=ints(150, 128),
        seq_lens=ints(60, 400),
        cum_seq_lens_q=ints(0, 1, 2),
        max_q_len=1,
    )
    arguments["query"] = arguments["query"].flatten(0, 1)
    o, record = recorded(tmp_path / "run.zarr", arguments)
    assert_whole(record, arguments, [22, 0])
    assert record.info.conventions["extra_layout"] == "per_token_scale"
    assert record.info.dispatch["made_by_capture"] == [
        *("swa_lens", "swa_indices", "q", "inv_scale"),
        *("extra_lens", "extra_indices", "extra_inv_scale"),
    ]
    assert record.before["extra_inv_scale"].read().unique().tolist() == [1]
    assert torch.equal(record.after["o"].read()[:, 0], o)
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize(
    "lengths",
    [
        {"sparse_topk_lens": None, "extra_sparse_topk_lens": ints(24, 5)},
        {"sparse_topk_lens": ints(24, 5), "sparse_topk_lens_offset": 128},
    ],
)
def test_a_table_of_its_own_on_sm100(lengths: dict[str, Any], tmp_path: Path) -> None:
    """Backend cake: lengths count the 128 entries of the window, or an offset does."""
    more = {"backend": "cake", "compressed_kv_cache": compressed(), "extra_sparse_indices": topk(2)}
    arguments = given(pages(), 2, **more, **lengths)
    o, record = recorded(tmp_path / "run.zarr", arguments)
    assert_whole(record, arguments, [24, 5])
    assert torch.equal(record.after["o"].read(), o)
    assert_replays(tmp_path / "run.zarr")


def test_compressed_keys_in_packed_pages_of_sm120(tmp_path: Path) -> None:
    cache, other = pack_ds_mla(random(BLOCKS, SIZE, 512)), pack_ds_mla(random(60, 2, 512))
    arguments = given(
        cache.unsqueeze(2),
        3,
        query=random(3, HEADS, 512),
        compressed_kv_cache=other.unsqueeze(2),
        sparse_topk_lens=None,
        seq_lens=None,
        swa_topk_lens=ints(128, 5, 0),
        extra_sparse_indices=topk(3).unsqueeze(1),
        extra_sparse_topk_lens=ints(24, 0, 0),
        kv_layout="NHD",
    )
    o, record = recorded(tmp_path / "run.zarr", arguments)
    assert_whole(record, arguments, [24, 0, 0])
    assert "made_by_capture" not in record.info.dispatch
    assert record.before["swa_lens"].read().tolist() == [128, 5, 0]
    assert torch.equal(
        record.before["extra_cache"].read(), other[list(record.info.pools["extra_cache"].rows)]
    )
    assert torch.equal(record.after["o"].read()[:, 0], o)
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize("direct", [False, True])
def test_all_compressed_positions(direct: bool, tmp_path: Path) -> None:
    """The HCA kernel: two queries of each of two requests, pages of compressed keys in order of position."""
    cache, other = pages(E4M3), compressed(E4M3)
    tables = ints(*[[*range(64)] for _ in range(4)]) % 60
    window, topk_lens, window_lens = table(4), ints(130, 131, 128, 133), ints(20, 21, 128, 0)
    query, sinks = random(2, 2, HEADS, 512).to(E4M3), torch.linspace(-1, 1, HEADS)
    lens = ints(131, 133)
    with capturing(tmp_path / "run.zarr") as counts:
        if direct:
            o = import_module("flashinfer.cute_dsl.attention").cute_dsl_hca_decode(
                query, cache.reshape(-1, 512), other, None, window, tables, lens, topk_lens, window_lens,
                512**-0.5, sinks=sinks,
            )  # fmt: skip
        else:
            o = getattr(import_module("flashinfer.mla"), SPARSE_MLA)(
                query, cache.unsqueeze(1), None, compressed_kv_cache=other.unsqueeze(1), bmm1_scale=512**-0.5,
                sparse_topk_lens=topk_lens, sinks=sinks, swa_topk_lens=window_lens, backend="cute-dsl",
                hca_swa_indices=window, hca_compressed_block_tables=tables, hca_seq_lens=lens,
            )  # fmt: skip
    assert (counts.records, counts.failures, counts.passed_over) == (1, 0, {})
    (record,) = Store.open(tmp_path / "run.zarr").records
    conventions = record.info.conventions
    assert (conventions["extra_index_form"], conventions["masked_indices"]) == ("block_table", "legal")
    assert record.info.dispatch["made_by_capture"] == ["extra_lens", "q", "inv_scale", "extra_inv_scale"]
    assert record.before["cache"].meta.shape[1] == SIZE
    assert record.before["swa_lens"].read().tolist() == [20, 21, 128, 0]
    assert record.before["extra_lens"].read().tolist() == [2, 3, 0, 5]
    assert torch.equal(record.before["extra_indices"].read().flatten(0, 1), tables)
    assert torch.equal(record.after["o"].read(), o)
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.every(2)
@pytest.mark.parametrize("case", REFUSED)
def test_calls_that_the_operation_does_not_describe(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, reason = REFUSED[case]
    core = import_module("flashinfer.mla._core")
    monkeypatch.setattr(core, "_attend", lambda call: torch.zeros(call.query.shape))
    _, counts = captured(tmp_path / "run.zarr", {**given(pages(), 2), **more})
    assert counts.records == 0
    ((found, calls),) = counts.passed_over.items()
    assert re.fullmatch(reason, found)
    assert calls == 1


def test_in_a_layer_of_vllm(tmp_path: Path) -> None:
    arguments = given(pages(), 2)
    q = arguments.pop("query")
    with capturing(tmp_path / "run.zarr", CaptureOptions(target=("vllm",))) as counts:
        models = import_module("vllm.models.deepseek_v41.nvidia.flashinfer_sparse")
        out = torch.empty_like(q)
        models.DeepseekV4FlashInferMLAAttention(7, arguments).forward_mqa(q, None, None, out)
    assert (counts.records, counts.failures) == (1, 0)
    (record,) = Store.open(tmp_path / "run.zarr").records
    assert record.info.layer_index == 7


@pytest.mark.parametrize(("pattern", "selected"), [("sglang", True), ("flashinfer", True), ("fla", False)])
def test_who_calls_it_selects_it(pattern: str, selected: bool) -> None:
    found = select_targets(load_adapters()[0], (pattern,))
    assert any(target.function == SPARSE_MLA for _, target in found) is selected


def test_in_a_cuda_graph(tmp_path: Path) -> None:
    """Lengths are computed in the graph; sequences are longer at the second replay."""
    arguments = given(pages(), 2, seq_lens=ints(3, 40))
    streams, graph = StandInStreams(), StandInGraph()
    module = import_module("flashinfer.decode")
    options = CaptureOptions(full_pools=True)
    with capturing_stand_in(tmp_path / "run.zarr", streams, options) as counts, patched():
        function = getattr(module, SPARSE_MLA)
        with graph_of(graph):
            function(**arguments)
        graph.replay()
        arguments["seq_lens"] += 1
        graph.replay()
    assert (counts.records, counts.failures, counts.first_failure) == (2, 0, None)
    found = [
        record.before["swa_lens"].read().tolist() for record in Store.open(tmp_path / "run.zarr").records
    ]
    assert found == [[3, 40], [4, 41]]
